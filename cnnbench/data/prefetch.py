"""From the host pipeline to the devices, ahead of the step that needs it."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.data.findings import Skipped
from cnnbench.data.pipeline import Pipeline, Stage
from cnnbench.data.source import InputSource, TowerBatch
from cnnbench.data.spec import InputSpec
from cnnbench.errors import DataError

Step = tuple[TowerBatch, ...]


class PipelineInput(InputSource):
    """Real input: batches of a host pipeline, copied to each tower's device.

    With ``datasets_use_prefetch`` a background thread keeps ``datasets_prefetch_buffer_size``
    steps ready on the devices; without it, `next` reads and copies while the caller waits.
    """

    def __init__(self, spec: InputSpec, devices: Sequence[str], pipeline: Pipeline) -> None:
        super().__init__(spec, devices, pipeline.num_examples)
        self._pipeline = pipeline
        self._produce: Callable[[], Step] | None = None
        self._fresh = False
        self._stop: Callable[[], object] | None = None

    def next(self) -> Step:
        """See `InputSource.next`; the time blocked here is added to ``wait_seconds``."""
        start = time.perf_counter()
        produce = self._produce or self._begin()
        self._fresh = False
        try:
            return produce()
        finally:
            self.wait_seconds += time.perf_counter() - start

    def stages(self) -> list[Stage]:
        """See `Pipeline.stages`."""
        with tf.device(self.spec.host):
            return self._pipeline.stages()

    def skipped(self) -> Skipped:
        """See `Pipeline.skipped`."""
        return self._pipeline.skipped()

    def restart(self) -> None:
        """See `InputSource.restart`; free of charge when nothing has been delivered yet."""
        if not self._fresh:
            self.close()
            self._begin()

    def close(self) -> None:
        """Ends the background thread and drops what it had ready."""
        if self._stop is not None:
            self._stop()
        self._produce = self._stop = None

    def _begin(self) -> Callable[[], Step]:
        steps = Steps(self._pipeline, self.devices, self.steps_per_epoch)
        self._produce = steps.next
        if self.spec.datasets_use_prefetch:
            prefetcher = _Prefetcher(steps.next, self.spec.datasets_prefetch_buffer_size)
            self._produce = prefetcher.get
            # Also when nobody calls close(): the thread must end before TensorFlow is torn down.
            self._stop = weakref.finalize(self, prefetcher.stop)
        self._fresh = True
        return self._produce


class Steps:
    """Assembles steps from tower batches, and pads the end of an exact pass."""

    def __init__(self, pipeline: Pipeline, devices: Sequence[str], steps_per_pass: int) -> None:
        self._pipeline = pipeline
        self._devices = devices
        self._steps_per_pass = steps_per_pass
        self._step_in_pass = 0
        self._error: DataError | None = None
        self._host = pipeline.spec.host
        with tf.device(self._host):
            self._iterator = self._open()

    def _open(self) -> Any:
        """Begins to read; where the pipeline does."""
        self._dataset = self._pipeline.tower_batches()
        return iter(self._dataset)

    def next(self) -> Step:
        """The next step's batches."""
        # A tf.data iterator goes on behind the record that failed; a benchmark must not.
        if self._error is not None:
            raise self._error
        try:
            return self._next()
        except (
            tf.errors.ResourceExhaustedError,
            *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError),
        ):
            raise  # no fault of the data, but of memory, or of the process that reads it
        except StopIteration:
            self._error = self._pipeline.run_dry()
            raise self._error from None
        # TensorFlow cannot hand over a message with foreign bytes in it: UnicodeDecodeError.
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            self._error = self._pipeline.explain(error)
            raise self._error from error

    def _next(self) -> Step:
        if self._pipeline.spec.training:
            elements = self._pipeline.spec.elements
            batches = [next(self._iterator) for _ in self._devices]
            return tuple(
                to_device(TowerBatch.of(elements, batch), device)
                for batch, device in zip(batches, self._devices, strict=True)
            )
        if self._step_in_pass == self._steps_per_pass:
            self._step_in_pass = 0
            with tf.device(self._host):
                self._iterator = iter(self._dataset)
        self._step_in_pass += 1
        return tuple(to_device(self._padded(), device) for device in self._devices)

    def _padded(self) -> TowerBatch:
        """The next batch of the pass, filled up with zeros of weight 0."""
        spec = self._pipeline.spec
        with tf.device(self._host):
            values = next(self._iterator, None)
            if values is None:
                values = {e.name: tf.zeros([0, *e.sizes], spec.dtype_of(e)) for e in spec.elements}
            present = int(values[spec.elements[0].name].shape[0])
            missing = spec.batch_per_device - present
            if missing:
                values = {name: _filled_up(value, missing) for name, value in values.items()}
            weights = tf.concat([tf.ones([present]), tf.zeros([missing])], axis=0)
        return TowerBatch.of(spec.elements, values, weights)


def _filled_up(value: tf.Tensor, missing: int) -> tf.Tensor:
    return tf.pad(value, [[0, missing], *[[0, 0]] * (len(value.shape) - 1)])


def to_device(batch: TowerBatch, device: str) -> TowerBatch:
    """The batch on a device."""
    with tf.device(device):
        copied = [None if x is None else tf.identity(x) for x in tf.nest.flatten(batch)]
        return TowerBatch(*tf.nest.pack_sequence_as(batch, copied))


class _Prefetcher:
    """Calls ``produce`` in a thread, a bounded number of results ahead.

    It keeps no reference to the input that owns it, so that input can be collected.
    """

    _POLL_SECONDS = 0.1
    _JOIN_SECONDS = 10.0

    def __init__(self, produce: Callable[[], Step], depth: int) -> None:
        self._ready: queue.Queue[Step | BaseException] = queue.Queue(max(1, depth))
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._fill, args=(produce,), name="cnnbench-input", daemon=True
        )
        self._thread.start()

    def get(self) -> Step:
        """The next result; an error of ``produce`` is raised here, again on every later call."""
        if self._error is None:
            item = self._ready.get()
            if not isinstance(item, BaseException):
                return item
            self._error = item
        raise self._error

    def stop(self) -> None:
        """Ends the thread. Safe to call twice, from an exception handler or at exit."""
        self._stopping.set()
        deadline = time.monotonic() + self._JOIN_SECONDS
        # Emptying the queue frees a producer that waits for room in it.
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._drain()
            self._thread.join(self._POLL_SECONDS)
        self._drain()
        if self._error is None:
            self._error = RuntimeError("the input has been closed")

    def _drain(self) -> None:
        while True:
            try:
                self._ready.get_nowait()
            except queue.Empty:
                return

    def _fill(self, produce: Callable[[], Step]) -> None:
        while not self._stopping.is_set():
            try:
                item: Step | BaseException = produce()
            except BaseException as error:
                item = error
            self._put(item)
            if isinstance(item, BaseException):
                return

    def _put(self, item: Step | BaseException) -> None:
        while not self._stopping.is_set():
            try:
                self._ready.put(item, timeout=self._POLL_SECONDS)
            except queue.Full:
                continue
            return
