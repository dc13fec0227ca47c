"""The part of a record about steps in turn with other processes."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTaking:
    """How the timed steps were made in turn with those of other processes.

    Attributes:
      turn_seconds: length of a turn that was asked for; the step under way ends it.
      starts: numbers, from 1, of the timed steps that began a turn.
      waited_seconds: wall time between turns; in no step's time, nor in that of the timed loop.
      waited_cpu_seconds: CPU time of this process meanwhile.

    Raises:
      ValueError: what is no amount, or no number of a step; names the key.
    """

    turn_seconds: float
    starts: tuple[int, ...]
    waited_seconds: float
    waited_cpu_seconds: float

    def __post_init__(self) -> None:
        for key in ("turn_seconds", "waited_seconds", "waited_cpu_seconds"):
            value = getattr(self, key)
            if not 0 <= value < math.inf:
                raise ValueError(f"turns.{key}: {value} is not an amount")
        if list(self.starts) != sorted({*self.starts}) or any(n < 1 for n in self.starts):
            raise ValueError(f"turns.starts: {list(self.starts)} are not numbers of steps in order")
