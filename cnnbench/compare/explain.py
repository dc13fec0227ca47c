"""The sentence behind every verdict of `cnnbench.compare.judge`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cnnbench.compare.estimate import Case, Evidence, usable
from cnnbench.metrics.policy import Policy
from cnnbench.metrics.registry import THROUGHPUT, Metric
from cnnbench.stats import rank_tests
from cnnbench.text.numbers import count


def unusable(side: str, values: Sequence[float], metric: Metric) -> str:
    """Values that are not finite, or not positive."""
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
    """Faster or slower.

    Args:
      case: judged.
      found: its statistics.
      p: after Holm.
      family: configurations judged together.
    """
    change = case.metric.change_text(found.change)
    return f"{change} is beyond the floor {_range(found.floor, case.metric)}, {_chance(p, family)}"


def equivalent(case: Case, found: Evidence) -> str:
    """Same."""
    return f"the interval {_interval(case, found)} lies within {_range(found.margin, case.metric)}"


def undecided(case: Case, found: Evidence, p: float, family: int, policy: Policy) -> str:
    """Inconclusive with enough processes for a test; arguments as in `decided`."""
    alpha = case.metric.alpha(policy)
    best = rank_tests.smallest_p(len(case.base), len(case.new), case.paired)
    if found.low is None or (family * best > alpha and math.isclose(found.p, best)):
        among = f" among {family} configurations" if family > 1 else ""
        needed = _needed(case, policy, family)
        return f"{_counts(case)} are too few to prove a change{among}; at least {needed} are needed"
    change = case.metric.change_text(found.change)
    floor = "A/A spread" if found.floor > found.margin else "floor"
    floor += f" {_range(found.floor, case.metric)}"
    reaches = f"the interval {_interval(case, found)} reaches beyond "
    reaches += _range(found.margin, case.metric)
    if p <= alpha:
        return f"{change} is within the {floor}, but {reaches}, {_chance(p, family)}"
    return f"{reaches}, {_chance(p, family)}: more processes or a quieter machine are needed"


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


def _interval(case: Case, found: Evidence) -> str:
    assert found.low is not None
    assert found.high is not None
    return case.metric.range_text(found.low, found.high)


def _range(limit: float, metric: Metric) -> str:
    """A limit both ways: 3 % more is undone by 2.9 % less, differences by their opposite."""
    return metric.range_text(1 / (1 + limit) - 1 if metric.relative else -limit, limit)
