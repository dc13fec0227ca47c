"""Prefetching of batches from the host pipeline to the devices."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from cnnbench.base.jobs.devices import is_cpu
from cnnbench.data.copies import copied_to
from cnnbench.data.pipeline import Pipeline, PipelineStage
from cnnbench.data.source import CLOSE_SECONDS, InputSource, TowerBatch
from cnnbench.data.spec import InputSpec
from cnnbench.errors import DataError
from cnnbench.records.parts import SkippedRecords

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
