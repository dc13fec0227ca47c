"""Estimates the number of further pairs or processes that an inconclusive case needs.

Future runs are simulated, for increasing numbers of runs, and judged as real runs will be: at every
interim analysis, at the level of that analysis. Measured runs are included unchanged, unless a new
experiment begins. Not single runs are drawn, but their sums: with normal noise, the Hodges-Lehmann
estimate and its interval are functions of these sums. The k-th of n ordered means of pairs (or
differences of processes) lies at the normal quantile of (k - 0.375) / (n + 0.25) (Blom, Statistical
Estimates and Transformed Beta-Variables, 1958). The variance of the noise is drawn from its
posterior distribution, because few runs measured it.
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

from cnnbench.base.inference import MOST_PROCESSES, InterimAnalysis, numbers_to_try, values_outside
from cnnbench.judge.compare.estimate import Evidence, to_test_scale

_CHANCE = 0.82
"""Probability of a verdict with the recommended number. Rounding up to the next analysis makes it
0.8 to 0.87.
"""

_DRAWS = 1000
_VALUES = 101  # Two values for each of fifty analyses, and one more.
_SEED = 1
_PLAUSIBLE = 2.0  # standard errors
_KNOWN = 2
"""Factor for the degrees of freedom in the posterior distribution of the scatter. With a factor of
1, after few pairs with little scatter, most experiments would need only half of the recommended
pairs.
"""
# Variance of the Hodges-Lehmann estimate relative to that of the mean, for normal noise.
_EFFICIENCY = math.pi / 3

_Floats: TypeAlias = NDArray[np.float64]


def needed_processes(evidence: Evidence, levels: tuple[float, float]) -> int | None:
    """Estimated number of pairs (or of processes on the smaller side) for a verdict.

    With this number, the verdict is correct with 80 % power in two cases: "same" if nothing
    changed; "slower" or "faster" if the change is twice the floor, or the estimate less its
    standard error if that is larger. A case that is more than `_PLAUSIBLE` standard errors from the
    estimate is ignored. None if the scatter or the margin is 0 or unknown.

    Args:
      evidence: its plan defines how further pairs are judged.
      levels: levels for the interval and for the p-value. With a plan, they are shares of the level
        of each analysis.
    """
    floor, margin = (
        to_test_scale(limit, evidence.metric) for limit in (evidence.floor, evidence.margin)
    )
    if (
        not evidence.scatter
        or not margin
        or not math.isfinite(to_test_scale(evidence.change, evidence.metric))
    ):
        return None
    estimate, scatter = abs(to_test_scale(evidence.change, evidence.metric)), evidence.scatter
    sizes = (evidence.fewest,) if evidence.paired else (len(evidence.base), len(evidence.new))
    error = scatter * math.sqrt(_EFFICIENCY * sum(1 / size for size in sizes))
    plan = evidence.plan
    afresh = plan is not None and plan.begins
    if afresh and not evidence.paired:  # New processes are compared as independent pairs.
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
        numbers_to_try(evidence.fewest + 1, 1, MOST_PROCESSES)
        if plan is None
        else plan.numbers(evidence.fewest)
    )
    choices = list(numbers)
    return choices[min(bisect_left(choices, True, key=is_enough), len(choices) - 1)]


def half_width(sizes: Sequence[int], alpha: float) -> float:
    """Half of the width of the (1 - alpha) interval, in standard deviations of normal noise.

    Infinite if there are too few pairs, or too few processes on both sides.
    """
    left_out = values_outside(sizes, 1 - alpha)
    if left_out < 1:
        return math.inf
    pairs = len(sizes) == 1
    count = sizes[0] * (sizes[0] + 1) // 2 if pairs else math.prod(sizes)
    quantile = NormalDist().inv_cdf(1 - (left_out - 0.375) / (count + 0.25))
    return quantile * (math.sqrt(0.5) if pairs else math.sqrt(2.0))


@cache
def _normals() -> _Floats:
    """Standard normal values, shape [values for each analysis, draws]."""
    return np.random.default_rng(_SEED).standard_normal((_VALUES, _DRAWS))


def _chi_square(freedom: int, normal: _Floats) -> _Floats:
    """Converts normal values to chi-square values (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * freedom)
    quantile: _Floats = freedom * np.maximum(1 - part + normal * math.sqrt(part), 0.02) ** 3
    return quantile


class _Draws:
    """Simulated centre and scatter at later analyses.

    Args:
      sizes: numbers of measured values: one number for pairs, or one per side.
      centre, scatter: estimates from the measured values.
      truth: centre of all future values.
      afresh: whether later analyses exclude the measured values.
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
        # For two sides, the number of values that determines their difference.
        self._start = (
            (0.0, 0.0, 0.0, 0)
            if afresh
            else (self._sides / sum(1 / size for size in sizes), centre, squares, freedom)
        )
        self._measured = 0 if afresh else min(sizes)

    def chance(
        self, looks: Sequence[InterimAnalysis], reaches: Sequence[Sequence[float]], limit: float
    ) -> float:
        """The probability that an analysis returns the correct verdict.

        Args:
          reaches: for each analysis, half of the width of the interval, and the size of a
            significant change, in standard deviations.
          limit: the margin if `truth` is 0; otherwise the floor.
        """
        clear = np.zeros(_DRAWS, bool)
        for (reach, certain), (centre, deviation) in zip(reaches, self.after(looks), strict=True):
            if self.truth:
                clear |= (centre - reach * deviation > limit) & (centre > certain * deviation)
            else:
                clear |= np.abs(centre) + reach * deviation <= limit
        return float(clear.mean())

    def after(self, looks: Sequence[InterimAnalysis]) -> Iterator[tuple[_Floats, _Floats]]:
        """Yields estimates of centre and scatter, shape [draws] each, for each analysis."""
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
