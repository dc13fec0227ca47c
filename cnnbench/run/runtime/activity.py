"""Progress of the training loop, read by the watchdog from another thread.

Within a step, the loop writes nothing for the watchdog, which uses the count of completed steps and
the inputs' times of waiting callers. Only activities between steps are marked, by
`cnnbench.run.driver.membership.Membership.doing`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cnnbench.base.job import Task

LONG = 10
"""Factor of the time limit for the first step and for everything else that is not a step."""

LONGEST_STEPS = 3
"""A step may take this many times as long as the longest step so far, if that exceeds the limit."""


class Doing(str, enum.Enum):
    """What a process waits for. The values complete the sentence "waits for ..."."""

    START = "the first step"
    INPUT = "its input"
    STEP = "the end of a step"
    PAUSE = "the end of a pause between steps"
    CHECKPOINT = "a checkpoint"
    EVALUATION = "an evaluation"
    END = "after the last step"
    OTHERS = "others"
    """Without a time limit: the turn of another run, a later checkpoint, or loops with own limits.
    """


def time_limit(limit: float, longest: float, is_step: bool) -> float:
    """Seconds without progress after which a process is stalled; infinite for a `limit` of 0.

    For a step and its input, the result is the larger of `limit` and three times the longest step
    so far. For the first step, which is traced and compiled, and for everything else, it is `LONG`
    times `limit`.
    """
    if not limit:
        return math.inf
    return max(limit, LONGEST_STEPS * longest) if is_step else LONG * limit


class ProcessProgress(NamedTuple):
    """Progress of a process.

    Attributes:
      task: name of the task for which the others wait if there is no progress.
      steps: number of completed steps, including the warm-up. `last` is the last one ("step 12").
      batches: number of batches from all inputs, including those for evaluations.
      idle: seconds without a change of the attributes above. `stalled` is whether they exceed the
        time limit.
    """

    task: str
    steps: int
    last: str
    doing: Doing
    batches: int = 0
    idle: float = 0.0
    stalled: bool = False

    @classmethod
    def read(cls, values: list[Any]) -> ProcessProgress:
        """Reads progress from a JSON list; raises TypeError or ValueError for anything else."""
        task, steps, last, doing, batches, idle, stalled = values
        numbers = int(steps), str(last), Doing(doing), int(batches), float(idle)
        return cls(str(task), *numbers, bool(stalled))

    def __str__(self) -> str:
        return f"no progress for {self.idle:.0f} s after {self.last}, waits for {self.doing.value}"


class StallDetector:
    """Measures the time without progress; `limit` is that of `time_limit`."""

    def __init__(self, look: Callable[[], ProcessProgress], limit: float) -> None:
        self._look = look
        self._limit = limit
        self._since = self._longest = 0.0
        self._seen: ProcessProgress | None = None

    def at(self, now: float) -> ProcessProgress:
        """The progress, and the seconds since it changed."""
        seen, before = self._look(), self._seen
        if seen != before:
            if before is not None and _in_steps(before):
                self._longest = max(self._longest, now - self._since)
            self._seen, self._since = seen, now
        idle, limit = now - self._since, math.inf
        if seen.doing is not Doing.OTHERS:
            limit = time_limit(self._limit, self._longest, _in_steps(seen))
        return seen._replace(idle=idle, stalled=idle > limit)

    def forgive(self, seconds: float) -> None:
        """Excludes seconds in which the whole process was stopped."""
        self._since += seconds


def _in_steps(seen: ProcessProgress) -> bool:
    return seen.steps > 0 and seen.doing in (Doing.STEP, Doing.INPUT)


def blamed(standings: Mapping[Task, ProcessProgress]) -> dict[Task, ProcessProgress]:
    """Tasks for which the others wait, in a stalled job that synchronises in every step.

    These tasks wait for anything but a step. If all wait for a step, they are the tasks with the
    fewest steps.
    """
    elsewhere = {task: s for task, s in standings.items() if s.doing is not Doing.STEP}
    least = min(s.steps for s in standings.values())
    return elsewhere or {task: s for task, s in standings.items() if s.steps == least}
