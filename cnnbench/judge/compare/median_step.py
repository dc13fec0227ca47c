"""Explains by slow steps how the change of the median step differs from that of the throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cnnbench.base.slow_steps import slow_step_cost_increase
from cnnbench.base.stats import median
from cnnbench.judge.compare.estimate import Samples, exceeds, statistics_of
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.slow_steps import common_slow_steps
from cnnbench.records.run import RunRecord


def change_and_slow_steps(
    samples: Samples,
    change: float | None,
    base: Sequence[Measurement],
    new: Sequence[Measurement],
    policy: Policy,
) -> tuple[float | None, tuple[str, str]]:
    """Returns the change of the speed at the median step, and texts about the slow steps of BASE
    and of NEW.

    Args:
      samples: the judged throughputs of successful runs.
      change: the judged change of the throughput; None if unknown.
      base, new: the runs of BASE and of NEW.

    Returns:
      The change of the ratio of global batch and median step, as a share of the base. None unless
      it differs from the change of the throughput by more than the threshold. A text is "" if the
      slow steps cost at most the threshold. Both texts are "" if the costs in BASE and NEW differ
      by at most the threshold, because then slow steps did not change the speed.
    """
    sides = [
        [run for run in side if isinstance(run, RunRecord) and run.status == "ok"]
        for side in (base, new)
    ]
    timed = all(side and all(run.step_seconds and run.batch for run in side) for side in sides)
    if samples.metric is not THROUGHPUT or change is None or change <= -1 or not timed:
        return None, ("", "")
    rates = [
        [run.batch.global_ / median(run.step_seconds) for run in side if run.batch]
        for side in sides
    ]
    of_medians = replace(samples, base=rates[0], new=rates[1])
    mean_change = statistics_of(of_medians, policy).change
    threshold = policy.threshold_of(THROUGHPUT)
    if not exceeds((1 + change) / (1 + mean_change) - 1, THROUGHPUT, threshold):
        return None, ("", "")
    shared = [*map(common_slow_steps, sides)]
    # Slow steps cost the same in BASE and NEW.
    if abs(slow_step_cost_increase(*shared)) <= threshold:
        shared = [None, None]
    before, after = (
        slow_steps.text if slow_steps and slow_steps.cost > threshold else ""
        for slow_steps in shared
    )
    return mean_change, (before, after)
