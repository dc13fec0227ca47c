"""Number of further pairs or processes until an inconclusive case has a verdict.

The number is found by drawing what is to come, for growing numbers of runs, and judging it as it
will be: at every interim analysis on the way and at its level. The measured runs stay as they are
where they count again. The draws are of sums, of which the Hodges-Lehmann estimate and its interval
are functions with normal noise: the k-th of n ordered means of pairs, or differences of processes,
lies at their normal quantile of (k - 0.375) / (n + 0.25) (Blom, Statistical Estimates and
Transformed Beta-Variables, 1958). The variance of the noise is drawn from its posterior
distribution, as the measured scatter is that of few runs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cnnbench.base.inference import MOST_PROCESSES, InterimAnalysis, growing, outside
from cnnbench.judge.compare.estimate import Evidence, shift_of

_CHANCE = 0.82
"""Chance of a verdict with the number that is advised. Rounded upwards to whole analyses it becomes
0.8 to 0.87."""

_DRAWS = 1000
_VALUES = 101  # two values for each of fifty analyses, and one more
_SEED = 1
_PLAUSIBLE = 2.0  # standard errors
_KNOWN = 2
"""Times the degrees of freedom that the measured scatter has, in its posterior distribution. With 1
as much is advised after a few quiet pairs that most experiments would do with half."""
# variance of the Hodges-Lehmann estimate relative to the mean, for normal noise
_EFFICIENCY = math.pi / 3

_Floats: TypeAlias = NDArray[np.float64]


def needed(evidence: Evidence, levels: tuple[float, float]) -> int | None:
    """Estimated number of pairs, or processes of the smaller side, for a clear verdict.

    With this number the verdict is the right one with a chance of about 0.8: the same, where
    nothing changed; slower or faster, where the change is twice the floor or, if that is more, as
    large as the one found less its standard error. What lies more than `_PLAUSIBLE` standard errors
    from the change found is left out. None if the scatter or the margin is 0 or unknown.

    Args:
      evidence: its plan defines how further pairs are judged.
      levels: of the interval and of the p value; shares of those of an analysis if there is a plan.
    """
    floor, margin = (
        shift_of(limit, evidence.metric) for limit in (evidence.floor, evidence.margin)
    )
    if (
        not evidence.scatter
        or not margin
        or not math.isfinite(shift_of(evidence.change, evidence.metric))
    ):
        return None
    estimate, scatter = abs(shift_of(evidence.change, evidence.metric)), evidence.scatter
    sizes = (evidence.fewest,) if evidence.paired else (len(evidence.base), len(evidence.new))
    error = scatter * math.sqrt(_EFFICIENCY * sum(1 / size for size in sizes))
    plan = evidence.plan
    afresh = plan is not None and plan.begins
    if afresh and not evidence.paired:  # as pairs of independent processes
        sizes, scatter = (evidence.fewest,), scatter * math.sqrt(2)
    truths = [0.0] if estimate <= _PLAUSIBLE * error else []
    if evidence.beyond_floor or estimate + _PLAUSIBLE * error >= 2 * floor:
        truths.append(max(2 * floor, estimate - error))
    futures = [_Draws(sizes, estimate, scatter, truth, afresh) for truth in truths or [0.0]]

    def is_enough(number: int) -> bool:
        looks = (InterimAnalysis(number, 1.0),) if plan is None else plan.analyses(number)
        reaches = [
            [
                half_width([size + look.pairs - min(sizes) for size in sizes], look.alpha * level)
                for level in levels
            ]
            for look in looks
        ]
        return all(
            draws.chance(looks, reaches, floor if draws.truth else margin) >= _CHANCE
            for draws in futures
        )

    numbers = (
        growing(evidence.fewest + 1, 1, MOST_PROCESSES)
        if plan is None
        else plan.numbers(evidence.fewest)
    )
    choices = list(numbers)
    return choices[min(bisect_left(choices, True, key=is_enough), len(choices) - 1)]


def half_width(sizes: Sequence[int], alpha: float) -> float:
    """Half of the width of the interval of 1 - alpha, in standard deviations of normal noise.

    Infinite where there are too few pairs, or processes of both sides.
    """
    left_out = outside(sizes, 1 - alpha)
    if left_out < 1:
        return math.inf
    pairs = len(sizes) == 1
    count = sizes[0] * (sizes[0] + 1) // 2 if pairs else math.prod(sizes)
    quantile = NormalDist().inv_cdf(1 - (left_out - 0.375) / (count + 0.25))
    return quantile * (math.sqrt(0.5) if pairs else math.sqrt(2.0))


@cache
def _normals() -> _Floats:
    """Standard normal values, [values for each analysis, draws]."""
    return np.random.default_rng(_SEED).standard_normal((_VALUES, _DRAWS))


def _chi_square(freedom: int, normal: _Floats) -> _Floats:
    """Chi-square values of normal ones (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * freedom)
    quantile: _Floats = freedom * np.maximum(1 - part + normal * math.sqrt(part), 0.02) ** 3
    return quantile


class _Draws:
    """What the centre and the scatter may be at later analyses.

    Args:
      sizes: measured values: pairs, or those of both sides.
      centre, scatter: what they gave.
      truth: centre of all values to come.
      afresh: whether the measured values do not count again.
    """

    def __init__(
        self, sizes: Sequence[int], centre: float, scatter: float, truth: float, afresh: bool
    ) -> None:
        self._sides = len(sizes)
        freedom = sum(sizes) - self._sides
        squares = scatter**2 * freedom
        first, *self._normals = _normals()
        self._scatter = np.sqrt(_KNOWN * squares / _chi_square(_KNOWN * freedom, first))
        self.truth = truth
        # Of two sides, the values behind their difference.
        self._start = (
            (0.0, 0.0, 0.0, 0)
            if afresh
            else (self._sides / sum(1 / size for size in sizes), centre, squares, freedom)
        )
        self._measured = 0 if afresh else min(sizes)

    def chance(
        self, looks: Sequence[InterimAnalysis], reaches: Sequence[Sequence[float]], limit: float
    ) -> float:
        """The probability that an analysis gives the right verdict.

        Args:
          reaches: at each analysis, half of the width of the interval and that of a significant
            change, in standard deviations.
          limit: the margin, or, for a change, the floor.
        """
        clear = np.zeros(_DRAWS, bool)
        for (reach, certain), (centre, deviation) in zip(reaches, self.after(looks), strict=True):
            if self.truth:
                clear |= (centre - reach * deviation > limit) & (centre > certain * deviation)
            else:
                clear |= np.abs(centre) + reach * deviation <= limit
        return float(clear.mean())

    def after(self, looks: Sequence[InterimAnalysis]) -> Iterator[tuple[_Floats, _Floats]]:
        """Estimates of the centre and of the scatter at each analysis, [draws] each."""
        count, start, measured_squares, freedom = self._start
        centre, squares = (np.full(_DRAWS, value) for value in (start, measured_squares))
        measured = self._measured
        for index, look in enumerate(looks):
            more = look.pairs - measured
            measured = look.pairs
            normal, other = self._normals[2 * index : 2 * index + 2]
            error = self._scatter * math.sqrt(_EFFICIENCY * self._sides / more)
            mean = self.truth + error * normal
            within = self._sides * more - 1
            squares = squares + self._scatter**2 * (_chi_square(within, other) if within else 0.0)
            squares = squares + count * more / (count + more) * (mean - centre) ** 2 / self._sides
            centre = (count * centre + more * mean) / (count + more)
            freedom += self._sides * more - (not count) * self._sides
            count += more
            yield centre, np.sqrt(squares / freedom)
