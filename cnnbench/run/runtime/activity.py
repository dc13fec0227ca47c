"""Progress of the training loop, read by the watchdog from another thread.

The loop writes nothing for it within a step: completed steps are counted anyway, and inputs keep
the times of their waiting callers. Only activities between steps are marked, by
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
"""A step may take this many times the longest one so far, if that is more than the limit."""


class Doing(str, enum.Enum):
    """What a process waits for; the values are phrases that complete a sentence."""

    START = "the first step"
    INPUT = "its input"
    STEP = "the end of a step"
    PAUSE = "the end of a pause between steps"
    CHECKPOINT = "a checkpoint"
    EVALUATION = "an evaluation"
    END = "after the last step"
    OTHERS = "others"
    """Has no time limit: the turn of another run, a future checkpoint, or loops with own limits."""


def time_limit(limit: float, longest: float, is_step: bool) -> float:
    """Seconds after which a process counts as stuck; infinite for a `limit` of 0.

    A step and its input have `limit` seconds, or three times the longest step so far if that is
    more. The first step (which is traced and compiled) and everything else have `LONG` times
    `limit`.
    """
    if not limit:
        return math.inf
    return max(limit, LONGEST_STEPS * longest) if is_step else LONG * limit


class Standing(NamedTuple):
    """Progress of a process.

    Attributes:
      task: name of the task that is waited for if nothing moves.
      steps: steps done, including the warm-up; `last` names the last of them ("step 12").
      batches: delivered by all inputs, also for evaluations.
      idle: seconds without a change of the above; `stalled` if above the time limit.
    """

    task: str
    steps: int
    last: str
    doing: Doing
    batches: int = 0
    idle: float = 0.0
    stalled: bool = False

    @classmethod
    def read(cls, values: list[Any]) -> Standing:
        """Reads progress from a JSON list; raises TypeError or ValueError for anything else."""
        task, steps, last, doing, batches, idle, stalled = values
        numbers = int(steps), str(last), Doing(doing), int(batches), float(idle)
        return cls(str(task), *numbers, bool(stalled))

    def __str__(self) -> str:
        return f"no progress for {self.idle:.0f} s after {self.last}, waits for {self.doing.value}"


class StallDetector:
    """Measures the time without progress; `limit` is that of `time_limit`."""

    def __init__(self, look: Callable[[], Standing], limit: float) -> None:
        self._look = look
        self._limit = limit
        self._since = self._longest = 0.0
        self._seen: Standing | None = None

    def at(self, now: float) -> Standing:
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


def _in_steps(seen: Standing) -> bool:
    return seen.steps > 0 and seen.doing in (Doing.STEP, Doing.INPUT)


def blamed(standings: Mapping[Task, Standing]) -> dict[Task, Standing]:
    """Tasks that the others wait for, in a stalled job that synchronises in every step.

    They wait for something else than a step or, if none does, have done the fewest steps.
    """
    elsewhere = {task: s for task, s in standings.items() if s.doing is not Doing.STEP}
    least = min(s.steps for s in standings.values())
    return elsewhere or {task: s for task, s in standings.items() if s.steps == least}
