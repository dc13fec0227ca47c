"""Execution and timing of steps without stalling the device.

On the CPU a traced step has finished when its call returns, so each step is timed from
before its input is fetched until its loss is read. On a GPU the call only enqueues
kernels. There the next step is launched while one is in work (`lag=1`), so that the device
always has work, and the time of a step is the distance between two completions. The loss
of a step depends on all of its weight updates, so a loss that has been read means a step
that is over.

How a result is read decides whether the distances are right, and whether anything is
launched ahead at all. In TensorFlow 2.21, by its sources:

- A function that returns a tensor of the CPU returns when that tensor is there
  (``ProcessFunctionLibraryRuntime::RunSync`` waits for all parts of the function, and a
  ``_Recv`` is done when its copy is). A step that copied its own loss to the host would be
  over when its call returns, and the device would idle until the next one is launched.
  The results of a step therefore stay on its device.
- ``Tensor.numpy()`` of a tensor on a GPU waits twice (``TensorHandle::CopyToDevice``): for
  everything enqueued on the device, and then, since the stream of the copy waits for the
  compute stream as it is when the copy is issued (``GPUUtil::CopyGPUTensorToCPU``), for
  everything enqueued meanwhile. Where the next step is launched meanwhile, that is the end of
  the next step.
- A function that does nothing but copy its arguments to the host waits once, for what was
  enqueued before its copies were issued. `read` has to be such a function, one call for all
  results of a step (`cnnbench.data.copies`).

Therefore a second thread calls `read` as soon as a step is launched, and the next step is not
launched before it has. What lies between the call and the issue of the copies, some tens of
microseconds in TensorFlow, cannot be seen from Python; the launch has its own before it
enqueues the first kernel. Should a reading thread be held up there by the system, the time of
its step gains what was enqueued meanwhile, and the next one loses it; sums stay right.

The CPU time of a step is that of all threads of this process over the same interval, by one
more clock (CLOCK_PROCESS_CPUTIME_ID). It is read just outside the wall time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeAlias, TypeVar

Handle = TypeVar("Handle")
Values = TypeVar("Values")


class StepTime(NamedTuple):
    """Wall and CPU time of a step.

    Attributes:
      seconds: wall time.
      cpu_seconds: CPU time of this process, all threads, user and system.
    """

    seconds: float
    cpu_seconds: float

    def since(self, start: StepTime) -> StepTime:
        """The time between two readings of the clocks, of which this is the later one."""
        return StepTime(self.seconds - start.seconds, self.cpu_seconds - start.cpu_seconds)


_Reading: TypeAlias = "Future[tuple[Values, StepTime]]"


def _never(step: int) -> bool:
    del step
    return False


class StepLoop(Generic[Handle, Values]):
    """Launches steps, reads their results `lag` steps later and times them.

    Attributes:
      launch: fetches input, starts one step, returns a handle on its results.
      read: turns a handle into values; blocks until the step is over, and no longer.
      lag: 0 where a launched step has finished, or none is to be launched ahead; 1 on
        asynchronous devices.
      clock: seconds, monotonic.
      cpu_clock: seconds of CPU time of this process.
      reader: makes the executor, of two threads, on which results are read when they lag: a
        step's read is called while that of the step before still waits.
    """

    def __init__(
        self,
        launch: Callable[[], Handle],
        read: Callable[[Handle], Values],
        lag: int,
        clock: Callable[[], float] = time.perf_counter,
        reader: Callable[[], Executor] = lambda: ThreadPoolExecutor(2, "cnnbench-reader"),
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        if lag not in (0, 1):
            raise ValueError(f"lag is {lag}; 0 and 1 are possible")
        self.launch = launch
        self.read = read
        self.lag = lag
        self.clock = clock
        self.cpu_clock = cpu_clock
        self._reader = reader

    def run(
        self,
        steps: int,
        done: Callable[[int, StepTime, Values], None],
        pause_due: Callable[[int], bool] = _never,
        pause: Callable[[int], bool] = _never,
    ) -> int:
        """Runs `steps` steps.

        Args:
          done: called after each step, in order, with its number (from 1), its
            time and its values.
          pause_due: whether `pause` must be called after the step of that number.
          pause: called with nothing in flight, outside any step's time; True ends the
            loop.

        Returns:
          The number of steps run; fewer than `steps` when `pause` ended the loop.
        """
        if self.lag:
            return self._run_lagged(steps, done, pause_due, pause)
        launch, read, clock, cpu_clock = self.launch, self.read, self.clock, self.cpu_clock
        for step in range(1, steps + 1):
            cpu_start = cpu_clock()
            start = clock()
            values = read(launch())
            seconds = clock() - start
            done(step, StepTime(seconds, cpu_clock() - cpu_start), values)
            if pause_due(step) and pause(step):
                return step
        return steps

    def _run_lagged(
        self,
        steps: int,
        done: Callable[[int, StepTime, Values], None],
        pause_due: Callable[[int], bool],
        pause: Callable[[int], bool],
    ) -> int:
        with self._reader() as reader:
            start = self._now()
            before: _Reading[Values] | None = None
            for step in range(1, steps + 1):
                called = threading.Event()
                reading = reader.submit(self._read_and_time, self.launch(), called, before)
                if before is not None:
                    start = self._finish(step - 1, before, start, done)
                before = reading
                due = pause_due(step)
                if due or step == steps:
                    self._finish(step, reading, start, done)
                    before = None
                    if due and pause(step):
                        return step
                    start = self._now()
                called.wait()
        return steps

    def _read_and_time(
        self, handle: Handle, called: threading.Event, before: _Reading[Values] | None
    ) -> tuple[Values, StepTime]:
        called.set()
        values = self.read(handle)
        if before is not None:
            before.exception()  # waits; steps end in order, whichever thread wakes up first
        return values, self._now()

    def _now(self) -> StepTime:
        return StepTime(self.clock(), self.cpu_clock())

    def _finish(
        self,
        step: int,
        reading: _Reading[Values],
        start: StepTime,
        done: Callable[[int, StepTime, Values], None],
    ) -> StepTime:
        values, end = reading.result()
        done(step, end.since(start), values)
        return end
