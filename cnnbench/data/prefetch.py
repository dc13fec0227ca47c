"""Inputs that copy batches to the devices before they are needed, inputs that a strategy
distributes, and the joined input of several workers.

Some steps run on whichever worker is idle. TensorFlow chooses the worker when it runs the step, and
passes the same arguments to every worker. Therefore the state of a worker is stored in resources of
its process, with the same names on all workers: a variable with the worker's number, variables with
synthetic batches, or a queue of batches.
"""

from __future__ import annotations

import dataclasses
import itertools
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.base import plugins
from cnnbench.base.job import is_cpu
from cnnbench.data.augment import mixed_batches
from cnnbench.data.dataset import CLOSE_SECONDS, InputSource, InputSpec, TowerBatch, close_inputs
from cnnbench.data.pipeline import (
    Pipeline,
    PipelineStage,
    check_batch,
    make_copy_to_device,
    refuse_python_code,
)
from cnnbench.errors import DataError
from cnnbench.flags.groups.strategies import StrategyParams
from cnnbench.models.elements import values_by_name
from cnnbench.records.run import SkippedRecords
from cnnbench.variable_mgr.distribute import clone_for_input

# Prefetching: batches are copied from the host to the devices before the steps need them

Step = tuple[TowerBatch, ...]
PendingStep = tuple["TowerBatch | Future[TowerBatch]", ...]
"""The batches of a step. Copies to the devices may still be in progress."""

THREAD_NAME = "cnnbench-input"
"""Name of the threads that read batches, and of the threads that delete iterators."""


