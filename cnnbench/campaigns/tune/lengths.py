"""Lengths of the processes of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cnnbench.base.stats.descriptive import median
from cnnbench.campaigns.ab.flags import LENGTHS
from cnnbench.errors import BenchmarkError
from cnnbench.records.run import RunRecord

SECONDS = 1.0
"""Timed steps of a process of a race. Processes of equal flags differ by about as much when they
time twice as many steps."""

FEWEST_STEPS = 10
"""Timed steps of a process at least."""

FINAL = 2.0
"""Timed steps of a process of the final, as a multiple of those of a race."""

_MOST_STEPS = 5000
_MOST_WARMUP, _FEWEST_WARMUP = 10, 2
_WARMUP = ("num_warmup_batches", "warmup", "autotune_threshold")


@dataclass(frozen=True)
class Lengths:
    """Flags for the length of processes; numbers are None where the flags that are given say them.

    Attributes:
      steps: timed steps of a race with the flags as they are given.
      warmup: steps before them.
      has_peak: whether the flags that are given name the peak FLOP/s; else it is not measured.
      step_seconds: of a step with the flags as they are given.
      batch: images of such a step.
    """

    steps: int | None
    warmup: int | None
    has_peak: bool
    step_seconds: float
    batch: int

    def flags(self, factor: float = 1.0, batch: int | None = None) -> tuple[str, ...]:
        """For a process.

        Args:
          factor: of the timed steps.
          batch: images of a step of the candidate, if it is another one.
        """
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
    """The lengths that suit a network.

    Args:
      fixed: the flags that are given.
      record: of a process with these flags.

    Raises:
      BenchmarkError: the process has timed no step.
    """
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
