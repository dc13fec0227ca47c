"""Interim analyses of an experiment: after which pairs, and at which level.

A group-sequential test: every interim analysis applies the whole policy at its own level, and the
levels add up to alpha. By the union bound the probability of any false alarm is then at most alpha,
whatever the dependence between analyses, and their intervals together cover the true value with 1 -
alpha (repeated confidence intervals, Jennison and Turnbull, JRSS B 51, 1989). The level spent is a
function of the number of pairs (Lan and DeMets, Biometrika 70, 1983). Up to the planned number it
is a power of their share (Kim and DeMets, Biometrika 74, 1987): little early, most at the end,
which costs hardly any power against one test after all pairs. A fifth of alpha is left for further
pairs, of which a share of 1 - planned / pairs is spent by then, so that an experiment that is
continued repeatedly never spends more than alpha.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cnnbench.base.stats.rank_tests import smallest_p

FIRST = 8
"""Pairs before the first interim analysis: eight can reach the level of 0.01 (p = 0.0078)."""

STEP = 4
"""Pairs between the first interim analyses; later ones are about a quarter of the pairs apart."""

MOST_PROCESSES, MOST_PAIRS = 100, 200
"""Largest numbers of further processes per side, and of pairs, that are useful advice."""

_MOST = 10_000
_GROWTH = 1.25
_POWER = 2
_PLANNED = 0.8
_NONE_LEFT = 1e-6


@dataclass(frozen=True)
class InterimAnalysis:
    """Number of pairs measured at an interim analysis, and its two-sided level."""

    pairs: int
    alpha: float


def spent_by(pairs: int, planned: int, alpha: float) -> float:
    """The level that may have been spent by a number of pairs, of alpha for all analyses together.

    `planned` is the number when the experiment was begun, however often it is continued.
    """
    if pairs <= planned:
        return alpha * _PLANNED * (pairs / planned) ** _POWER
    return alpha * (1 - (1 - _PLANNED) * planned / pairs)


def interim_analyses(
    pairs: int,
    alpha: float,
    sequential: bool = True,
    *,
    planned: int | None = None,
    made: Sequence[InterimAnalysis] = (),
) -> tuple[InterimAnalysis, ...]:
    """The remaining interim analyses of an experiment, the last one after all pairs.

    Their levels, with those of `made`, are what may be spent by then (`spent_by`). An analysis is
    left out, and its share goes to the next one, if not even unanimous pairs could reach its level,
    or that of the last one after it. The last one of `made` is returned if it has no fewer pairs.

    Args:
      alpha: level of all analyses together.
      sequential: False for one analysis, which spends all of alpha.
      planned: pairs when the experiment was begun; None if it begins now.
      made: the analyses of earlier sessions, by number of pairs.
    """
    if not sequential:
        return (InterimAnalysis(pairs, alpha),)
    if made and made[-1].pairs >= pairs:
        return (made[-1],)
    planned = planned or pairs
    found: list[InterimAnalysis] = []
    spent = sum(one.alpha for one in made)
    limit = spent_by(pairs, planned, alpha)
    last = smallest_p(pairs, pairs, paired=True)
    number = FIRST
    while number < pairs:
        step = STEP * math.ceil(number / (4 * STEP))
        if number > planned and number + step > pairs:
            break  # so close to the end, it would only reduce the level of the last one
        level = spent_by(number, planned, alpha) - spent
        within_reach = level >= smallest_p(number, number, paired=True)
        if within_reach and limit - spent - level >= last:
            found.append(InterimAnalysis(number, level))
            spent += level
        number += step
    # Experiments of earlier versions may have spent all of it.
    return (*found, InterimAnalysis(pairs, max(limit - spent, alpha * _NONE_LEFT)))


@dataclass(frozen=True)
class Continuation:
    """How further pairs are judged: in an experiment that goes on, or in a new one.

    Attributes:
      alpha: level of all analyses together.
      planned: pairs when the experiment was begun; None for a new one, in which no pair counts that
        is already measured.
      made: its analyses so far.
    """

    alpha: float
    planned: int | None = None
    made: tuple[InterimAnalysis, ...] = ()

    @property
    def begins(self) -> bool:
        """Whether it is a new experiment."""
        return self.planned is None

    def analyses(self, pairs: int) -> tuple[InterimAnalysis, ...]:
        """Those to come up to a number of pairs."""
        return interim_analyses(pairs, self.alpha, planned=self.planned, made=self.made)

    def numbers(self, measured: int, share: float = 1.0) -> Iterator[int]:
        """Numbers of pairs, ascending, with a last analysis that can reach a share of its level.

        They are above `measured`, in an experiment that goes on.
        """
        first = FIRST if self.begins else max(FIRST, measured + 1)
        for pairs in growing(first, STEP, MOST_PAIRS):
            if smallest_p(pairs, pairs, paired=True) <= share * self.analyses(pairs)[-1].alpha:
                yield pairs


def growing(first: int, step: int, useful: int) -> Iterator[int]:
    """Multiples of a step: all up to a useful number of further ones, then by a quarter."""
    number = step * math.ceil(first / step)
    while number <= _MOST:
        yield number
        many = number > first + useful
        number = step * math.ceil(number * _GROWTH / step) if many else number + step
