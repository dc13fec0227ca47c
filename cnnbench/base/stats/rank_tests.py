"""Exact rank statistics for samples of a few values each.

A sample holds one value per process, so it is small, and ties are common (memory, accuracies). Both
tests are therefore permutation tests of midranks: they enumerate the rank sums that are possible
with the ties at hand, with the shift algorithm of Streitberg and Röhmel (1986), and stay exact
where tables and `scipy.stats` assume no ties. Without ties they are the Mann-Whitney U test and the
Wilcoxon signed-rank test; the unit tests compare them with SciPy. The estimates are those of Hodges
and Lehmann (1963), with the confidence intervals that invert these tests (Hollander and Wolfe,
Nonparametric Statistical Methods, sections 3.2, 3.3, 4.2 and 4.3). SciPy has no such intervals, and
its import takes longer than a comparison.

Samples of more than `EXACT` values use the normal approximation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = Sequence[float]
_Floats: TypeAlias = NDArray[np.float64]
_Tails: TypeAlias = tuple[_Floats, _Floats]  # P(S <= s) and P(S >= s) of a rank sum by s

EXACT = 40
"""Largest sample whose null distribution is enumerated (some 50 ms for two of them)."""

# Sums of probabilities that are equal on paper differ in the last digits.
_SLACK = 1e-12


@dataclass(frozen=True, slots=True)
class Interval:
    """A Hodges-Lehmann estimate with its confidence interval, in the unit of the values.

    The ends are None where the samples are too small for an interval of this confidence.
    """

    estimate: float
    low: float | None
    high: float | None


def mann_whitney_p(first: Values, second: Values) -> float:
    """Two-sided p of "both samples come from one distribution", exact also with ties."""
    ranks = _doubled_midranks([*first, *second])
    observed = int(ranks[: len(first)].sum())
    if max(len(first), len(second)) <= EXACT:
        key = tuple(sorted(ranks.tolist()))
        return _two_sided(_subset_sums(key, len(first)), observed)
    count = len(ranks)
    deviations = float(((ranks - ranks.mean()) ** 2).sum())
    variance = len(first) * len(second) / (count * (count - 1)) * deviations
    return _normal_p(observed - len(first) * float(ranks.mean()), variance)


def signed_rank_p(differences: Values) -> float:
    """Two-sided p of "differences are symmetric about 0", exact also with ties, without zeros."""
    kept = np.asarray([d for d in differences if d != 0.0])
    if not len(kept):
        return 1.0
    ranks = _doubled_midranks(np.abs(kept).tolist())
    observed = int(ranks[kept > 0].sum())
    if len(kept) <= EXACT:
        return _two_sided(_signed_sums(tuple(sorted(ranks.tolist()))), observed)
    return _normal_p(observed - float(ranks.sum()) / 2, float((ranks**2).sum()) / 4)


def shift(base: Values, new: Values, confidence: float) -> Interval:
    """Hodges-Lehmann shift of ``new`` against ``base``: median of all differences.

    The samples have at least one finite value each; `confidence`, such as 0.95, is a lower bound.
    """
    differences = np.sort(np.subtract.outer(np.asarray(new), np.asarray(base)).ravel())
    return _interval(differences, outside((len(base), len(new)), confidence))


def paired_shift(differences: Values, confidence: float) -> Interval:
    """Centre of paired differences (new - base): median of the means of all pairs of them."""
    means = np.sort(_pair_means(np.asarray(differences)))
    return _interval(means, outside([len(differences)], confidence))


def paired_bounds(differences: _Floats, confidence: float) -> tuple[_Floats, _Floats]:
    """Low and high ends, [samples], of the intervals of `paired_shift` for [samples, pairs].

    They are infinite where there are too few pairs.
    """
    left_out = outside([differences.shape[1]], confidence)
    if left_out < 1:
        ends = np.full(len(differences), np.inf)
        return -ends, ends
    means = _pair_means(differences)
    means.partition((left_out - 1, means.shape[1] - left_out), axis=1)
    return means[:, left_out - 1], means[:, -left_out]


def outside(sizes: Sequence[int], confidence: float) -> int:
    """Number of ordered values that an interval leaves out at each end; 0 for no interval.

    The values are the means of pairs, for the size of one sample of differences, or the differences
    of two samples, for the sizes of both.
    """
    if len(sizes) == 1:
        (count,) = sizes
        if count <= EXACT:
            lower, _ = _signed_sums(tuple(range(1, count + 1)))
            return _count_up_to(lower, (1 - confidence) / 2)
        variance = count * (count + 1) * (2 * count + 1) / 24
        return _outside(count * (count + 1) // 2, variance, confidence)
    base, new = sizes
    if max(sizes) <= EXACT:
        lower, _ = _subset_sums(tuple(range(1, base + new + 1)), base)
        return _count_up_to(lower, (1 - confidence) / 2, base * (base + 1) // 2)
    return _outside(base * new, base * new * (base + new + 1) / 12, confidence)


def smallest_p(base: int, new: int, paired: bool = False) -> float:
    """The p of samples that do not overlap, the smallest possible for these sizes.

    Two of all binomial(base + new, base) groupings, or (if paired, for the signed-rank test) two of
    all 2 ** pairs choices of signs.
    """
    if paired:
        return min(1.0, 2.0 ** (1 - min(base, new)))
    return min(1.0, 2 / math.comb(base + new, base))


def holm(p_values: Values) -> list[float]:
    """Holm's step-down adjustment (1979): an adjusted p below alpha is a rejection.

    Sorted ascending, the i-th of n (from 0) is multiplied by n - i, and none may be below its
    predecessor.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def standard_deviation(values: Values) -> float:
    """Sample standard deviation (n - 1) of at least two finite values."""
    return float(np.std(np.asarray(values), ddof=1))


