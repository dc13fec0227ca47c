"""Joins the inputs of several workers, each of which reads and prepares its own input.

Some steps run on whichever worker is idle. TensorFlow chooses the worker when it runs the step, and
passes the same arguments to every worker. Therefore the state of a worker is stored in resources of
its process, with the same names on all workers: a variable with the worker's number, variables with
synthetic batches, or a queue of batches.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.data.dataset import CLOSE_SECONDS, InputSource, TowerBatch, close_inputs
from cnnbench.models.elements import values_by_name
from cnnbench.records.input import SkippedRecords

WORKER_HOST = "/device:CPU:0"
"""Device name for the CPU of the worker that runs the step."""


_NUMBER = "cnnbench/worker"


_QUEUE = "cnnbench/batches"


_SYNTHETIC = "cnnbench/synthetic"


class JoinedWorkerInput(InputSource):
    """Joins the inputs of all workers of a job. The inputs differ only in their shards and devices.

    A batch remains on the worker that produced it: `next` returns handles of tensors on this
    worker.
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
        # For each tower: the index of the source that delivers its batch, and the index of the
        # tower in that source.
        self._places = [
            (which, tower)
            for which, source in enumerate(sources)
            for tower in range(len(source.devices))
        ]
        # For each source: the slice of a step's arguments that comes from this source.
        ends = list(itertools.accumulate(len(source.step_argument_specs) for source in sources))
        self._shares = [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]

    @property
    def of_workers(self) -> tuple[InputSource, ...]:
        """See `InputSource.of_workers`."""
        return self._sources

    @property
    def step_argument_specs(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.step_argument_specs`."""
        return tuple(batch for source in self._sources for batch in source.step_argument_specs)

    def get_tower_batch(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """See `InputSource.get_tower_batch`."""
        which, number = self._places[tower]
        return self._sources[which].get_tower_batch(number, batches[self._shares[which]])

    def next(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.next`. Adds the time for which the call blocks to ``wait_seconds``."""
        start = time.perf_counter()
        try:
            return tuple(batch for source in self._sources for batch in source.next())
        finally:
            self.wait_seconds += time.perf_counter() - start
            self.batches += 1

    def seconds_waiting_by_shard(self) -> dict[int, float]:
        """See `InputSource.seconds_waiting_by_shard`."""
        return {
            shard: s
            for source in self._sources
            for shard, s in source.seconds_waiting_by_shard().items()
        }

    def skipped(self) -> SkippedRecords:
        """See `InputSource.skipped`."""
        return SkippedRecords.combined(source.skipped() for source in self._sources)

    def skipped_records_by_shard(self, steps: int) -> list[int]:
        """See `InputSource.skipped_records_by_shard`."""
        return [
            count for source in self._sources for count in source.skipped_records_by_shard(steps)
        ]

    def resume(
        self, examples: int, global_batch: int, skipped_by_shard: Sequence[int] = ()
    ) -> bool:
        """See `InputSource.resume`."""
        given = examples, global_batch, skipped_by_shard
        resumed = [source.resume(*given) for source in self._sources]
        return all(resumed)

    def restart(self) -> None:
        """See `InputSource.restart`."""
        for source in self._sources:
            source.restart()

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """See `InputSource.close`."""
        close_inputs(self._sources, timeout_seconds)


class CoordinatedInput(JoinedWorkerInput):
    """Joins the inputs of all workers of a job in which any idle worker may run the next step. A
    step reads its batch from the input of the worker that runs the step.

    Each worker has one source with one tower. For each worker, a thread fills the worker's queue
    with as many batches as its pipeline prefetches. An enqueue operation must never wait for space,
    because it would block all other operations of TensorFlow.

    `wait_seconds` is the mean over the workers. It is measured in this process: while a step waits,
    TensorFlow may not even begin to run the step's operations on the worker.
    """

    def __init__(self, sources: Sequence[InputSource]) -> None:
        super().__init__(sources)
        spec = self.spec
        self._types = [tf.as_dtype(spec.dtype_of(element)) for element in spec.delivered_elements]
        self._shapes = [
            [spec.batch_per_device, *element.sizes] for element in spec.delivered_elements
        ]
        self._ahead = spec.datasets_prefetch_buffer_size if spec.datasets_use_prefetch else 0
        self._wanted = [threading.Semaphore(1 + max(1, self._ahead)) for _ in sources]
        self._error: Exception | None = None
        # For each worker: the times at which its next batches became ready, and at which its last
        # step ended.
        self._ready: list[deque[float]] = [deque() for _ in sources]
        self._ended = [0.0] * len(sources)
        self._fillers: list[threading.Thread] = []
        self._began = self._closed = False
        self._lock = threading.Lock()
        self._queues = []
        for number, source in enumerate(sources):
            with tf.device(source.spec.host):
                _assign_variable(_NUMBER, tf.constant(number, tf.int64))
                if self.synthetic:
                    self._store_synthetic(source)
                else:
                    self._queues.append(self._queue_handle())

    @property
    def error(self) -> Exception | None:
        """The first error that stopped the batches of a worker; None if there is none."""
        return self._error

    @property
    def step_argument_specs(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.step_argument_specs`. The traced step has no arguments."""
        return ()

    def worker_number(self) -> tf.Tensor:
        """Returns the number of the worker that runs the step, an int64 scalar in the graph."""
        with tf.device(WORKER_HOST):
            return _read_variable(_NUMBER, tf.int64, [])

    def get_tower_batch(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """See `InputSource.get_tower_batch`. Returns the next batch of the step's worker."""
        del tower, batches
        elements = self.spec.delivered_elements
        if self.synthetic:
            parts = [
                _read_variable(f"{_SYNTHETIC}/{element.name}", kind, shape)
                for element, kind, shape in zip(elements, self._types, self._shapes, strict=True)
            ]
        else:
            with tf.device(WORKER_HOST):
                parts = tf.raw_ops.QueueDequeueV2(
                    handle=self._queue_handle(), component_types=self._types
                )
        pairs = zip(elements, parts, self._shapes, strict=True)
        values = {element.name: tf.ensure_shape(part, shape) for element, part, shape in pairs}
        return TowerBatch.from_values(elements, values)

    def next(self) -> tuple[TowerBatch, ...]:
        """Returns (), because the traced step has no arguments. The first call starts filling the
        queues of the workers.
        """
        self.batches += 1
        with self._lock:
            if not self._began and not self.synthetic:
                for number in range(len(self._sources)):
                    filler = threading.Thread(target=self._fill_queue, args=(number,), daemon=True)
                    filler.start()
                    self._fillers.append(filler)
            self._began = True
        return ()

    def note_step_end(self, worker: int, scheduled: float) -> None:
        """Adds the wait of a step that has ended to ``wait_seconds``, and allows the thread of its
        worker to put one more batch into the worker's queue.

        `scheduled` is the time (``time.perf_counter``) at which the step was scheduled. The step
        has waited from then, or from the end of the worker's previous step, until its batch was
        ready.
        """
        now = time.perf_counter()
        with self._lock:
            if not self.synthetic:
                ready = min(self._ready[worker].popleft(), now)
                waited = max(0.0, ready - max(scheduled, self._ended[worker]))
                self.wait_seconds += waited / len(self._sources)
            self._ended[worker] = now
        self._wanted[worker].release()

    def sources_to_time(self) -> tuple[InputSource, ...]:
        """Returns the inputs of the workers, after the threads that read them have ended."""
        self._stop_filling()
        for filler in self._fillers:
            filler.join()
        return super().sources_to_time()

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """See `InputSource.close`."""
        self._stop_filling()
        super().close(timeout_seconds)

    def _stop_filling(self) -> None:
        self._closed = True
        for wanted in self._wanted:
            wanted.release()

    def _fill_queue(self, worker: int) -> None:
        source = self._sources[worker]
        host = source.spec.host
        while True:
            self._wanted[worker].acquire()
            if self._closed:
                return
            try:
                (batch,) = source.next()
                parts = list(_batch_by_element(source, batch).values())
                self._ready[worker].append(time.perf_counter())
                with tf.device(host):
                    tf.raw_ops.QueueEnqueueV2(handle=self._queues[worker], components=parts)
            except Exception as error:
                # UnavailableError means that the worker is lost. The watchdog reports that, so it
                # is not stored here.
                if not isinstance(error, tf.errors.UnavailableError):
                    self._error = self._error or error
                    # All steps that wait for a batch fail when their queue is closed.
                    with tf.device(host):
                        tf.raw_ops.QueueCloseV2(handle=self._queues[worker])
                return

    def _queue_handle(self) -> tf.Tensor:
        return tf.raw_ops.FIFOQueueV2(
            component_types=self._types,
            shapes=self._shapes,
            capacity=8 + 2 * self._ahead,
            shared_name=_QUEUE,
        )

    def _store_synthetic(self, source: InputSource) -> None:
        with tf.device(source.devices[0]):
            batch = source.get_tower_batch(0, ())
            for name, value in _batch_by_element(source, batch).items():
                _assign_variable(f"{_SYNTHETIC}/{name}", value)


def _batch_by_element(source: InputSource, batch: TowerBatch) -> dict[str, Any]:
    elements = source.spec.delivered_elements
    features = values_by_name(elements, "feature", batch.features)
    by_element = {**features, **values_by_name(elements, "label", batch.labels)}
    return {element.name: by_element[element.name] for element in elements}


def _assign_variable(name: str, value: tf.Tensor) -> None:
    handle = tf.raw_ops.VarHandleOp(dtype=value.dtype, shape=value.shape, shared_name=name)
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _read_variable(name: str, dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
