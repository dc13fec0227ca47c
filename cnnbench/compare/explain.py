"""Numbers of a comparison in words, and the one sentence behind every verdict."""

from __future__ import annotations

import math
from collections.abc import Callable

from cnnbench.compare.estimate import Case, Evidence, usable
from cnnbench.metrics.policy import Policy
from cnnbench.metrics.registry import THROUGHPUT, Metric
from cnnbench.stats import rank_tests
from cnnbench.text.numbers import count

_LOPSIDED = 0.1
"""Floors from here on look different upwards and downwards: 10 % more, 9.1 % less."""


_MOST_DIGITS = 12
"""Digits that are enough to tell a change from the limit that it is beyond."""


def change_text(
    change: float, metric: Metric, signed: bool = True, digits: int | None = None
) -> str:
    """A change in per cent, or in percentage points for accuracies.

    Args:
      change: a share, or a difference.
      metric: of what.
      signed: whether an increase has a sign too.
      digits: behind the point; the usual ones if None.
    """
    if digits is None:
        digits = _usual_digits(metric)
    unit = "%" if metric.relative else "points"
    return f"{_rounded(change, digits):{'+' if signed else ''}.{digits}f} {unit}"


def floor_text(floor: float, change: float, metric: Metric) -> str:
    """The floor in the direction of a change.

    Floors are the same distance both ways on the scale of quotients: 100 % more is undone
    by 50 % less. As long as the two look alike, the floor is told as the user gave it.
    """
    if change < 0 and _is_lopsided(floor, metric):
        return change_text(_undone(floor, metric), metric)
    return change_text(floor, metric, signed=False)


def beyond_texts(change: float, floor: float, metric: Metric) -> tuple[str, str]:
    """A change and the floor that it is beyond, with as many digits as it takes to see it."""
    limit = floor if change > 0 else _undone(floor, metric)
    shown = limit if _is_lopsided(floor, metric) else floor
    usual = _usual_digits(metric)
    if abs(_rounded(change, usual)) > abs(_rounded(shown, usual)):
        return change_text(change, metric), floor_text(floor, change, metric)
    digits = _enough(metric, lambda n: _rounded(change, n) != _rounded(limit, n))
    return (
        change_text(change, metric, digits=digits),
        change_text(limit, metric, signed=limit < 0, digits=digits),
    )


def margin_text(margin: float, metric: Metric) -> str:
    """A range around no change; see `floor_text`."""
    if _is_lopsided(margin, metric):
        return span_text(_undone(margin, metric), margin, metric)
    return f"±{change_text(margin, metric, signed=False)}"


def reach_texts(low: float, high: float, margin: float, metric: Metric) -> tuple[str, str]:
    """An interval and the range that it reaches beyond; digits as in `beyond_texts`."""
    least = _undone(margin, metric)
    shown = least if _is_lopsided(margin, metric) else -margin

    def reaches(digits: int, bottom: float) -> bool:
        return _rounded(low, digits) < _rounded(bottom, digits) or (
            _rounded(high, digits) > _rounded(margin, digits)
        )

    if reaches(_usual_digits(metric), shown):
        return span_text(low, high, metric), margin_text(margin, metric)
    digits = _enough(metric, lambda n: reaches(n, least))
    return span_text(low, high, metric, digits), span_text(least, margin, metric, digits)


def span_text(low: float, high: float, metric: Metric, digits: int | None = None) -> str:
    """An interval of changes."""
    first = change_text(low, metric, digits=digits).rsplit(" ", 1)[0]
    return f"{first} to {change_text(high, metric, digits=digits)}"


def unusable(side: str, values: list[float], metric: Metric) -> str:
    """Values that are no numbers, or not positive."""
    bad = [value for value in values if not usable(value, metric)]
    of = f"{len(bad)} of {count(len(values), 'value', 'values')} of {metric.name}"
    return f"{of} in {side} cannot be used, the first is {bad[0]:.4g}"


