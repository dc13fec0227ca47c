"""Slow steps that runs have in common, as text. `cnnbench.base.slow_steps` finds those of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cnnbench.base.slow_steps import FEWEST, SlowSteps, find_slow_steps, median_slow_steps
from cnnbench.base.stats import median
from cnnbench.base.text import number
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord


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
