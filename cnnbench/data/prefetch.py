"""Inputs that are prefetched to devices, also by distributed datasets, and joined inputs.

For a step that runs on any idle worker, each worker has its batches by name. TensorFlow chooses the
worker when it runs the step, and passes the same arguments to all. A worker's own state is
therefore a resource of its process, under the same name on all workers: a variable with its number,
synthetic batches in variables, or a queue of batches.
"""

from __future__ import annotations

import dataclasses
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.base.job import is_cpu
from cnnbench.data.dataset import CLOSE_SECONDS, InputSource, InputSpec, TowerBatch, close_all
from cnnbench.data.pipeline import Pipeline, PipelineStage, copied_to
from cnnbench.errors import DataError
from cnnbench.models.spec import by_name
from cnnbench.records.run import SkippedRecords

# Prefetching of batches from the host pipeline to the devices.

Step = tuple[TowerBatch, ...]
Copying = tuple["TowerBatch | Future[TowerBatch]", ...]
"""A step whose batches may still be in transfer to the devices."""

THREAD_NAME = "cnnbench-input"
"""Name of threads that read, and of those that drop what has been read."""


class PipelineInput(InputSource):
    """Real input: batches of a host pipeline, copied to each tower's device.

    With ``datasets_use_prefetch`` a background thread keeps ``datasets_prefetch_buffer_size`` steps
    ready on the devices; without it, `next` reads and copies. The copies of a step to GPUs are
    concurrent, see `DeviceCopies`.
    """

    def __init__(self, spec: InputSpec, devices: Sequence[str], pipeline: Pipeline) -> None:
        super().__init__(spec, devices, pipeline.num_examples)
        self._pipeline = pipeline
        self._copies: DeviceCopies | None = None
        if not all(map(is_cpu, devices)):
            self._copies = DeviceCopies(devices, 1 + spec.datasets_prefetch_buffer_size)
        self._dataset: tf.data.Dataset | None = None  # an evaluation repeats it
        self._steps: Steps | None = None
        self._prefetcher: _Prefetcher | None = None
        self._produce: Callable[[], Copying] | None = None
        self._fresh = False
        self._stop: Callable[[], object] | None = None
        self._waits_since: float | None = None
        self._passed_over_before = 0

    def next(self) -> Step:
        """See `InputSource.next`; the time blocked here is added to ``wait_seconds``."""
        start = self._waits_since = time.perf_counter()
        try:
            produce = self._produce or self._begin()
            self._fresh = False
            return tuple(
                batch.result() if isinstance(batch, Future) else batch for batch in produce()
            )
        finally:
            self.wait_seconds += time.perf_counter() - start
            self._waits_since = None
            self.batches += 1

    def waiting(self) -> dict[int, float]:
        """See `InputSource.waiting`."""
        since = self._waits_since
        return {} if since is None else {self.spec.shard_index: time.perf_counter() - since}

    def passed_over(self, steps: int) -> list[int]:
        """See `InputSource.passed_over`."""
        here = self._pipeline.passed_over(steps * self._examples_per_step)
        return [self._passed_over_before + here]

    def resume(self, steps: int, passed_over: Sequence[int] = ()) -> bool:
        """See `InputSource.resume`."""
        if len(passed_over) == self.spec.num_shards:
            self._passed_over_before = passed_over[self.spec.shard_index]
        self._pipeline.start = steps * self._examples_per_step + self._passed_over_before
        return self._pipeline.resumable

    @property
    def _examples_per_step(self) -> int:
        return self.spec.global_batch

    def stages(self) -> list[PipelineStage]:
        """See `Pipeline.stages`."""
        with tf.device(self.spec.host):
            return self._pipeline.stages()

    def skipped(self) -> SkippedRecords:
        """See `Pipeline.skipped`."""
        return self._pipeline.skipped()

    def restart(self) -> None:
        """See `InputSource.restart`; does nothing before the first batch was delivered."""
        if not self._fresh:
            self.close()
            self._begin()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Ends the background thread and drops its batches; see `InputSource.close`."""
        if self._stop is not None:
            self._stop()
        if self._prefetcher is not None:
            self._prefetcher.join(seconds)
        if self._steps is not None:
            self._steps.close()
        self._produce = self._stop = self._steps = self._prefetcher = None

    def _begin(self) -> Callable[[], Copying]:
        ends = ExitStack()
        self._stop = weakref.finalize(self, ends.close)  # also when nobody calls close()
        begin_copy = None
        if self._copies is not None:
            self._copies.start()
            ends.callback(self._copies.stop)
            begin_copy = self._copies.begin
        if self._dataset is None or self.spec.training:
            with tf.device(self.spec.host):
                self._dataset = self._pipeline.tower_batches()
        opened = self._dataset.__iter__
        steps = Steps(self._pipeline, self.devices, opened, self.steps_per_epoch, begin_copy)
        self._steps, self._produce = steps, steps.next
        if self.spec.datasets_use_prefetch:
            self._prefetcher = _Prefetcher(steps.next, self.spec.datasets_prefetch_buffer_size)
            ends.callback(self._prefetcher.stop)
            self._produce = self._prefetcher.get
        self._fresh = True
        return self._produce


class Steps:
    """Assembles the batches of steps, and pads the end of an exact pass.

    `opened` returns an iterator over the batches from the first on. `begin_copy` starts the copy of
    a batch to the device of a tower; without it `next` copies.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        devices: Sequence[str],
        opened: Callable[[], Any],
        steps_per_pass: int = 0,
        begin_copy: Callable[[int, TowerBatch], Future[TowerBatch]] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._devices = devices
        self._begin_copy = begin_copy
        self._steps_per_pass = steps_per_pass
        self._step_in_pass = 0
        self._error: DataError | None = None
        self._host = pipeline.spec.host
        self._opened = opened
        with tf.device(self._host):
            self._iterator = opened()

    def close(self) -> None:
        """Drops the iterator."""
        dropped, self._iterator = [self._iterator], None
        drop(dropped)

    def next(self) -> Copying:
        """The next step's batches."""
        # A tf.data iterator continues after a failed record; a benchmark must not.
        if self._error is not None:
            raise self._error
        try:
            return self._next()
        except (
            tf.errors.ResourceExhaustedError,
            *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError),
        ):
            raise  # not an error of the data
        except StopIteration:
            self._error = self._pipeline.run_dry()
            raise self._error from None
        # TensorFlow cannot hand over a message with foreign bytes in it: UnicodeDecodeError.
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            self._error = self._pipeline.explain(error)
            raise self._error from error

    def _next(self) -> Copying:
        if self._pipeline.spec.training:
            elements = self._pipeline.spec.elements
            batches = [next(self._iterator) for _ in self._devices]
            return tuple(
                self._to_tower(tower, TowerBatch.of(elements, batch))
                for tower, batch in enumerate(batches)
            )
        if self._step_in_pass == self._steps_per_pass:
            self._step_in_pass = 0
            self.close()
            with tf.device(self._host):
                self._iterator = self._opened()
        self._step_in_pass += 1
        return tuple(self._to_tower(tower, self._padded()) for tower in range(len(self._devices)))

    def _to_tower(self, tower: int, batch: TowerBatch) -> TowerBatch | Future[TowerBatch]:
        if self._begin_copy is None:
            return to_device(batch, self._devices[tower])
        return self._begin_copy(tower, batch)

    def _padded(self) -> TowerBatch:
        """The next batch of the pass, filled up with zeros of weight 0."""
        spec = self._pipeline.spec
        with tf.device(self._host):
            # An error at the end would also cancel what other threads run in that process.
            batch = self._iterator.get_next_as_optional()
            if batch.has_value():
                values = batch.get_value()
            else:
                values = {e.name: tf.zeros([0, *e.sizes], spec.dtype_of(e)) for e in spec.elements}
            present = int(values[spec.elements[0].name].shape[0])
            missing = spec.batch_per_device - present
            if missing:
                values = {
                    name: tf.pad(value, [[0, missing], *[[0, 0]] * (len(value.shape) - 1)])
                    for name, value in values.items()
                }
            weights = tf.concat([tf.ones([present]), tf.zeros([missing])], axis=0)
        return TowerBatch.of(spec.elements, values, weights)


