"""The progress of a training loop, and whether it has stalled.

The watchdog (`cnnbench.run.watchdog`) reads the progress from another thread. Within a step, the
loop writes nothing for the watchdog. The watchdog uses the number of completed steps, and how long
the loop has waited for input. Only activities between steps are marked, by
`JobMembership.marking_activity`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple

LONG = 10
"""Factor of the time limit for the first step and for all activities between steps."""

LONGEST_STEPS = 3
"""A step may take this many times as long as the longest step so far, even beyond the limit."""


class ProcessActivity(str, enum.Enum):
    """What a process is waiting for. The values complete the sentence "waits for ..."."""

    START = "the first step"
    INPUT = "its input"
    STEP = "the end of a step"
    PAUSE = "the end of a pause between steps"
    CHECKPOINT = "a checkpoint"
    EVALUATION = "an evaluation"
    END = "the end of the work after the last step"
    OTHERS = "others"
    """Waits without a time limit, for example for other interleaved runs or for a checkpoint.

    Loops that check time limits themselves have this activity, too.
    """


def stall_time_limit(limit: float, longest: float, is_step: bool) -> float:
    """Seconds without progress after which a process is stalled; infinite for a `limit` of 0.

    For a step and its input, the result is the larger of `limit` and three times the longest step
    so far. For the first step, which is traced and compiled, and for activities between steps, it
    is `LONG` times `limit`.
    """
    if not limit:
        return math.inf
    return max(limit, LONGEST_STEPS * longest) if is_step else LONG * limit


class ProcessProgress(NamedTuple):
    """The progress of a process in its training loop.

    Attributes:
      task: name of the task for which the other tasks wait if there is no progress.
      steps: number of completed steps, including the warm-up.
      last: name of the last completed step, such as "step 12".
      doing: current activity of the process.
      batches: number of batches from all inputs, including batches for evaluations.
      idle: seconds without a change of the attributes above.
      stalled: whether `idle` exceeds the time limit.
    """

    task: str
    steps: int
    last: str
    doing: ProcessActivity
    batches: int = 0
    idle: float = 0.0
    stalled: bool = False

    @classmethod
    def from_json(cls, values: list[Any]) -> ProcessProgress:
        """Reads progress from a JSON list; raises TypeError or ValueError for anything else."""
        task, steps, last, doing, batches, idle, stalled = values
        numbers = int(steps), str(last), ProcessActivity(doing), int(batches), float(idle)
        return cls(str(task), *numbers, bool(stalled))

    def __str__(self) -> str:
        return f"no progress for {self.idle:.0f} s after {self.last}, waits for {self.doing.value}"


class StallDetector:
    """Measures how long a process has made no progress. For `limit`, see `stall_time_limit`."""

    def __init__(self, read_progress: Callable[[], ProcessProgress], limit: float) -> None:
        self._read_progress = read_progress
        self._limit = limit
        self._since = self._longest = 0.0
        self._last_progress: ProcessProgress | None = None

    def progress_at(self, now: float) -> ProcessProgress:
        """Reads the progress at the time `now`, with the seconds since the progress changed."""
        progress, before = self._read_progress(), self._last_progress
        if progress != before:
            if before is not None and _is_in_steps(before):
                self._longest = max(self._longest, now - self._since)
            self._last_progress, self._since = progress, now
        idle, limit = now - self._since, math.inf
        if progress.doing is not ProcessActivity.OTHERS:
            limit = stall_time_limit(self._limit, self._longest, _is_in_steps(progress))
        return progress._replace(idle=idle, stalled=idle > limit)


def _is_in_steps(progress: ProcessProgress) -> bool:
    return progress.steps > 0 and progress.doing in (ProcessActivity.STEP, ProcessActivity.INPUT)
