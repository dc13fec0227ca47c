"""Sentences about changes: their size, and the reasons of verdicts."""

from __future__ import annotations

from cnnbench.base.text.numbers import NONE, count, number_of
from cnnbench.judge.compare.estimate import Evidence, TwoSamples, unscaled
from cnnbench.judge.compare.sequential import MOST_PAIRS, MOST_PROCESSES
from cnnbench.judge.metrics.registry import Metric


def estimate(metric: Metric, change: float | None, low: float | None, high: float | None) -> str:
    """The change with its interval, as far as they are known: "-0.9 % (-13.9 to +15.6 %)"."""
    if change is None:
        return NONE
    text = metric.change_text(change)
    return text if low is None or high is None else f"{text} ({metric.range_text(low, high)})"


def magnitude(metric: Metric, change: float | None, low: float | None, high: float | None) -> str:
    """A change of a side that is worse or better: "13.2 % slower (10.1 to 16.0 %)"."""
    assert change is not None
    assert low is not None
    assert high is not None
    size = metric.change_text(abs(change), signed=False)
    least, most = sorted((abs(low), abs(high)))
    ends = metric.range_text(least, most, signed=False)
    return f"{size} {_direction(change, metric)} ({ends})"


def chance(p: float | None, family: int) -> str:
    """The p value, over a number of configurations."""
    assert p is not None
    return f"p = {p:.2g}" + (f" over {family} configurations" if family > 1 else "")


def within_margin(found: Evidence) -> str:
    """Why two sides are the same."""
    assert found.low is not None
    assert found.high is not None
    metric = found.metric
    margin = metric.change_text(found.margin, signed=False)
    return f"the change is {metric.range_text(found.low, found.high)}, less than {margin}"


def undecided(found: Evidence, certain: bool) -> str:
    """Why an interval gives no verdict; `certain`: whether the test is significant."""
    metric = found.metric
    floor, margin = (
        metric.change_text(limit, signed=False) for limit in (found.floor, found.margin)
    )
    word = _direction(found.change, metric)
    if found.wholly_beyond_floor:
        return f"{word} by more than {floor}, but not certainly so"
    if certain and found.beyond_floor:
        return f"{word}, but perhaps by less than {floor}"
    if certain and found.floor > found.margin:
        return f"{word}, but within the A/A spread of {floor}"
    if certain:
        return f"{word}, but perhaps by less than {margin}, perhaps by more"
    return f"the change may be smaller or larger than {margin}"


def too_many(more: int, paired: bool) -> bool:
    """Whether this many further pairs, or processes per side, are not useful advice."""
    return more > (MOST_PAIRS if paired else MOST_PROCESSES)


def outlook(found: Evidence, enough: int | None, more: int | None) -> str:
    """The scatter, and how many more runs, or runs in all, give a verdict; "" without scatter."""
    metric = found.metric
    if enough is None or more is None or found.scatter is None:
        return ""
    name = "pairs" if found.paired else "processes"
    text = f"; {name} differ by {metric.change_text(unscaled(found.scatter, metric), signed=False)}"
    begins = found.plan is not None and found.plan.begins
    if too_many(more, found.paired or begins):
        return f"{text}: more {name} will not help"
    if begins:
        return f"{text}: a new experiment of {enough} pairs settles it"
    one, many = ("pair", "pairs") if found.paired else ("process per side", "processes per side")
    return f"{text}: about {count(more, f'more {one} settles', f'more {many} settle')} it"


def at_least(case: TwoSamples, number: int) -> str:
    """A number of pairs, or processes per side, that is needed: "at least 6 pairs"."""
    if case.plan is not None and case.plan.begins:
        return f"a new experiment of at least {number} pairs"
    return f"at least {number} {'pairs' if case.paired else 'on each side'}"


def too_few(found: Evidence, enough: int, size: float | None) -> str:
    """That there are too few values, and how many could prove a change, of which size."""
    counts = f"{number_of(found.base)} against {number_of(found.new)} processes"
    text = f"{number_of(found.base)} pairs" if found.paired else counts
    among = f" among {found.family} configurations" if found.family > 1 else ""
    text += f" are too few to prove a change{among}, of whatever size"
    if found.plan is not None and found.plan.begins:
        text += f"; a new experiment of {enough} pairs could prove one"
    else:
        text += f"; {enough} {'pairs' if found.paired else 'on each side'} could prove one"
    return text if size is None else f"{text} of {found.metric.change_text(size, signed=False)}"


def disagreement(found: Evidence, of_medians: float | None) -> str:
    """Names the estimator where the shown medians change in the opposite direction."""
    if of_medians is None:
        return ""
    of = "within pairs" if found.paired else "between processes of both sides"
    text = found.metric.change_text(of_medians)
    return f" (the change is the median {of}, Hodges-Lehmann; that of the two medians is {text})"


def _direction(change: float, metric: Metric) -> str:
    return metric.better if (change > 0) == metric.higher_is_better else metric.worse
