"""Means of paired rounds with confidence intervals.

A round is the unit: all subjects of a round met the same state of the machine,
so the figure is formed per round and averaged over rounds. Ratios are averaged as
logarithms, which makes A/B the inverse of B/A.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

# Student's t, two-sided 95 %, for 1 to 9 degrees of freedom.
_T95 = (12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over rounds and its 95 % interval.

    Attributes:
      mean: Arithmetic or geometric mean.
      low: Lower end of the interval; minus infinity (0 for ratios) from one round.
      high: Upper end of the interval.
      rounds: How many rounds it comes from.
    """

    mean: float
    low: float
    high: float
    rounds: int


def t95(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t.

    From 10 degrees of freedom on by the Cornish-Fisher expansion around the
    normal quantile, which is then within 0.0002 of the exact value.

    Raises:
      ValueError: freedom is less than 1.
    """
    if freedom < 1:
        raise ValueError(f"{freedom} degrees of freedom; one is the least")
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Arithmetic mean of one value per round.

    Raises:
      ValueError: There are no values.
    """
    if not values:
        raise ValueError("no values")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    half = t95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def ratio_estimate(ratios: Sequence[float]) -> Estimate:
    """Geometric mean of one ratio per round.

    Raises:
      ValueError: There are no ratios, or one is not positive.
    """
    if any(ratio <= 0 for ratio in ratios):
        raise ValueError(f"ratios must be positive: {list(ratios)}")
    logs = mean_estimate([math.log(ratio) for ratio in ratios])
    return Estimate(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high), logs.rounds)
