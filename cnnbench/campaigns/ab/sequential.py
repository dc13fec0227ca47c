"""Interim analyses of an experiment: after which pairs, and at which level.

A group-sequential test: at every interim analysis the whole policy is applied with a level of
its own, and the levels add up to alpha. By the union bound the chance of any false alarm is
then at most alpha, whatever the dependence between analyses, and their intervals together
cover the truth with 1 - alpha (repeated confidence intervals, Jennison and Turnbull, JRSS B
51, 1989). The level spent by an analysis is a power of the share of pairs (Kim and DeMets,
Biometrika 74, 1987): little early, most at the end, which costs hardly any power against one
test after all pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cnnbench.base.stats.rank_tests import smallest_p

FIRST = 8
"""Pairs before the first interim analysis: eight can reach the level of 0.01 (p = 0.0078)."""

STEP = 4
"""Pairs between interim analyses."""

_POWER = 2


@dataclass(frozen=True)
class InterimAnalysis:
    """One interim analysis.

    Attributes:
      pairs: measured by then.
      alpha: its two-sided level.
    """

    pairs: int
    alpha: float


def pairs_to_settle(needed: int, measured: int) -> int:
    """Number of pairs to allow for an experiment that follows an inconclusive one.

    Args:
      needed: about as many would do; 0 if that is not known.

    Returns:
      As many that an interim analysis is the last.
    """
    return STEP * math.ceil(max(needed, measured + STEP, FIRST) / STEP)


def interim_analyses(
    pairs: int, alpha: float, sequential: bool = True
) -> tuple[InterimAnalysis, ...]:
    """The interim analyses of an experiment, the last one after all pairs.

    Args:
      pairs: at most.
      alpha: level of all analyses together.

    Returns:
      Analyses whose levels add up to alpha. One whose level not even pairs that all agree
      could reach, or that would leave the last one such a level, is left out, and its share
      goes to the next one.
    """
    if not sequential:
        return (InterimAnalysis(pairs, alpha),)
    found: list[InterimAnalysis] = []
    spent = 0.0
    last = smallest_p(pairs, pairs, paired=True)
    for number in range(FIRST, pairs, STEP):
        level = alpha * (number / pairs) ** _POWER - spent
        within_reach = level >= smallest_p(number, number, paired=True)
        if within_reach and alpha - spent - level >= last:
            found.append(InterimAnalysis(number, level))
            spent += level
    return (*found, InterimAnalysis(pairs, alpha - spent))