def _doubled_midranks(values: Values) -> NDArray[np.int64]:
    """Twice the midranks, which are whole numbers: equal values share first + last rank."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: NDArray[np.int64] = (2 * last - counts + 1)[place.ravel()]
    return shared


@lru_cache(maxsize=256)
def _subset_sums(ranks: tuple[int, ...], size: int) -> _Tails:
    """Distribution of the sum of ``size`` of these ranks, all choices equally likely."""
    top = sum(sorted(ranks)[len(ranks) - size :])
    counts = np.zeros((size + 1, top + 1))
    counts[0, 0] = 1.0
    for rank in ranks:
        counts[1:, rank:] += counts[:-1, : top + 1 - rank].copy()
    return _tails(counts[size])


@lru_cache(maxsize=256)
def _signed_sums(ranks: tuple[int, ...]) -> _Tails:
    """Distribution of the sum of the ranks with a plus, all choices of signs equally likely."""
    top = sum(ranks)
    counts = np.zeros(top + 1)
    counts[0] = 1.0
    for rank in ranks:
        counts[rank:] += counts[: top + 1 - rank].copy()
    return _tails(counts)


def _tails(counts: _Floats) -> _Tails:
    chances = counts / counts.sum()
    return np.cumsum(chances), np.cumsum(chances[::-1])[::-1]


def _two_sided(tails: _Tails, observed: int) -> float:
    return float(min(1.0, 2 * min(tail[observed] for tail in tails)))


def _count_up_to(lower: _Floats, chance: float, first: int = 0) -> int:
    """Number of the sums from ``first`` on with P(S <= s) <= chance."""
    return int(np.searchsorted(lower[first:], chance * (1 + _SLACK), side="right"))


def _pair_means(differences: _Floats) -> _Floats:
    """Means of all pairs of values along the last axis, including each value with itself."""
    rows, columns = np.triu_indices(differences.shape[-1])
    found: _Floats = (differences[..., rows] + differences[..., columns]) / 2
    return found


def _outside(count: int, variance: float, confidence: float) -> int:
    """Number of ordered values left out at each end in the normal approximation."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return max(0, math.floor(count / 2 - z * math.sqrt(variance)))


def _interval(ordered: _Floats, left_out: int) -> Interval:
    estimate = float(np.median(ordered))
    if left_out < 1:
        return Interval(estimate, None, None)
    return Interval(estimate, float(ordered[left_out - 1]), float(ordered[-left_out]))


def _normal_p(deviation: float, variance: float) -> float:
    if variance == 0:
        return 1.0
    # Doubled ranks: a step of the statistic is 2, hence 1 as the continuity correction.
    z = max(0.0, abs(deviation) - 1.0) / math.sqrt(variance)
    return min(1.0, 2 * NormalDist().cdf(-z))
