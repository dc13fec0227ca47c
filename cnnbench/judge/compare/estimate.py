"""Estimates the change of a metric between two samples, with its interval and p-value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

from cnnbench.base import inference
from cnnbench.base.inference import AnalysisSchedule, InterimAnalysis
from cnnbench.base.stats import median
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.judge.metrics.policy import Policy
from cnnbench.records.codec import dataclass_from_sources
from cnnbench.records.metric import Metric

# Limits are compared with this relative tolerance, because of rounding errors: as floats, 0.75 -
# 0.745 exceeds 0.005.
_SLACK = 1e-9

_ROUNDING = 1e-12  # Smaller standard deviations of logarithms are rounding errors.


@dataclass(frozen=True)
class Samples:
    """The values of one metric of one configuration in BASE and in NEW, one value per process.

    Attributes:
      paired: whether the i-th values of BASE and NEW are a pair (interleaved runs).
      differences: differences of pairs (new - base) on the scale of `log_or_value`. None means that
        they are computed from the values.
      looks: interim analyses of an experiment up to this one, which uses all pairs. Empty if the
        pairs are judged only once.
      plan: plan for judging further pairs. None means that further runs are judged together with
        the measured runs.
    """

    base: Sequence[float]
    new: Sequence[float]
    metric: Metric = THROUGHPUT
    _: KW_ONLY
    paired: bool = False
    differences: Sequence[float] | None = None
    looks: tuple[InterimAnalysis, ...] = ()
    plan: AnalysisSchedule | None = None

    @property
    def needs_new_experiment(self) -> bool:
        """Whether further pairs belong to a new experiment, which excludes the measured pairs."""
        return self.plan is not None and self.plan.is_new_experiment

    @property
    def smaller_sample_size(self) -> int:
        """The number of values in BASE or in NEW, whichever has fewer values."""
        return min(len(self.base), len(self.new))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimated change of a metric.

    Attributes:
      change: the Hodges-Lehmann shift as a share of the base (-0.05 means that new is 5 % lower),
        or as a difference for accuracies; None if unknown.
      low, high: confidence interval of the change; None if there are too few values.
    """

    change: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class SampleStatistics(Samples, Estimate):
    """Two samples with their statistics: estimated change, interval, p-value and limits. A change
    is a share of the base value or, for metrics such as accuracy, a difference.

    Attributes:
      policy: constants of the tests for this metric and configuration.
      p_of_looks: p-value that takes all interim analyses into account; it equals `p` without them.
      alpha: the interval has the level 1 - alpha, over all interim analyses.
      others: as in `cnnbench.judge.compare.judgement.Judgement`. The interval is None if there are
        too few values.
    """

    policy: Policy
    family: int
    change: float
    p: float
    p_of_looks: float
    alpha: float
    base_median: float
    new_median: float
    floor: float
    scatter: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether all changes in the confidence interval have the same sign."""
        return self.low is not None and self.high is not None and self.low * self.high > 0

    @property
    def interval_exceeds_floor(self) -> bool:
        """Whether all changes in the confidence interval have the same sign and exceed the smallest
        relevant change.
        """
        if self.low is None or self.high is None or not self.excludes_zero:
            return False
        return all(exceeds(end, self.metric, self.floor) for end in (self.low, self.high))

    @property
    def is_relevant(self) -> bool:
        """Whether the direction of the change is certain, and the estimate exceeds the smallest
        relevant change. Without pairs, the whole interval must exceed it, because sessions may
        drift by an unknown amount.
        """
        if not self.paired:
            return self.interval_exceeds_floor
        return self.excludes_zero and exceeds(self.change, self.metric, self.floor)

    def may_exceed_floor(self, better: bool) -> bool:
        """Whether the confidence interval contains a change for the better (or for the worse) above
        the smallest relevant change.
        """
        is_higher = better == self.metric.higher_is_better
        end = self.high if is_higher else self.low
        if end is None:
            return True
        return (end > 0) == is_higher and exceeds(end, self.metric, self.floor)


def exceeds(change: float, metric: Metric, limit: float) -> bool:
    """Whether the size of a change exceeds a limit by more than a rounding error. A relative
    change and its inverse have the same size: -1/11 and +1/10.
    """
    size = abs(change)
    if metric.relative:
        size = max(change, 1 / (1 + change) - 1) if change > -1 else math.inf
    return size > limit * (1 + _SLACK)


def is_usable(value: float, metric: Metric) -> bool:
    """Whether a value of the metric can be tested. The value must be finite and, for metrics with
    relative changes, positive.
    """
    return math.isfinite(value) and (value > 0 or not metric.relative)


def usable_values(records: Iterable[Measurement], metric: Metric) -> tuple[float, ...]:
    """The values of the metric that can be tested (see `is_usable`), from successful measurements
    that have the metric.
    """
    values = metric.values([record for record in records if record.status == "ok"])
    return tuple(value for value in values if value is not None and is_usable(value, metric))


def statistics_of(
    samples: Samples, policy: Policy, family: int = 1, alpha: float | None = None
) -> SampleStatistics:
    """Computes estimate, confidence interval, p-value and limits of two samples. Both samples need
    usable values; paired samples must have equal length.

    Args:
      family: number of configurations that are tested together.
      alpha: level of the interval over all interim analyses; None for the policy's share of alpha.
    """
    metric = samples.metric
    alpha = policy.alpha_share * policy.alpha if alpha is None else alpha
    if samples.paired:
        looks = samples.looks or (InterimAnalysis(len(samples.base), 1.0),)
        differences = _pair_differences(samples)
        interval = inference.sequential_shift(differences, looks, alpha)
        p = inference.signed_rank_p(differences)
        p_of_looks = inference.sequential_p(differences, looks)
        scatter = inference.standard_deviation(differences) if len(differences) > 1 else None
    else:
        base, new = _on_test_scale(samples)
        interval = inference.hodges_lehmann_shift(base, new, 1 - alpha)
        p = p_of_looks = inference.mann_whitney_p(base, new)
        scatter = _pooled_sd(base, new)
    return dataclass_from_sources(
        SampleStatistics,
        samples,
        policy=policy,
        family=family,
        change=from_test_scale(interval.estimate, metric),
        low=None if interval.low is None else from_test_scale(interval.low, metric),
        high=None if interval.high is None else from_test_scale(interval.high, metric),
        p=p,
        p_of_looks=p_of_looks,
        alpha=alpha,
        base_median=median(samples.base),
        new_median=median(samples.new),
        floor=smallest_relevant_change(samples, policy),
        # Logarithms of equal ratios may differ in their last digits; such tiny deviations count as
        # 0.
        scatter=0.0 if scatter is not None and scatter < _ROUNDING else scatter,
    )


def _on_test_scale(samples: Samples) -> tuple[list[float], list[float]]:
    """Returns the values of BASE and of NEW on the scale of `log_or_value`."""
    base, new = (
        [log_or_value(value, samples.metric) for value in side]
        for side in (samples.base, samples.new)
    )
    return base, new


def _pair_differences(samples: Samples) -> Sequence[float]:
    """Returns the difference of each pair (new - base) on the scale of `log_or_value`."""
    if samples.differences is not None:
        return samples.differences
    base, new = _on_test_scale(samples)
    return [after - before for before, after in zip(base, new, strict=True)]


def changes_of_pairs(samples: Samples) -> list[float]:
    """Returns the change of each pair: a share of the base value, or a difference. Empty if the
    samples are not paired, or if a value cannot be tested.
    """
    sides = (samples.base, samples.new)
    usable = all(is_usable(value, samples.metric) for side in sides for value in side)
    if not (samples.paired and usable and len(samples.base) == len(samples.new)):
        return []
    return [from_test_scale(one, samples.metric) for one in _pair_differences(samples)]


def smallest_relevant_change(samples: Samples, policy: Policy) -> float:
    """Returns the smallest relevant change. BASE must have a value."""
    threshold, base = policy.threshold_of(samples.metric), median(samples.base)
    if samples.metric.least and base > 0:
        threshold = max(threshold, samples.metric.least / base)
    return threshold


def to_test_scale(change: float, metric: Metric) -> float:
    """Converts a change of the metric to the scale on which the tests compute: relative changes
    become differences of logarithms. Inverse of `from_test_scale`.
    """
    if not metric.relative:
        return change
    # A relative change of -1 has no logarithm. It can result from rounding, if the value decreased
    # to nearly 0.
    return math.log1p(change) if change > -1 else -math.inf


def _pooled_sd(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Returns the pooled standard deviation of two samples, whose means may differ; None if there
    are too few values.
    """
    freedom = len(first) + len(second) - 2
    if freedom < 1:
        return None
    squares = [
        (len(side) - 1) * inference.standard_deviation(side) ** 2
        for side in (first, second)
        if len(side) > 1
    ]
    return math.sqrt(sum(squares) / freedom)


def log_or_value(value: float, metric: Metric) -> float:
    """Converts a value of the metric to the scale on which the tests compute: its logarithm if
    changes are relative, otherwise the value itself.
    """
    return math.log(value) if metric.relative else value


def from_test_scale(shift: float, metric: Metric) -> float:
    """Converts a shift on the scale on which the tests compute (see `log_or_value`) to a change of
    the metric: a share of the base value, or a difference. Inverse of `to_test_scale`.
    """
    if not metric.relative:
        return shift
    try:
        return math.expm1(shift)
    except OverflowError:
        return math.inf
