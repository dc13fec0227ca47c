"""Slow steps of runs in words.

`slow_steps_of` are the slow steps that the runs of a side have in common, `slow_steps_text` is
these in words, and `median_step_text` what the median step of some runs hides.
`cnnbench.base.stats.slow_steps` explains both, docs/methodology.md has the error rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cnnbench.base.stats.descriptive import median
from cnnbench.base.stats.slow_steps import FEWEST, SlowSteps, shared_slow_steps, slow_steps
from cnnbench.base.text.numbers import number, percent
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import RunRecord

_ORDINALS = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_MANY = 0.3
"""Share of slow steps above which they have no useful mean distance."""


def slow_steps_of(runs: Iterable[RunRecord]) -> SlowSteps | None:
    """The slow steps that most of the successful runs of a side have; None without."""
    return shared_slow_steps([slow_steps(run.step_seconds) for run in runs if run.status == "ok"])


def median_step_text(runs: Sequence[RunRecord], threshold: float) -> str:
    """The speed at the median step in words, with the slow steps that make it another one.

    "" if it is not above that of the successful runs by more than the threshold, a share, or if
    runs have too few steps to tell.
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
    slow = slow_steps_of(good)
    text = "" if slow is None else f"{slow_steps_text(slow)}; "
    return f"{text}{number(at_median)} images/sec at the median step"


def further_cost(before: SlowSteps | None, after: SlowSteps | None) -> float:
    """What slow steps cost more in `after`, as a share of the time of all steps."""
    costs = [0.0 if one is None else one.cost for one in (before, after)]
    return costs[1] - costs[0]


def slow_steps_text(slow: SlowSteps) -> str:
    """Slow steps in words: "every third step takes 90 ms more (33.3 % of the steps)"."""
    share = f"{percent(slow.share)} of the steps"
    more = f"{number(1000 * slow.extra)} ms more"
    if (distance := slow.distance) is not None:
        which = _ORDINALS[distance - 2] if distance < len(_ORDINALS) + 2 else f"{distance}th"
        return f"every {which} step takes {more} ({share})"
    if slow.occurrences == 1:
        steps = len(slow.indices)
        what = "one step of a process takes"
        if steps > 1:
            what = f"{steps} consecutive steps of a process take"
        return f"{what} {number(1000 * steps * slow.extra)} ms more"
    if slow.share > _MANY:
        return f"{share} take {more}, at irregular distances"
    return f"one step in {1 / slow.share:.0f} takes {more}, at irregular distances ({share})"
