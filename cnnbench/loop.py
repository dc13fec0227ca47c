"""Running steps and timing them without stalling the device.

On the CPU a traced step has finished when its call returns, so each step is
timed from before its input is fetched until its loss is read. On a GPU the call
only enqueues kernels; reading the loss there and then would leave the device
idle until the next step is enqueued. So the loss of step i is read after step
i+1 has been launched (`lag=1`), and the time of a step is the distance between
two such completions. The loss of a step depends on all of its weight updates, so
a loss that has been read means a step that is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
    """

    def __init__(
        self,
        launch: Callable[[], Handle],
        read: Callable[[Handle], Values],
        lag: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if lag not in (0, 1):
            raise ValueError(f"lag is {lag}; 0 and 1 are possible")
        self.launch = launch
        self.read = read
        self.lag = lag
        self.clock = clock

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
        run = self._run_lagged if self.lag else self._run_in_step
        return run(steps, done, pause_due, pause)

    def _run_in_step(
        self,
        steps: int,
        done: Callable[[int, float, Values], None],
        pause_due: Callable[[int], bool],
        pause: Callable[[int], bool],
    ) -> int:
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
        launch, read, clock = self.launch, self.read, self.clock
        start = clock()
        in_flight: Handle | None = None
        for step in range(1, steps + 1):
            handle = launch()
            if in_flight is not None:
                values = read(in_flight)
                now = clock()
                done(step - 1, now - start, values)
                start = now
            in_flight = handle
            due = pause_due(step)
            if due or step == steps:
                values = read(in_flight)
                done(step, clock() - start, values)
                in_flight = None
                if due and pause(step):
                    return step
                start = clock()
        return steps