def too_few(side: str, case: Case, policy: Policy) -> str:
    """A side without enough processes for any verdict."""
    if not case.fewest:
        return f"{side} has no value of {case.metric.name}"
    found = count(case.fewest, "process", "processes")
    return f"{found} in {side}; a verdict needs at least {_needed(case, policy)}"


def unequal_pairs(case: Case) -> str:
    """Pairs of which one half is missing."""
    return f"{len(case.base)} values in BASE and {len(case.new)} in NEW make no pairs"


def decided(case: Case, found: Evidence, p: float, family: int) -> str:
    """Faster or slower."""
    change, floor = beyond_texts(found.change, found.floor, case.metric)
    return f"{change} is beyond the floor of {floor}, and {_chance(p, family)}"


def equivalent(case: Case, found: Evidence) -> str:
    """Same."""
    assert found.low is not None
    assert found.high is not None
    span = span_text(found.low, found.high, case.metric)
    return f"the interval {span} lies within {margin_text(found.margin, case.metric)}"


def undecided(case: Case, found: Evidence, p: float, family: int, policy: Policy) -> str:
    """What keeps a case with enough processes from a verdict."""
    metric = case.metric
    alpha = metric.alpha(policy)
    best = rank_tests.smallest_p(len(case.base), len(case.new), case.paired)
    if found.low is None or (family * best > alpha and math.isclose(found.p, best)):
        among = f" among {family} configurations" if family > 1 else ""
        needed = _needed(case, policy, family)
        return f"{_counts(case)} are too few to prove a change{among}; at least {needed} are needed"
    change = change_text(found.change, metric)
    floor = floor_text(found.floor, found.change, metric)
    if p <= alpha and found.floor > found.margin and not found.beyond_floor:
        return f"{change} is not beyond the A/A spread of {floor}, though {_chance(p, family)}"
    assert found.high is not None
    span, margin = reach_texts(found.low, found.high, found.margin, metric)
    where = f"the interval {span} reaches beyond {margin}"
    if p <= alpha:
        return f"{change} is not beyond the floor of {floor}, but {where}"
    return f"{where}, and {_chance(p, family)}: more processes or a quieter machine are needed"


def processes_needed(
    policy: Policy, configurations: int = 1, paired: bool = False, metric: Metric = THROUGHPUT
) -> int:
    """The fewest processes per side (or pairs) that can prove one change among so many.

    Args:
      policy: the constants.
      configurations: how many are judged together.
      paired: for pairs.
      metric: what is judged.
    """
    needed = policy.min_processes
    alpha = metric.alpha(policy)
    while configurations * rank_tests.smallest_p(needed, needed, paired) > alpha:
        needed += 1
    return needed


def _needed(case: Case, policy: Policy, family: int = 1) -> str:
    needed = processes_needed(policy, family, case.paired, case.metric)
    return f"{needed} pairs" if case.paired else f"{needed} on each side"


def _counts(case: Case) -> str:
    if case.paired:
        return f"{len(case.base)} pairs"
    return f"{len(case.base)} against {len(case.new)} processes"


def _chance(p: float, family: int) -> str:
    return f"p = {p:.2g}" + (f" over {family} configurations" if family > 1 else "")


def _undone(change: float, metric: Metric) -> float:
    """The change that undoes another."""
    return 1 / (1 + change) - 1 if metric.relative else -change


def _is_lopsided(limit: float, metric: Metric) -> bool:
    return metric.relative and limit >= _LOPSIDED


def _usual_digits(metric: Metric) -> int:
    return 1 if metric.relative else 2


def _rounded(change: float, digits: int) -> float:
    """In per cent. Rounded first: a change of -0.04 % is "+0.0 %", not "-0.0 %"."""
    return round(100 * change, digits) + 0.0


def _enough(metric: Metric, shows: Callable[[int], bool]) -> int:
    """The fewest digits with which something shows."""
    usual = _usual_digits(metric)
    return next((n for n in range(usual, _MOST_DIGITS) if shows(n)), _MOST_DIGITS)
