"""Chooses the number of timed steps of a process."""

from __future__ import annotations

import math

from cnnbench.base.text import format_duration
from cnnbench.flags.declare import RunPart, names_of_flags
from cnnbench.flags.params import ACCEPTED

LENGTHS = frozenset(names_of_flags(ACCEPTED.values(), RunPart.LENGTH))
"""Flags that decide how many timed steps a run has."""


class StepCountEstimate:
    """Estimates the number of timed steps that take `seconds`.

    Attributes:
      step_seconds: typical seconds of a step.
      wanted: number of steps that take `seconds`, without the limits `fewest` and `most`.
    """

    def __init__(self, seconds: float, step_seconds: float, fewest: int, most: int) -> None:
        self.step_seconds = step_seconds
        self.wanted = math.ceil(seconds / self.step_seconds)
        self._fewest, self._most = fewest, most

    def number_of_steps(self, factor: float = 1.0) -> int:
        """Number of timed steps that take `factor` times the requested seconds, within limits."""
        return min(max(self._fewest, math.ceil(factor * self.wanted)), self._most)

    def __str__(self) -> str:
        steps = self.number_of_steps()
        time = format_duration(steps * self.step_seconds)
        return (
            f"{steps} timed steps in each process, about {time}; --num_batches sets another number"
        )
