"""In which order the runs go: rounds, so that a disturbance meets every configuration alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.sweep.planning import Case


@dataclass(frozen=True)
class Item:
    """One thing to do.

    Attributes:
      case: which.
      repeat: counted from 1; 0 for the search for its batch size.
    """

    case: Case
    repeat: int

    @property
    def label(self) -> str:
        """For people."""
        if self.repeat == 0:
            return f"{self.case.name}: largest batch"
        if self.case.repeats == 1:
            return self.case.name
        return f"{self.case.name} #{self.repeat}"


def ordered(cases: Sequence[Case], seed: int) -> tuple[Item, ...]:
    """Searches first, then round r of all cases before round r + 1, each shuffled.

    Args:
      cases: to run.
      seed: the same seed gives the same order of the same cases.
    """
    generator = random.Random(seed)
    rounds = max((case.repeats for case in cases), default=0)
    items = []
    for repeat in range(rounds + 1):
        due = [
            Item(case, repeat)
            for case in cases
            if (repeat and repeat <= case.repeats) or (not repeat and case.search is not None)
        ]
        generator.shuffle(due)
        items += due
    return tuple(items)
