"""Running steps and timing them without stalling the device.

On the CPU a traced step has finished when its call returns, so each step is timed from
before its input is fetched until its loss is read. On a GPU the call only enqueues
kernels. There a second thread asks for the loss as soon as the step is launched, before
the next one is: a copy from the device waits for what was enqueued before it, and only
for that. The main thread launches the next step meanwhile (`lag=1`), so the device always
has work, and the time of a step is the distance between two completions as the reading
thread saw them. The loss of a step depends on all of its weight updates, so a loss that
has been read means a step that is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Handle = TypeVar("Handle")
Values = TypeVar("Values")


def _never(step: int) -> bool:
    del step
    return False


class StepLoop(Generic[Handle, Values]):
    """Launches steps, reads their results `lag` steps later and times them.

    Attributes:
      launch: fetches input, starts one step, returns a handle on its results.
      read: turns a handle into values; blocks until the step is over.
      lag: 0 where a launched step has finished, 1 on asynchronous devices.
      clock: seconds, monotonic.
      reader: makes the executor, of one thread, on which results are read when they lag.
    """

    def __init__(
        self,
        launch: Callable[[], Handle],
        read: Callable[[Handle], Values],
        lag: int,
        clock: Callable[[], float] = time.perf_counter,
        reader: Callable[[], Executor] = lambda: ThreadPoolExecutor(1, "cnnbench-reader"),
    ) -> None:
        if lag not in (0, 1):
            raise ValueError(f"lag is {lag}; 0 and 1 are possible")
        self.launch = launch
        self.read = read
        self.lag = lag
        self.clock = clock
        self._reader = reader

    def run(
        self,
        steps: int,
        done: Callable[[int, float, Values], None],
        pause_due: Callable[[int], bool] = _never,
        pause: Callable[[int], bool] = _never,
    ) -> int:
        """Runs `steps` steps.

        Args:
          steps: how many.
          done: called after each step, in order, with its number (from 1), its
            wall time in seconds and its values.
          pause_due: whether `pause` must be called after the step of that number.
          pause: called with nothing in flight, outside any step's time; True ends the
            loop.

        Returns:
          The number of steps run; fewer than `steps` when `pause` ended the loop.
        """
        if self.lag:
            return self._run_lagged(steps, done, pause_due, pause)
        launch, read, clock = self.launch, self.read, self.clock
        for step in range(1, steps + 1):
            start = clock()
            values = read(launch())
            done(step, clock() - start, values)
            if pause_due(step) and pause(step):
                return step
        return steps

    def _run_lagged(
        self,
        steps: int,
        done: Callable[[int, float, Values], None],
        pause_due: Callable[[int], bool],
        pause: Callable[[int], bool],
    ) -> int:
        with self._reader() as reader:
            start = self.clock()
            in_flight: Future[tuple[Values, float]] | None = None
            for step in range(1, steps + 1):
                launched = reader.submit(self._read_and_time, self.launch())
                if in_flight is not None:
                    start = self._finish(step - 1, in_flight, start, done)
                in_flight = launched
                due = pause_due(step)
                if due or step == steps:
                    self._finish(step, in_flight, start, done)
                    in_flight = None
                    if due and pause(step):
                        return step
                    start = self.clock()
        return steps

    def _read_and_time(self, handle: Handle) -> tuple[Values, float]:
        return self.read(handle), self.clock()

    def _finish(
        self,
        step: int,
        result: Future[tuple[Values, float]],
        start: float,
        done: Callable[[int, float, Values], None],
    ) -> float:
        values, end = result.result()
        done(step, end - start, values)
        return end