class PipelineInput(InputSource):
    """Input from files: copies the batches of a host pipeline to the devices of the towers.

    With ``datasets_use_prefetch``, a background thread keeps the batches of
    ``datasets_prefetch_buffer_size`` steps ready on the devices. Without it, `next` reads and
    copies. Copies to GPUs run concurrently, see `DeviceCopier`.
    """

    def __init__(self, spec: InputSpec, devices: Sequence[str], pipeline: Pipeline) -> None:
        super().__init__(spec, devices, pipeline.num_examples)
        self._pipeline = pipeline
        self._copies: DeviceCopier | None = None
        if not all(map(is_cpu, devices)):
            self._copies = DeviceCopier(devices, 1 + spec.datasets_prefetch_buffer_size)
        # The tf.data data set is kept, because evaluations read it several times.
        self._dataset: tf.data.Dataset | None = None
        self._steps: BatchReader | None = None
        self._prefetcher: _Prefetcher | None = None
        self._produce: Callable[[], PendingStep] | None = None
        self._fresh = False
        self._stop: Callable[[], object] | None = None
        self._waits_since: float | None = None
        self._passed_over_before = 0

    def next(self) -> Step:
        """See `InputSource.next`. Adds the time for which the call blocks to ``wait_seconds``."""
        start = self._waits_since = time.perf_counter()
        try:
            produce = self._produce or self._start_reading()
            self._fresh = False
            return tuple(
                batch.result() if isinstance(batch, Future) else batch for batch in produce()
            )
        finally:
            self.wait_seconds += time.perf_counter() - start
            self._waits_since = None
            self.batches += 1

    def refuse_python_code(self, mode: str, *, coordinated: bool) -> None:
        """See `cnnbench.data.pipeline.refuse_python_code`."""
        refuse_python_code(self._pipeline, mode, coordinated=coordinated)

    def seconds_waiting_by_shard(self) -> dict[int, float]:
        """See `InputSource.seconds_waiting_by_shard`."""
        since = self._waits_since
        return {} if since is None else {self.spec.shard_index: time.perf_counter() - since}

    def skipped_records_by_shard(self, steps: int) -> list[int]:
        """See `InputSource.skipped_records_by_shard`."""
        here = self._pipeline.count_skipped_records(steps * self._examples_per_step)
        return [self._passed_over_before + here]

    def resume(self, steps: int, skipped_by_shard: Sequence[int] = ()) -> bool:
        """See `InputSource.resume`."""
        if len(skipped_by_shard) == self.spec.num_shards:
            self._passed_over_before = skipped_by_shard[self.spec.shard_index]
        self._pipeline.delivered = steps * self._examples_per_step
        self._pipeline.start = self._pipeline.delivered + self._passed_over_before
        return self._pipeline.resumable

    @property
    def _examples_per_step(self) -> int:
        return self.spec.process_batch_size * self.spec.passes

    def stages(self) -> list[PipelineStage]:
        """See `Pipeline.stages`."""
        spec = self.spec
        with tf.device(spec.host):
            stages = self._pipeline.stages()
            if spec.mixes_images:
                batches = mixed_batches(self._pipeline)
                stages.append(PipelineStage("mix", batches, spec.batch_per_device))
            return stages

    def skipped(self) -> SkippedRecords:
        """See `Pipeline.skipped`."""
        return self._pipeline.skipped()

    def restart(self) -> None:
        """See `InputSource.restart`. Does nothing before the first batch is delivered."""
        if not self._fresh:
            self.close()
            self._start_reading()

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Ends the background thread and drops what it has read; see `InputSource.close`."""
        if self._stop is not None:
            self._stop()
        if self._prefetcher is not None:
            self._prefetcher.join(timeout_seconds)
        if self._steps is not None:
            self._steps.close()
        self._produce = self._stop = self._steps = self._prefetcher = None

    def _start_reading(self) -> Callable[[], PendingStep]:
        ends = ExitStack()
        # The finalizer stops the reading threads even if close() is never called.
        self._stop = weakref.finalize(self, ends.close)
        begin_copy = None
        if self._copies is not None:
            self._copies.start()
            ends.callback(self._copies.stop)
            begin_copy = self._copies.begin_copy
        if self._dataset is None or self.spec.training:
            with tf.device(self.spec.host):
                self._dataset = mixed_batches(self._pipeline)
        opened = self._dataset.__iter__
        steps = BatchReader(self._pipeline, self.devices, opened, self.steps_per_epoch, begin_copy)
        self._steps, self._produce = steps, steps.next
        if self.spec.datasets_use_prefetch:
            self._prefetcher = _Prefetcher(steps.next, self.spec.datasets_prefetch_buffer_size)
            ends.callback(self._prefetcher.stop)
            self._produce = self._prefetcher.get
        self._fresh = True
        return self._produce


class BatchReader:
    """Reads the batches of each step from a pipeline, one for each device. In an evaluation, the
    last batch is padded.

    `opened` returns an iterator that starts with the first batch. `begin_copy` starts copying a
    batch to a tower's device. Without it, `next` copies.
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
        self._is_checked = plugins.is_defined_by_cnnbench(pipeline.spec.dataset.open)
        self._error: DataError | None = None
        self._host = pipeline.spec.host
        self._opened = opened
        with tf.device(self._host):
            self._iterator = opened()

    def close(self) -> None:
        """Deletes the iterator of the pipeline in a background thread."""
        dropped, self._iterator = [self._iterator], None
        delete_in_background(dropped)

    def next(self) -> PendingStep:
        """Returns the batches of the next step, one for each tower."""
        # A tf.data iterator would continue after a failed record, but a benchmark must not.
        if self._error is not None:
            raise self._error
        try:
            return self._next_batches()
        except (
            tf.errors.ResourceExhaustedError,
            *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError),
        ):
            # These errors are not caused by the data, so they are raised unchanged.
            raise
        except StopIteration:
            self._error = self._pipeline.make_end_of_data_error()
            raise self._error from None
        # UnicodeDecodeError is raised if the message of a TensorFlow error is not valid UTF-8.
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            self._error = self._pipeline.explain(error)
            raise self._error from error

    def _next_batches(self) -> PendingStep:
        if self._pipeline.spec.training:
            elements = self._pipeline.spec.delivered_elements
            batches = [next(self._iterator) for _ in self._devices]
            return tuple(
                self._copy_to_tower(tower, TowerBatch.from_values(elements, self._checked(batch)))
                for tower, batch in enumerate(batches)
            )
        if self._step_in_pass == self._steps_per_pass:
            self._step_in_pass = 0
            self.close()
            with tf.device(self._host):
                self._iterator = self._opened()
        self._step_in_pass += 1
        return tuple(
            self._copy_to_tower(tower, self._next_padded()) for tower in range(len(self._devices))
        )

    def _checked(self, batch: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Returns the batch. If it is the first batch of a plug-in's pipeline, also checks its
        dtypes and shapes, because the specs of the pipeline may have unknown sizes.
        """
        if not self._is_checked:
            check_batch(self._pipeline, batch)
            self._is_checked = True
        return batch

    def _copy_to_tower(self, tower: int, batch: TowerBatch) -> TowerBatch | Future[TowerBatch]:
        if self._begin_copy is None:
            return copy_to_device(batch, self._devices[tower])
        return self._begin_copy(tower, batch)

    def _next_padded(self) -> TowerBatch:
        """Returns the next batch of an evaluation, padded by zeros with weight 0."""
        spec = self._pipeline.spec
        with tf.device(self._host):
            # At the end of the data, next() would cancel running operations of other threads.
            batch = self._iterator.get_next_as_optional()
            if batch.has_value():
                values = self._checked(batch.get_value())
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
        return TowerBatch.from_values(spec.elements, values, weights)


def delete_in_background(iterators: list[Any]) -> None:
    """Deletes iterators in a background thread, because deleting an iterator may take seconds.

    The destructor of an iterator waits for tf.data's autotuner, which is slow to stop.
    """
    threading.Thread(target=iterators.clear, name=THREAD_NAME, daemon=True).start()


def copy_to_device(batch: TowerBatch, device: str) -> TowerBatch:
    """Copies the tensors of a batch to a device."""
    with tf.device(device):
        copied = [None if x is None else tf.identity(x) for x in tf.nest.flatten(batch)]
        return TowerBatch(*tf.nest.pack_sequence_as(batch, copied))


class DeviceCopier:
    """Copies batches to the devices of the towers in a pool of threads, with one thread for each
    device and prefetched step.

    In TensorFlow 2.21, a copy to a GPU begins when everything that was enqueued on the GPU before
    has finished (``GPUUtil::CopyCPUTensorToGPU``): the current step and often the next step, too. A
    copy can therefore take as long as two steps. So copies to several devices, and copies for
    several steps to one device, must wait concurrently. With one copy at a time per device, as in
    tf.data's ``prefetch_to_device`` and multi-device iterator, a batch might arrive only every
    second step.
    """

    def __init__(self, devices: Sequence[str], steps: int) -> None:
        self._devices = devices
        self._most = len(devices) * steps
        self._functions: dict[int, Callable[[TowerBatch], TowerBatch]] = {}
        self._threads: ThreadPoolExecutor

    def start(self) -> None:
        """Creates the pool of threads that copy batches.

        Call this before the first copy, and again after `stop`."""
        self._threads = ThreadPoolExecutor(self._most, "cnnbench-copy")

    def begin_copy(self, tower: int, batch: TowerBatch) -> Future[TowerBatch]:
        """Starts copying a batch to a tower's device. Calls must not overlap."""
        if tower not in self._functions:
            self._functions[tower] = make_copy_to_device(self._devices[tower], batch)
        return self._threads.submit(self._copy_batch, tower, batch)

    def stop(self) -> None:
        """Cancels the copies that have not started, and ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _copy_batch(self, tower: int, batch: TowerBatch) -> TowerBatch:
        return self._functions[tower](batch)


def use_separate_tf_executor() -> None:
    """Gives the calling thread its own TensorFlow executor, which runs operations synchronously.

    By default, threads share an executor, and reading from an iterator waits for all its pending
    operations. So reading a batch for one worker would wait until another worker's step has ended.
    """
    run_synchronously = tf.config.experimental.set_synchronous_execution
    # Changing the execution mode of a thread makes TensorFlow give it a new executor.
    run_synchronously(False)
    run_synchronously(True)


class _Prefetcher(threading.Thread):
    """A thread that calls ``produce`` before its results are needed, and stores a limited number of
    results.

    The thread has no reference to the input that owns it, so that the input can be
    garbage-collected.
    """

    def __init__(self, produce: Callable[[], PendingStep], depth: int) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self._ready: queue.SimpleQueue[PendingStep | BaseException] = queue.SimpleQueue()
        # In addition to `depth` stored results, the thread produces one more result.
        self._room = threading.Semaphore(1 + max(1, depth))
        self._stopping = False
        self._error: BaseException | None = None
        self._produce = produce
        self.start()

    def get(self) -> PendingStep:
        """Returns the next result. If ``produce`` has raised an error, raises this error now and in
        all later calls.
        """
        if self._error is None:
            item = self._ready.get()
            if not isinstance(item, BaseException):
                self._room.release()
                return item
            self._error = item
        raise self._error

    def stop(self) -> None:
        """Ends the thread after its current result. May be called in exception handlers and when
        the process exits.
        """
        self._stopping = True
        self._room.release()
        # Replacing the queue frees the memory of unused batches.
        self._ready = queue.SimpleQueue()
        self._error = self._error or RuntimeError("the input has been closed")

    def run(self) -> None:
        """Produces results until `stop` is called or ``produce`` raises an error."""
        use_separate_tf_executor()
        item: PendingStep | BaseException = ()
        while not isinstance(item, BaseException):
            self._room.acquire()
            if self._stopping:
                return
            try:
                item = self._produce()
            except BaseException as error:
                item = error
            self._ready.put(item)


# Training input that a tf.distribute strategy shards, splits and copies to the devices


class InputDistribution:
    """Defines how a tf.distribute strategy distributes the batches of a pipeline to the devices.

    Args:
      strategy: strategy for the towers' devices.
      flags: with input_sharding "manual", the pipeline produces batches for single replicas from
        this worker's part of the data. Otherwise it produces global batches from all data, which
        TensorFlow splits. With auto_shard_policy "file", cnnbench assigns files to the pipelines
        itself, because TensorFlow cannot find the files of numbered records.

    Attributes:
      strategy: if each replica has its own pipeline, a strategy that is used only for this input.
      by_pipeline: whether a pipeline reads only its own part of the data; otherwise it reads all
        data.
    """

    def __init__(self, strategy: Any, flags: StrategyParams) -> None:
        self._manual = flags.input_sharding == "manual"
        # If each replica has its own pipeline, each of N replicas uses every Nth batch.
        self._per_replica = flags.input_replication == "per_replica"
        self.strategy = clone_for_input(strategy) if self._per_replica else strategy
        self._policy = flags.auto_shard_policy
        self.by_pipeline = self._manual or self._policy == "file"
        on_device = flags.prefetch_on_device
        self._on_device = not self._per_replica if on_device is None else on_device

    def examples_per_step(self, spec: InputSpec) -> int:
        """Returns how many examples one step of all workers takes from one pipeline."""
        if self.by_pipeline or self._policy == "off":
            return spec.process_batch_size * spec.passes
        return spec.batch_per_device * spec.passes * int(self.strategy.num_replicas_in_sync)

    def make_iterator(self, pipeline: Pipeline) -> Any:
        """Creates the iterator over batches; an element has one batch for each replica."""
        options = self._input_options(pipeline.spec)
        if not self._manual:
            dataset = self._global_batches(pipeline)
            return iter(self.strategy.experimental_distribute_dataset(dataset, options))

        def batches_of_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            batches = _declare_infinite(mixed_batches(pipeline))
            if not self._per_replica:
                return batches
            return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

        return iter(self.strategy.distribute_datasets_from_function(batches_of_pipeline, options))

    def _global_batches(self, pipeline: Pipeline) -> tf.data.Dataset:
        options = tf.data.Options()
        policies = tf.data.experimental.AutoShardPolicy
        policy = "OFF" if self.by_pipeline else self._policy.upper()
        options.experimental_distribute.auto_shard_policy = policies[policy]
        batch = pipeline.spec.batch_per_device * self.strategy.num_replicas_in_sync
        whole = mixed_batches(pipeline).rebatch(batch, drop_remainder=True)
        return _declare_infinite(whole).with_options(options)

    def _input_options(self, spec: InputSpec) -> tf.distribute.InputOptions:
        modes = tf.distribute.InputReplicationMode
        ahead = spec.datasets_prefetch_buffer_size if spec.datasets_use_prefetch else 0
        return tf.distribute.InputOptions(
            experimental_fetch_to_device=self._on_device,
            experimental_replication_mode=modes.PER_REPLICA
            if self._per_replica
            else modes.PER_WORKER,
            experimental_per_replica_buffer_size=ahead,
        )


def _declare_infinite(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Declares that a data set of training batches is endless. Otherwise tf.distribute would
    synchronise the workers before each batch.
    """
    endless = tf.data.experimental.INFINITE_CARDINALITY
    return batches.apply(tf.data.experimental.assert_cardinality(endless))


class DistributedInput(PipelineInput):
    """An input from files whose batches a tf.distribute strategy copies to the devices."""

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

    def _start_reading(self) -> Callable[[], PendingStep]:
        # The distributed data set prefetches batches, so no background thread is needed.
        steps = _StrategyBatchReader(self._pipeline, self.devices, self._distribution)
        self._steps, self._produce = steps, steps.next
        self._fresh = True
        return self._produce


class _StrategyBatchReader(BatchReader):
    def __init__(
        self, pipeline: Pipeline, devices: Sequence[str], distribution: InputDistribution
    ) -> None:
        self._distribution = distribution
        super().__init__(pipeline, devices, partial(distribution.make_iterator, pipeline))

    def _next_batches(self) -> PendingStep:
        elements = self._pipeline.spec.delivered_elements
        of_replicas = self._distribution.strategy.experimental_local_results
        values = {name: of_replicas(value) for name, value in next(self._iterator).items()}
        batches = ({n: v[tower] for n, v in values.items()} for tower in range(len(self._devices)))
        return tuple(
            copy_to_device(TowerBatch.from_values(elements, self._checked(batch)), device)
            for batch, device in zip(batches, self._devices, strict=True)
        )


# Joined inputs of several workers: each input is read and prepared on its own worker

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
        # The two numbers of a tower are the index of its source and its own index in the source.
        self._places = [
            (which, tower)
            for which, source in enumerate(sources)
            for tower in range(len(source.devices))
        ]
        # Each source has a slice: the arguments of the step that belong to the source.
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

    def resume(self, steps: int, skipped_by_shard: Sequence[int] = ()) -> bool:
        """See `InputSource.resume`."""
        resumed = [source.resume(steps, skipped_by_shard) for source in self._sources]
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
        # By worker: when its next batches became ready, and when its latest step ended.
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

    def end_step(self, worker: int, scheduled: float) -> None:
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
                # UnavailableError means that the worker was lost; other code reports the loss.
                if not isinstance(error, tf.errors.UnavailableError):
                    self._error = self._error or error
                    # Closing the queue makes all steps fail that are waiting for a batch.
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
