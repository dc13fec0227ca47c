"""The speed at the median step, and the slow steps by which it differs from the throughput."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cnnbench.base.slow_steps import (
    FEWEST,
    SlowSteps,
    find_slow_steps,
    median_slow_steps,
    slow_step_cost_increase,
)
from cnnbench.base.stats import median
from cnnbench.base.text import number
from cnnbench.judge.compare.estimate import Samples, exceeds, statistics_of
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.judge.metrics.policy import Policy
from cnnbench.records.metrics.figures import throughputs
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
    # With --paired, BASE and NEW may have different numbers of runs, which then form no pairs.
    paired = samples.paired and len(rates[0]) == len(rates[1])
    of_medians = replace(samples, base=rates[0], new=rates[1], paired=paired)
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


def common_slow_steps(runs: Iterable[RunRecord]) -> SlowSteps | None:
    """Returns the slow steps that most successful runs have in common; None if there are none."""
    return median_slow_steps(
        [find_slow_steps(run.step_seconds) for run in runs if run.status == "ok"]
    )


def median_step_text(runs: Sequence[RunRecord], threshold: float) -> str:
    """Returns text about the images per second at the median step, and about the slow steps that
    lower the mean speed; "" if slow steps make little difference.

    The difference is little if the speed at the median step exceeds the throughput of the
    successful runs by at most `threshold` (a share). The text is also "" if a run has too few
    steps.
    """
    good = [run for run in runs if run.status == "ok" and run.batch]
    judged = [speed for speed in throughputs(good) if speed is not None]
    if not judged or min(len(run.step_seconds) for run in good) < FEWEST:
        return ""
    at_median = median(
        run.batch.global_ / median(run.step_seconds) for run in good if run.batch is not None
    )
    if at_median <= (1 + threshold) * median(judged):
        return ""
    slow = common_slow_steps(good)
    text = "" if slow is None else f"{slow.text}; "
    return f"{text}{number(at_median)} images/sec at the median step"
