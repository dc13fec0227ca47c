"""Inputs of several workers joined; each is read and prepared on its worker.

For a step that runs on any idle worker, each worker has its batches by name. TensorFlow chooses the
worker when it runs the step, and passes the same arguments to all. A worker's own state is
therefore a resource of its process, under the same name on all workers: a variable with its number,
synthetic batches in variables, or a queue of batches.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.data.source import CLOSE_SECONDS, InputSource, TowerBatch, close_all
from cnnbench.models.elements import by_name
from cnnbench.records.parts import SkippedRecords

WORKER_HOST = "/device:CPU:0"
"""The CPU of the worker that runs the step."""
_NUMBER = "cnnbench/worker"
_QUEUE = "cnnbench/batches"
_SYNTHETIC = "cnnbench/synthetic"


class JoinedInput(InputSource):
    """One input per worker, in the order of their towers; only shards and places differ.

    A batch never leaves the worker that made it: `next` returns handles of tensors there.
    """

    def __init__(self, sources: Sequence[InputSource]) -> None:
        first = sources[0]
        devices = [device for source in sources for device in source.devices]
        whole = dataclasses.replace(
            first.spec, num_devices=len(devices), num_shards=1, shard_index=0
        )
        super().__init__(whole, devices, first.examples_per_epoch)
        self.synthetic = first.synthetic
        self._sources = tuple(sources)
        # For each tower its source and its number there; for each source its share of a step.
        self._places = [
            (which, tower)
            for which, source in enumerate(sources)
            for tower in range(len(source.devices))
        ]
        ends = list(itertools.accumulate(len(source.signature) for source in sources))
        self._shares = [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]

    @property
    def signature(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.signature`."""
        return tuple(batch for source in self._sources for batch in source.signature)

    def of_tower(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """See `InputSource.of_tower`."""
        which, number = self._places[tower]
        return self._sources[which].of_tower(number, batches[self._shares[which]])

    def next(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.next`; the time blocked here is added to ``wait_seconds``."""
        start = time.perf_counter()
        try:
            return tuple(batch for source in self._sources for batch in source.next())
        finally:
            self.wait_seconds += time.perf_counter() - start
            self.batches += 1

    def waiting(self) -> dict[int, float]:
        """See `InputSource.waiting`."""
        return {shard: s for source in self._sources for shard, s in source.waiting().items()}

    def stages(self) -> list[Any]:
        """See `InputSource.stages`: those of the first worker."""
        return self._sources[0].stages()

    def skipped(self) -> SkippedRecords:
        """See `InputSource.skipped`."""
        return SkippedRecords.together(source.skipped() for source in self._sources)

    def passed_over(self, steps: int) -> list[int]:
        """See `InputSource.passed_over`."""
        return [count for source in self._sources for count in source.passed_over(steps)]

    def resume(self, steps: int, passed_over: Sequence[int] = ()) -> bool:
        """See `InputSource.resume`."""
        resumed = [source.resume(steps, passed_over) for source in self._sources]
        return all(resumed)

    def restart(self) -> None:
        """See `InputSource.restart`."""
        for source in self._sources:
            source.restart()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """See `InputSource.close`."""
        close_all(self._sources, seconds)


class CoordinatedInput(JoinedInput):
    """Inputs of all workers; a step reads that of the worker it runs on.

    There is one source per worker, with one tower each. A thread per worker keeps as many batches
    ready in its queue as its pipeline reads ahead, and never waits for room there: a waiting
    operation would block TensorFlow for all others. `waited` is a float64 scalar of the traced
    step: the seconds that it waits for its batch.
    """

    def __init__(self, sources: Sequence[InputSource]) -> None:
        super().__init__(sources)
        spec = self.spec
        self._types = [tf.as_dtype(spec.dtype_of(one)) for one in spec.elements]
        self._shapes = [[spec.batch_per_device, *one.sizes] for one in spec.elements]
        self._ahead = spec.datasets_prefetch_buffer_size if spec.datasets_use_prefetch else 0
        self._wanted = [threading.Semaphore(1 + max(1, self._ahead)) for _ in sources]
        self._error: Exception | None = None
        self.waited = tf.constant(0.0, tf.float64)
        self._began = self._closed = False
        self._lock = threading.Lock()
        self._queues = []
        for number, source in enumerate(sources):
            with tf.device(source.spec.host):
                _assign(_NUMBER, tf.constant(number, tf.int64))
                if self.synthetic:
                    self._keep(source)
                else:
                    self._queues.append(self._queue())

    @property
    def error(self) -> Exception | None:
        """The reason why a worker gets no more batches, or None."""
        return self._error

    @property
    def signature(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.signature`: the step takes nothing."""
        return ()

    def worker(self) -> tf.Tensor:
        """Number of the worker on which the traced step runs, an int64 scalar."""
        with tf.device(WORKER_HOST):
            return _read(_NUMBER, tf.int64, [])

    def of_tower(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """See `InputSource.of_tower`: the next batch of the worker that runs the step."""
        del tower, batches
        elements = self.spec.elements
        if self.synthetic:
            parts = [
                _read(f"{_SYNTHETIC}/{one.name}", kind, shape)
                for one, kind, shape in zip(elements, self._types, self._shapes, strict=True)
            ]
        else:
            with tf.device(WORKER_HOST):
                parts = self._dequeued()
        pairs = zip(elements, parts, self._shapes, strict=True)
        values = {one.name: tf.ensure_shape(part, shape) for one, part, shape in pairs}
        return TowerBatch.of(elements, values)

    def _dequeued(self) -> list[tf.Tensor]:
        before = tf.timestamp()
        with tf.control_dependencies([before]):
            parts = tf.raw_ops.QueueDequeueV2(handle=self._queue(), component_types=self._types)
        with tf.control_dependencies(parts):
            self.waited = tf.timestamp() - before
        return list(parts)

    def next(self) -> tuple[TowerBatch, ...]:
        """Starts filling the queues at the first call; the step takes no arguments."""
        self.batches += 1
        with self._lock:
            if not self._began and not self.synthetic:
                for number in range(len(self._sources)):
                    threading.Thread(target=self._fill, args=(number,), daemon=True).start()
            self._began = True
        return ()

    def taken(self, worker: int) -> None:
        """Reports that a step on this worker has ended, so that its queue has room."""
        self._wanted[worker].release()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """See `InputSource.close`."""
        self._closed = True
        for wanted in self._wanted:
            wanted.release()
        super().close(seconds)

    def _fill(self, number: int) -> None:
        source = self._sources[number]
        host = source.spec.host
        while True:
            self._wanted[number].acquire()
            if self._closed:
                return
            try:
                (batch,) = source.next()
                parts = list(_named(source, batch).values())
                with tf.device(host):
                    tf.raw_ops.QueueEnqueueV2(handle=self._queues[number], components=parts)
            except Exception as error:
                if not isinstance(error, tf.errors.UnavailableError):  # then the worker is lost
                    self._error = self._error or error
                    with tf.device(host):  # no step waits for a batch any more
                        tf.raw_ops.QueueCloseV2(handle=self._queues[number])
                return

    def _queue(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=self._types,
            shapes=self._shapes,
            capacity=8 + 2 * self._ahead,
            shared_name=_QUEUE,
        )

    def _keep(self, source: InputSource) -> None:
        with tf.device(source.devices[0]):
            batch = source.of_tower(0, ())
            for name, value in _named(source, batch).items():
                _assign(f"{_SYNTHETIC}/{name}", value)


def _named(source: InputSource, batch: TowerBatch) -> dict[str, Any]:
    elements = source.spec.elements
    features = by_name(elements, "feature", batch.features)
    found = {**features, **by_name(elements, "label", batch.labels)}
    return {one.name: found[one.name] for one in elements}


def _handle(name: str, dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)


def _assign(name: str, value: tf.Tensor) -> None:
    handle = _handle(name, value.dtype, value.shape)
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _read(name: str, dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=_handle(name, dtype, shape), dtype=dtype)
