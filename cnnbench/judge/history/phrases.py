"""All sentences of a history: templates, whose values are named.

Whoever reads this module knows what a history can say. Other modules decide which sentence applies.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.levels import MIN_SERIES
from cnnbench.base.text import count_text, first_few, integer

MOST_NAMED = 5
"""Maximum number of things of one kind that an answer names."""

_MOST_SERIES = 2
"""If a level change occurs in only some of the time series, at most this many are named."""


def about(metric: str, higher_is_better: bool) -> str:
    """What the values of a history are."""
    direction = "higher" if higher_is_better else "lower"
    return f"{metric}, median over the processes of a point; {direction} is better"


# Level changes, which the output calls steps.


def step(worse: bool, change: str, levels: str, place: str) -> str:
    """A level change."""
    return f"{'worse' if worse else 'better'}: {change} (levels {levels}); {place}"


def levels(before: str, after: str) -> str:
    """The levels before and after a change."""
    return f"{before} -> {after}"


def trend_between(first: str, last: str) -> str:
    """The points between which the level changed gradually."""
    return f"a trend from {first} to {last}"


def last_good(point: str) -> str:
    """The last point before a regression."""
    return f"last good {point}"


def last_without(point: str) -> str:
    """The last point before a gain."""
    return f"last without {point}"


def step_between(worse: bool, before: str, after: str) -> str:
    """The points between which the level changed."""
    if worse:
        return f"{last_good(before)}, first bad {after}"
    return f"{last_without(before)}, first with {after}"


def step_range(place: str, first: str, last: str) -> str:
    """The 95 % range of the place of a level change."""
    return f"{place} (95 %: between {first} and {last})"


def undone(point: str) -> str:
    """Where a change was undone; "" if only the last level shows it."""
    return f"undone at {point}" if point else "undone since"


def slow_steps(worse: bool, steps: str) -> str:
    """Slow training steps of the slower level."""
    return f"{'then' if worse else 'before'} {steps}"


def changed_facts(facts: Sequence[tuple[str, str, str]], more: int) -> str:
    """Properties that changed together with a level, with their values before and after."""
    text = "; ".join(f"{name} {before} -> {after}" for name, before, after in facts)
    text = f"changed there too: {text}"
    return f"{text}; and {more} more" if more > 0 else text


def shared_step(worse: bool, series: str, point: str, change: str) -> str:
    """Level changes of several time series at one point."""
    return f"{'worse' if worse else 'better'} in {series} at {point}: {change}"


def of_series(series: str, finding: str) -> str:
    """Something about one time series."""
    return f"{series}: {finding}"


def named_series(names: Sequence[str], count: int) -> str:
    """Some of `count` time series: the only name, "all 5 series", or "3 of 5 series (a; b; c)"."""
    if len(names) == 1:
        return names[0]
    if len(names) < count:
        return f"{len(names)} of {count} series ({first_few(names, _MOST_SERIES)})"
    return "both series" if len(names) == 2 else f"all {len(names)} series"


# Time series without level changes, and noise.

NO_STEP = "no step"
MORE_POINTS = f"steps are looked for from {MIN_SERIES} on"


def few_points(points: int) -> str:
    """Too few points for level changes."""
    return f"{count_text(points, 'point', 'points')}; {MORE_POINTS}"


def two_machines(change: str, hosts: str, runs: int, total: int) -> str:
    """Two host names with two speeds."""
    return (
        f"two machines: {change} on {hosts} ({runs} of {total} runs); a step of about this size "
        "needs more points"
    )


def two_states(change: str, runs: int, total: int) -> str:
    """A machine that alternates between two speeds."""
    return (
        f"noise of two states: {change} in {runs} of {total} runs, alternating; a step of about "
        "this size needs more points"
    )


def correlated(correlation: float) -> str:
    """Neighbouring points are similar."""
    return (
        f"neighbouring points are correlated ({correlation:.1f}): a step needs more points, and "
        "its place is less certain"
    )


def network_before(network: str) -> str:
    """The network changed, so that earlier points are not compared."""
    return f"another network before: {network}, not compared"


def outlier(series: str, change: str, point: str, time: str) -> str:
    """An outlier in some time series."""
    return f"{series}: {change} at {point}, {time} UTC"


def no_value(runs: int, error: str) -> str:
    """A point without a value."""
    text = f"no value, {count_text(runs, 'run', 'runs')}"
    return f"{text}: {error}" if error else text


def earlier_points(count: int) -> str:
    """Points of a time series that are not listed."""
    return f"... {count_text(count, 'earlier point', 'earlier points')}; --last=0 lists all"


def newest_points(shown: int, total: int) -> str:
    """The points that a page lists."""
    return f"The newest {integer(shown)} of {integer(total)} are listed; --format=csv writes all."


def drawn_series(drawn: int, total: int) -> str:
    """The time series that a page draws."""
    return f"The charts show {drawn} of {integer(total)} series: those with steps, and the newest."


# Answers.


def lasting(regressions: int, gains: int) -> str:
    """How many changes have not been undone."""
    texts = [
        count_text(regressions, "regression has", "regressions have") if regressions else "",
        count_text(gains, "gain has", "gains have") if gains else "",
    ]
    return ", ".join(f"{text} not been undone" for text in texts if text)


TOO_FEW_POINTS = f"Too few points: {MORE_POINTS}"
ALL_UNDONE = "Every regression was undone"
NO_REGRESSION = "No regression"
NO_STEP_FOUND = "No step was found."


def accepted(regressions: int) -> str:
    """How many regressions are accepted."""
    return count_text(regressions, "regression is accepted", "regressions are accepted")


def outliers(count: int) -> str:
    """How many outliers there are."""
    return count_text(count, "outlier", "outliers")


def too_short(names: Sequence[str]) -> str:
    """Time series that are too short for level changes."""
    return f"Too few points for steps: {first_few(names, MOST_NAMED)}."


# Remarks.


def only_other_metric(series: str, metric: str, change: str) -> str:
    """A level change that only another metric shows."""
    return f"{series}: only {metric} has a step: {change}; --metric={metric} shows it."


def machines(counts: Sequence[tuple[str, int]]) -> str:
    """Machines, each with its number of points."""
    shares = [f"{count_text(count, 'point', 'points')} on {name}" for name, count in counts]
    listed = first_few(shares, MOST_NAMED)
    return f"{len(counts)} machines are not compared with each other: {listed}."


def merge(point: str, parents: Sequence[tuple[str, str]], series: str) -> str:
    """A merge commit, with the values of the merged branches and their points."""
    had = " and ".join(f"{value} at {name}" for value, name in parents)
    return f"{point} is a merge. Before it, its branches had {had} ({series})."


def other_branch(point: str, before: str) -> str:
    """A level change between two branches."""
    return (
        f"{point} does not contain {before}, the point before it: the step is a difference between "
        "two branches."
    )
