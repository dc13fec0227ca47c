"""How many untimed steps come first: a fixed number, or until step times are steady."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cnnbench.stats.steady_state import MIN_STEPS, steady_state

_GROWTH = 1.1
_SMALLEST_STRIDE = 5


@dataclass(frozen=True)
class WarmUp:
    """The length of a warm-up.

    Attributes:
      least: steps in any case.
      most: steps at most; equal to least unless auto.
      auto: whether to go on after `least` until the steps are steady.
    """

    least: int
    most: int
    auto: bool = False

    @cached_property
    def checks(self) -> frozenset[int]:
        """Numbers of the steps after which the times so far are checked.

        Their distance grows with the series: a check takes time in proportion to the
        square of its length, and more checks find more false steady states.
        """
        if not self.auto:
            return frozenset()
        found = []
        step = max(self.least, MIN_STEPS)
        while step < self.most:
            found.append(step)
            step = max(step + _SMALLEST_STRIDE, int(step * _GROWTH))
        return frozenset([*found, self.most])

    def steady(self, seconds: Sequence[float]) -> bool:
        """Whether the warm-up may end: its last quarter, and 10 steps, are steady.

        Args:
          seconds: times of all steps so far.
        """
        return steady_state(seconds).reached

    def status(self, steady: bool) -> str:
        """`RunRecord.warmup_status` of a finished warm-up: fixed, steady or limit."""
        if not self.auto:
            return "fixed"
        return "steady" if steady else "limit"
