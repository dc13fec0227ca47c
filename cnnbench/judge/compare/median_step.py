"""Where the change of the throughput is not that of the median step, and which steps make it so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cnnbench.base.stats.descriptive import median
from cnnbench.base.stats.slow_steps import SlowSteps
from cnnbench.judge.compare.estimate import TwoSamples, exceeds, gather, size
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import THROUGHPUT
from cnnbench.judge.metrics.speed import slow_steps_of, slow_steps_text
from cnnbench.records.run import RunRecord


@dataclass(frozen=True, kw_only=True)
class MedianStep:
    """The change at the median step, beside another one of the throughput.

    Attributes:
      change: change of the global batch over the median step, as a share of the base.
      slow: slow steps of BASE and of NEW; None where a side has none that cost more than the
        threshold.
    """

    change: float
    slow: tuple[SlowSteps | None, SlowSteps | None]

    def text(self, names: tuple[str, str]) -> str:
        """In words: "in NEW every third step takes 90 ms more; median step +0.1 %"."""
        found = zip(names, self.slow, strict=True)
        parts = [f"in {name} {slow_steps_text(slow)}" for name, slow in found if slow is not None]
        return "; ".join([*parts, f"at the median step {THROUGHPUT.change_text(self.change)}"])


def median_step(
    case: TwoSamples,
    change: float | None,
    base: Sequence[Measurement],
    new: Sequence[Measurement],
    policy: Policy,
) -> MedianStep | None:
    """The change at the median step, if it differs from the judged one by more than the threshold.

    Args:
      case: the judged throughputs of the runs that succeeded.
      change: their judged change; None if unknown.
      base, new: the runs of both sides.
    """
    sides = [
        [run for run in side if isinstance(run, RunRecord) and run.status == "ok"]
        for side in (base, new)
    ]
    timed = all(side and all(run.step_seconds and run.batch for run in side) for side in sides)
    if case.metric is not THROUGHPUT or change is None or change <= -1 or not timed:
        return None
    rates = [
        [run.batch.global_ / median(run.step_seconds) for run in side if run.batch]
        for side in sides
    ]
    found = gather(replace(case, base=rates[0], new=rates[1]), policy).change
    if not exceeds(size((1 + change) / (1 + found) - 1, THROUGHPUT), policy.threshold):
        return None
    shared = map(slow_steps_of, sides)
    before, after = (one if one and one.cost > policy.threshold else None for one in shared)
    return MedianStep(change=found, slow=(before, after))
