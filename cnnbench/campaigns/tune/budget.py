"""The time of a search over all of its sessions, and the lengths of its processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cnnbench.base.stats.descriptive import median
from cnnbench.campaigns.ab.flags import LENGTHS
from cnnbench.errors import BenchmarkError
from cnnbench.records.run import RunRecord

SECONDS = 1.0
"""Seconds of timed steps in a race; twice as many hardly make processes differ less."""

FEWEST_STEPS = 10
"""Minimum of the timed steps of a process."""

FINAL = 2.0
"""Timed steps of a process of the final, as a multiple of those of a race."""

_MOST_STEPS = 5000
_MOST_WARMUP, _FEWEST_WARMUP = 10, 2
_WARMUP = ("num_warmup_batches", "warmup", "autotune_threshold")


class Budget:
    """The time of a search; `races` and `pairs` are seconds spent on them in earlier sessions."""

    def __init__(
        self,
        seconds: float,
        races: float = 0.0,
        pairs: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._begun = clock() - races - pairs
        self._pairs = pairs

    @property
    def minutes(self) -> float:
        """The whole budget."""
        return self.seconds / 60

    @property
    def left(self) -> float:
        """Seconds; negative when it is used up."""
        return self.seconds - (self._clock() - self._begun)

    def left_for_races(self, reserve: float) -> float:
        """Seconds for races; the reserve for the final includes its earlier pairs."""
        return self.left + self._pairs - reserve


@dataclass(frozen=True)
class Lengths:
    """Flags for the length of processes; numbers are None where the given flags set them.

    Attributes:
      steps: timed steps of a race with the given flags.
      warmup: steps before them.
      has_peak: whether the given flags set the peak FLOP/s; otherwise it is not measured.
      step_seconds, batch: duration and images of a step with the given flags.
    """

    steps: int | None
    warmup: int | None
    has_peak: bool
    step_seconds: float
    batch: int

    def flags(self, factor: float = 1.0, batch: int | None = None) -> tuple[str, ...]:
        """The flags of a process, for a multiple of the timed steps and another batch."""
        found = []
        if self.steps is not None:
            found.append(f"--num_batches={self._timed(self.steps, factor, batch or self.batch)}")
        if self.warmup is not None:
            found.append(f"--num_warmup_batches={self.warmup}")
        if not self.has_peak:
            found.append("--peak_flops=0")
        return tuple(found)

    @property
    def longer(self) -> float:
        """Seconds that the steps of a process of the final take more than those of a race."""
        if self.steps is None:
            return 0.0
        race, final = (self._timed(self.steps, factor, self.batch) for factor in (1.0, FINAL))
        return (final - race) * self.step_seconds

    def _timed(self, steps: int, factor: float, batch: int) -> int:
        wanted = math.ceil(factor * steps * self.batch / batch)
        return min(max(FEWEST_STEPS, wanted), _MOST_STEPS)


def lengths_of(fixed: Mapping[str, str], record: RunRecord) -> Lengths:
    """The lengths for the given flags, from the record of a process with them."""
    if not record.step_seconds or record.batch is None:
        raise BenchmarkError("the flags as they are given lead to no timed step")
    step = median(record.step_seconds)
    warmup = min(max(_FEWEST_WARMUP, math.ceil(SECONDS / step)), _MOST_WARMUP)
    return Lengths(
        steps=None if LENGTHS & set(fixed) else math.ceil(SECONDS / step),
        warmup=None if set(_WARMUP) & set(fixed) else warmup,
        has_peak="peak_flops" in fixed,
        step_seconds=step,
        batch=record.batch.global_,
    )
