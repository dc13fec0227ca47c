"""Inputs that copy batches from the host to the devices before the steps need them."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from cnnbench.base import plugins
from cnnbench.base.job import is_cpu
from cnnbench.data.augment import mixed_batches
from cnnbench.data.copies import make_copy_to_device
from cnnbench.data.dataset import CLOSE_SECONDS, InputSource, InputSpec, TowerBatch
from cnnbench.data.pipeline import Pipeline, PipelineStage, check_batch, refuse_python_code
from cnnbench.errors import DataError
from cnnbench.records.input import SkippedRecords

Step = tuple[TowerBatch, ...]
PendingStep = tuple["TowerBatch | Future[TowerBatch]", ...]
"""The batches of a step. Copies to the devices may still be in progress."""

THREAD_NAME = "cnnbench-input"
"""Name of the threads that read batches, and of the threads that delete iterators."""

_building = threading.Lock()
"""Held while a data set is built: asynchronous workers start their inputs at the same time, but
TensorFlow then traces functions, which is not thread-safe.
"""


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
        # The tf.data data set is kept after a pass, because each evaluation reads it again.
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

    def resume(
        self, examples: int, global_batch: int, skipped_by_shard: Sequence[int] = ()
    ) -> bool:
        """See `InputSource.resume`."""
        if len(skipped_by_shard) == self.spec.num_shards:
            self._passed_over_before = skipped_by_shard[self.spec.shard_index]
        share = self._examples_per_step
        steps, rest = divmod(examples, global_batch)
        # The positions of a shard are counted in whole global batches (`positions_of`).
        rest = rest if share == global_batch else share * bool(rest)
        self._pipeline.delivered = steps * share + rest
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
        """Ends the background thread and drops unused batches; see `InputSource.close`."""
        if self._stop is not None:
            self._stop()
        if self._prefetcher is not None:
            self._prefetcher.join(timeout_seconds)
        if self._steps is not None:
            self._steps.close()
        self._produce = self._stop = self._steps = self._prefetcher = None

    def _start_reading(self) -> Callable[[], PendingStep]:
        ends = ExitStack()
        # The finalizer ends the reading threads even if `close` is never called.
        self._stop = weakref.finalize(self, ends.close)
        begin_copy = None
        if self._copies is not None:
            self._copies.start()
            ends.callback(self._copies.stop)
            begin_copy = self._copies.begin_copy
        if self._dataset is None or self.spec.training:
            with _building, tf.device(self.spec.host):
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
        # After a record that failed, a tf.data iterator would continue with the next one. A
        # benchmark must not: its results would be based on other data.
        if self._error is not None:
            raise self._error
        try:
            return self._next_batches()
        except (
            tf.errors.ResourceExhaustedError,
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.CancelledError,
        ):
            # These errors come from the machine or the job, not from the data, so they are raised
            # unchanged.
            raise
        except StopIteration:
            self._error = self._pipeline.make_end_of_data_error()
            raise self._error from None
        # If the message of a TensorFlow error is not valid UTF-8, UnicodeDecodeError is raised in
        # place of the error.
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            self._error = self._pipeline.explain(error)
            raise self._error from error

    def _next_batches(self) -> PendingStep:
        if self._pipeline.spec.training:
            elements = self._pipeline.spec.delivered_elements
            batches = [next(self._iterator) for _ in self._devices]
            return tuple(
                self._copy_to_tower(
                    tower, TowerBatch.from_values(elements, self._check_first(batch))
                )
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

    def _check_first(self, batch: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
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
            # At the end of the data, `next` would cancel running operations of other threads; this
            # method does not.
            batch = self._iterator.get_next_as_optional()
            if batch.has_value():
                values = self._check_first(batch.get_value())
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
    # TensorFlow gives a thread a new executor when the thread changes its execution mode.
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
        # In addition to the stored results, the thread is producing one more result.
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
        # The old queue contains batches that nobody will use; replacing it frees their memory.
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
