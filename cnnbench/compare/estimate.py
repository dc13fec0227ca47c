"""Statistics of the values of both sides: a shift, its interval and a p value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.metrics.policy import Policy
from cnnbench.metrics.registry import THROUGHPUT, Metric
from cnnbench.stats import rank_tests
from cnnbench.stats.descriptive import median

# 0.75 - 0.745 is more than 0.005 in binary: limits are compared up to this share of them.
_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class Case:
    """One metric of one configuration, to be judged.

    Attributes:
      base, new: one value per process.
      metric: its rules.
      paired: the i-th values of both sides belong together (interleaved runs).
      noise: the A/A spread as `aa_spread` gives it; None if it was not measured.
    """

    base: Sequence[float]
    new: Sequence[float]
    metric: Metric = THROUGHPUT
    paired: bool = False
    noise: float | None = None

    @property
    def fewest(self) -> int:
        """Values of the smaller side."""
        return min(len(self.base), len(self.new))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The statistics of a case; changes are shares of the base, or differences.

    Attributes:
      change: the Hodges-Lehmann shift: -0.05 where new is 5 % lower than base.
      low, high: its confidence interval; None if there are too few values for one.
      p: of the two-sided test.
      base_median, new_median: of the values.
      floor: smallest change that counts: the metric's threshold or the A/A spread.
      margin: widest change that may be called the same.
      symmetric: whether a change of x and its opposite are x and -x (differences), or x
        and 1 / (1 + x) - 1 (shares).
    """

    change: float
    low: float | None
    high: float | None
    p: float
    base_median: float
    new_median: float
    floor: float
    margin: float
    symmetric: bool

    @property
    def beyond_floor(self) -> bool:
        """Whether the estimated change lies beyond the floor."""
        return _exceeds(self._size(self.change), self.floor)

    @property
    def within_margin(self) -> bool:
        """Whether the whole interval lies within what may be called the same."""
        if self.low is None or self.high is None:
            return False
        return not _exceeds(max(self._size(self.low), self._size(self.high)), self.margin)

    def _size(self, change: float) -> float:
        """The change without its direction: -1/11 is as large as +1/10, which undoes it."""
        if self.symmetric:
            return abs(change)
        return max(change, 1 / (1 + change) - 1) if change > -1 else math.inf


def _exceeds(size: float, limit: float) -> bool:
    return size > limit * (1 + _SLACK)


def usable(value: float, metric: Metric) -> bool:
    """Whether a number can be a value: finite, and positive where changes are shares.

    Args:
      value: in the metric's unit.
      metric: of the value.
    """
    return math.isfinite(value) and (value > 0 or not metric.relative)


def gather(case: Case, policy: Policy) -> Evidence:
    """Tests a case.

    Args:
      case: at least one value per side, all of them usable; equal counts if paired.
      policy: the constants.
    """
    metric = case.metric
    base = [_scaled(value, metric) for value in case.base]
    new = [_scaled(value, metric) for value in case.new]
    if case.paired:
        differences = [after - before for before, after in zip(base, new, strict=True)]
        interval = rank_tests.paired_shift(differences, policy.confidence)
        p = rank_tests.signed_rank_p(differences)
    else:
        interval = rank_tests.shift(base, new, policy.confidence)
        p = rank_tests.mann_whitney_p(base, new)
    base_median = median(case.base)
    threshold = metric.smallest_change(policy, base_median)
    floor = max(threshold, case.noise or 0.0)
    limit = max(threshold, policy.same_limit) if metric.relative else threshold
    return Evidence(
        change=_unscaled(interval.estimate, metric),
        low=None if interval.low is None else _unscaled(interval.low, metric),
        high=None if interval.high is None else _unscaled(interval.high, metric),
        p=p,
        base_median=base_median,
        new_median=median(case.new),
        floor=floor,
        margin=min(floor, limit),
        symmetric=not metric.relative,
    )


def aa_spread(values: Sequence[float], policy: Policy, metric: Metric = THROUGHPUT) -> float:
    """How far two processes of one configuration may lie apart by chance.

    ``noise_factor`` standard deviations, of the logarithms where changes are shares. The
    plain standard deviation: an outlier makes the gate more careful, the safe side.

    Args:
      values: one per process of an A/A measurement.
      policy: holds the factor.
      metric: what the values are.

    Raises:
      ValueError: fewer than two values, or one that cannot be.
    """
    if len(values) < 2 or not all(usable(value, metric) for value in values):
        raise ValueError(f"A/A spread of {list(values)}: needs two or more usable values")
    deviation = rank_tests.standard_deviation([_scaled(value, metric) for value in values])
    return _unscaled(policy.noise_factor * deviation, metric)


def _scaled(value: float, metric: Metric) -> float:
    return math.log(value) if metric.relative else value


def _unscaled(shift: float, metric: Metric) -> float:
    if not metric.relative:
        return shift
    try:
        return math.expm1(shift)
    except OverflowError:
        return math.inf