def drop(iterators: list[Any]) -> None:
    """Empties a list in a thread, which its elements may keep busy for seconds.

    The destructor of an iterator waits for the autotuner of tf.data, which notices late that it has
    to end.
    """
    threading.Thread(target=iterators.clear, name=THREAD_NAME, daemon=True).start()


def to_device(batch: TowerBatch, device: str) -> TowerBatch:
    """Copies a batch to a device."""
    with tf.device(device):
        copied = [None if x is None else tf.identity(x) for x in tf.nest.flatten(batch)]
        return TowerBatch(*tf.nest.pack_sequence_as(batch, copied))


class DeviceCopies:
    """Copies batches to the towers' devices, with a thread for each device and each of `steps`.

    In TensorFlow 2.21 a copy to a GPU begins when everything that was enqueued there before it is
    done (``GPUUtil::CopyCPUTensorToGPU``): the current step and, often, the one launched ahead. It
    therefore takes up to two steps, and the copies to several devices, and those of two steps to
    one device, have to wait at the same time. One copy at a time per device, as in tf.data's
    ``prefetch_to_device`` and multi-device iterator, may deliver a batch in two steps.
    """

    def __init__(self, devices: Sequence[str], steps: int) -> None:
        self._devices = devices
        self._most = len(devices) * steps
        self._functions: dict[int, Callable[[TowerBatch], TowerBatch]] = {}
        self._threads: ThreadPoolExecutor

    def start(self) -> None:
        """Prepares copies; to be called before the first copy and after `stop`."""
        self._threads = ThreadPoolExecutor(self._most, "cnnbench-copy")

    def begin(self, tower: int, batch: TowerBatch) -> Future[TowerBatch]:
        """Starts the copy of a tower's batch; calls must not overlap."""
        if tower not in self._functions:
            self._functions[tower] = copied_to(self._devices[tower], batch)
        return self._threads.submit(self._copy, tower, batch)

    def stop(self) -> None:
        """Drops copies that have not begun, and ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _copy(self, tower: int, batch: TowerBatch) -> TowerBatch:
        return self._functions[tower](batch)


def use_own_executor() -> None:
    """Gives this thread its own TensorFlow executor, which runs operations synchronously.

    Threads share one by default, and reading from an iterator waits for everything pending there: a
    batch of one worker waited for the end of another worker's step.
    """
    run_synchronously = tf.config.experimental.set_synchronous_execution
    # A thread takes a new executor where its mode changes.
    run_synchronously(False)
    run_synchronously(True)


class _Prefetcher(threading.Thread):
    """A thread that calls ``produce``, a bounded number of results ahead.

    It holds no reference to the input that owns it, so that the input can be collected.
    """

    def __init__(self, produce: Callable[[], Copying], depth: int) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self._ready: queue.SimpleQueue[Copying | BaseException] = queue.SimpleQueue()
        self._room = threading.Semaphore(1 + max(1, depth))  # one is being produced
        self._stopping = False
        self._error: BaseException | None = None
        self._produce = produce
        self.start()

    def get(self) -> Copying:
        """The next result; an error of ``produce`` is raised here, again on every later call."""
        if self._error is None:
            item = self._ready.get()
            if not isinstance(item, BaseException):
                self._room.release()
                return item
            self._error = item
        raise self._error

    def stop(self) -> None:
        """Ends the thread after its result. Safe to call from an exception handler or at exit."""
        self._stopping = True
        self._room.release()
        self._ready = queue.SimpleQueue()  # frees the memory of batches that nobody takes
        self._error = self._error or RuntimeError("the input has been closed")

    def run(self) -> None:
        """Produces until `stop` or an error."""
        use_own_executor()
        item: Copying | BaseException = ()
        while not isinstance(item, BaseException):
            self._room.acquire()
            if self._stopping:
                return
            try:
                item = self._produce()
            except BaseException as error:
                item = error
            self._ready.put(item)


# Training input that a tf.distribute strategy shards, splits and copies to its devices.


@dataclass(frozen=True, kw_only=True)
class InputDistribution:
    """Distribution of the batches of a pipeline by a strategy.

    Attributes:
      strategy: over the towers' devices; with `per_replica` for this input alone.
      manual: the pipeline makes the replicas' batches, of this worker's part of the data; otherwise
        it makes global ones of all data, which TensorFlow splits.
      per_replica: with `manual`: each replica has a pipeline and keeps every Nth of its batches.
      auto_shard_policy: between workers: "auto", "data", "off", or "file", where each pipeline is
        given its own files, because TensorFlow finds none behind numbered records.
      prefetch_on_device: whether batches wait on the devices or on the host.
    """

    strategy: Any
    manual: bool = False
    per_replica: bool = False
    auto_shard_policy: str = "auto"
    prefetch_on_device: bool = True

    @property
    def by_pipeline(self) -> bool:
        """Whether a pipeline reads a part of the data or all of it."""
        return self.manual or self.auto_shard_policy == "file"

    def examples_per_step(self, spec: InputSpec) -> int:
        """Examples that a step of all workers takes from one pipeline."""
        if self.by_pipeline or self.auto_shard_policy == "off":
            return spec.global_batch
        return spec.batch_per_device * int(self.strategy.num_replicas_in_sync)

    def iterator(self, pipeline: Pipeline) -> Any:
        """Iterator over the batches; its elements hold a value per replica."""
        options = self._options(pipeline.spec)
        if not self.manual:
            dataset = self._global(pipeline)
            return iter(self.strategy.experimental_distribute_dataset(dataset, options))

        def of_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            batches = _endless(pipeline.tower_batches())
            if not self.per_replica:
                return batches
            return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

        return iter(self.strategy.distribute_datasets_from_function(of_pipeline, options))

    def _global(self, pipeline: Pipeline) -> tf.data.Dataset:
        options = tf.data.Options()
        policies = tf.data.experimental.AutoShardPolicy
        policy = "OFF" if self.by_pipeline else self.auto_shard_policy.upper()
        options.experimental_distribute.auto_shard_policy = policies[policy]
        batch = pipeline.spec.batch_per_device * self.strategy.num_replicas_in_sync
        whole = pipeline.tower_batches().rebatch(batch, drop_remainder=True)
        return _endless(whole).with_options(options)

    def _options(self, spec: InputSpec) -> tf.distribute.InputOptions:
        modes = tf.distribute.InputReplicationMode
        ahead = spec.datasets_prefetch_buffer_size if spec.datasets_use_prefetch else 0
        return tf.distribute.InputOptions(
            experimental_fetch_to_device=self.prefetch_on_device,
            experimental_replication_mode=modes.PER_REPLICA
            if self.per_replica
            else modes.PER_WORKER,
            experimental_per_replica_buffer_size=ahead,
        )


def _endless(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Declares training batches as infinite, which saves a synchronisation of workers per batch."""
    endless = tf.data.experimental.INFINITE_CARDINALITY
    return batches.apply(tf.data.experimental.assert_cardinality(endless))


