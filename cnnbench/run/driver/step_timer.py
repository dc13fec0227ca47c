"""Execution and timing of steps without stalling the device.

On the CPU a traced step has finished when its call returns, so each step is timed from before its
input is fetched until its loss is read. On a GPU the call only enqueues kernels. There the next
step is launched while one runs (`lag=1`), so that the device always has work, and the time of a
step is the distance between two completions. The loss of a step depends on all of its weight
updates, so a loss that has been read means a step that is over.

A result is read on a second thread, because the read waits for its step. It must not wait for the
step behind it, so that one is launched once the read reports that later launches cannot delay it
(`cnnbench.data.copies.ScalarReader`). Results of a step therefore stay on its device: a function
that returns tensors of the host returns when they are there, and the device would idle until the
next launch. A step ends when its values arrive on the host, which the read reports.

The CPU time of a step is that of all threads of this process over the same interval, by one
more clock (CLOCK_PROCESS_CPUTIME_ID). It is read just outside the wall time.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from cnnbench.data.copies import ReadEvents

Handle = TypeVar("Handle")
Values = TypeVar("Values")


RESOLUTION = 1e-6
"""Minimum duration of a step, in seconds."""


class StepTime(NamedTuple):
    """Wall time of a step, and CPU time of this process: all threads, user and system."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> StepTime:
        """Readings of the clocks."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: StepTime) -> StepTime:
        """The time from the reading `start` of the clocks to this one."""
        return StepTime(self.seconds - start.seconds, self.cpu_seconds - start.cpu_seconds)


def never(step: int) -> bool:
    """False: no pause after this step."""
    del step
    return False


class StepLoop(Generic[Handle, Values]):
    """Launches steps, reads their results `lag` steps later and times them.

    Attributes:
      launch: fetches input, starts one step, returns a handle on its results.
      read: turns a handle into values; blocks until the step is over. Steps launched before
        its `issued` may delay it; without a call of `arrived` the step ends when it returns.
      lag: 1 on asynchronous devices, where a step is launched while the one before runs; 0 where a
        launched step has finished, or must finish before the next.
    """

    def __init__(
        self,
        launch: Callable[[], Handle],
        read: Callable[[Handle, ReadEvents], Values],
        lag: int,
    ) -> None:
        self.launch = launch
        self.read = read
        self.lag = lag

    def run(
        self,
        steps: int,
        done: Callable[[int, StepTime, Values], None],
        pause_due: Callable[[int], bool] = never,
        pause: Callable[[int], bool] = never,
    ) -> int:
        """Runs `steps` steps; returns how many: fewer when `pause` ended the loop.

        Args:
          done: called after each step, in order, with its number (from 1), its
            time and its values.
          pause_due: whether `pause` must be called after the step of that number.
          pause: called with nothing in flight, outside any step's time; True ends the
            loop.
        """
        if self.lag:
            return self._run_lagged(steps, done, pause_due, pause)
        for step in range(1, steps + 1):
            start = StepTime.now()
            values, end = self._read(self.launch(), lambda: None)
            done(step, end.since(start), values)
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
        start = StepTime.now()

        def finish(step: int, reading: Future[tuple[Values, StepTime]]) -> None:
            nonlocal start
            values, end = reading.result()
            # Steps end in order, though the stamp of a later one may have been read first.
            end = StepTime(
                max(end.seconds, start.seconds + RESOLUTION),
                max(end.cpu_seconds, start.cpu_seconds),
            )
            done(step, end.since(start), values)
            start = end

        # A step's read is called while that of the step before still waits.
        threads = ThreadPoolExecutor(2, "cnnbench-reader")
        try:
            before: Future[tuple[Values, StepTime]] | None = None
            for step in range(1, steps + 1):
                issued = threading.Event()
                try:
                    handle = self.launch()
                except Exception:
                    if before is not None:
                        finish(step - 1, before)  # was launched and is measured
                    raise
                reading = threads.submit(self._read, handle, issued.set)
                if before is not None:
                    finish(step - 1, before)
                before = reading
                due = pause_due(step)
                if due or step == steps:
                    finish(step, reading)
                    before = None
                    if due and pause(step):
                        return step
                    start = StepTime.now()
                issued.wait()
        finally:
            threads.shutdown(wait=False)  # after an error a GPU may hold them for ever
        return steps

    def _read(self, handle: Handle, issued: Callable[[], None]) -> tuple[Values, StepTime]:
        """The values of a step, and the time at which it was over."""
        ages: list[float] = []
        try:
            values = self.read(handle, ReadEvents(issued, ages.append))
        finally:
            issued()  # also after an error, which the caller raises
        now = StepTime.now()
        return values, now._replace(seconds=now.seconds - ages[0]) if ages else now


class LoopTime(NamedTuple):
    """Seconds: wall time, and user and system CPU time of this process with all its threads.

    The kernel counts the sum of user and system time exactly, and estimates the share of each by
    sampling at timer ticks.
    """

    wall: float
    user: float
    system: float

    @classmethod
    def now(cls) -> LoopTime:
        """Readings of the clocks."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.perf_counter(), usage.ru_utime, usage.ru_stime)

    def since(self, start: LoopTime) -> LoopTime:
        """The time from the reading `start` to this one."""
        return LoopTime(self.wall - start.wall, self.user - start.user, self.system - start.system)


class LoopTimer:
    """Times the loop from the timer's creation on."""

    def __init__(self) -> None:
        self._start = LoopTime.now()
        self._began = self._start.wall

    def loop(self) -> LoopTime:
        """The time of the loop so far; not defined within `away`."""
        return LoopTime.now().since(self._start)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Excludes a block from the time of the loop: turns of other processes, evaluations."""
        before = self.loop()
        try:
            yield
        finally:
            self._start = LoopTime.now().since(before)

    @property
    def wall_seconds(self) -> float:
        """Wall time since the beginning, `away` included."""
        return LoopTime.now().wall - self._began