class DistributedInput(PipelineInput):
    """A `PipelineInput` whose strategy copies batches to the devices."""

    def __init__(
        self,
        spec: InputSpec,
        devices: Sequence[str],
        pipeline: Pipeline,
        distribution: InputDistribution,
    ) -> None:
        super().__init__(spec, devices, pipeline)
        self._distribution = distribution

    @property
    def _examples_per_step(self) -> int:
        return self._distribution.examples_per_step(self.spec)

    def _begin(self) -> Callable[[], Copying]:
        # It reads ahead by itself.
        steps = _DistributedSteps(self._pipeline, self.devices, self._distribution)
        self._steps, self._produce = steps, steps.next
        self._fresh = True
        return self._produce


class _DistributedSteps(Steps):
    def __init__(
        self, pipeline: Pipeline, devices: Sequence[str], distribution: InputDistribution
    ) -> None:
        self._distribution = distribution
        super().__init__(pipeline, devices, partial(distribution.iterator, pipeline))

    def _next(self) -> Copying:
        elements = self._pipeline.spec.elements
        of_replicas = self._distribution.strategy.experimental_local_results
        values = {name: of_replicas(value) for name, value in next(self._iterator).items()}
        return tuple(
            to_device(TowerBatch.of(elements, {n: v[tower] for n, v in values.items()}), device)
            for tower, device in enumerate(self._devices)
        )


# Inputs of several workers joined; each is read and prepared on its worker.

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
