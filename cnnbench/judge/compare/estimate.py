"""Estimates the change of a metric between two samples, with its confidence interval and p-value,
and how many processes a verdict needs.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

from cnnbench.base import inference
from cnnbench.base.inference import (
    MOST_PAIRS,
    MOST_PROCESSES,
    AnalysisSchedule,
    InterimAnalysis,
    interval_end_rank,
    levels_of_analyses,
    pair_counts_to_try,
)
from cnnbench.base.stats import median
from cnnbench.judge.metrics import THROUGHPUT, Measurement, Policy
from cnnbench.records.codec import dataclass_from_sources
from cnnbench.records.metric import Metric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from cnnbench.base import lazy_numpy as np

# Computes the statistics of two samples: shift, confidence interval and p-value.

# Relative tolerance for rounding errors in limits: as floats, 0.75 - 0.745 exceeds 0.005.
_SLACK = 1e-9

_ROUNDING = 1e-12  # Smaller standard deviations of logarithms are rounding errors.

# The power with which a test finds the change that `detectable_change` returns.
_POWER = 0.8


class AnnotationLevel(enum.Enum):
    """How a CI job reports a verdict: as an error, a warning, a notice, or not at all. The values
    are GitHub's annotation levels.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"
    NONE = ""


class Verdict(enum.Enum):
    """The verdict on a metric of a configuration. Verdicts are in order from worst to best.

    For every metric, also for memory or accuracy, FASTER means better and SLOWER means worse.
    NOT_SLOWER means that a change for the worse is smaller than the threshold, NOT_FASTER that a
    change for the better is. Each answers the question of a user who asks only for this change.
    """

    SLOWER = "slower"
    CHANGED_WORK = "changed work"
    FAILED = "failed"
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"
    NOT_MEASURED = "not measured"
    INCONCLUSIVE = "inconclusive"
    NOT_FASTER = "not faster"
    NOT_SLOWER = "not slower"
    FASTER = "faster"
    SAME = "same"

    @property
    def is_undecided(self) -> bool:
        """Whether the verdict is still open, although no run failed: inconclusive, not measured,
        not comparable, or missing.
        """
        return self in (
            Verdict.INCONCLUSIVE,
            Verdict.NOT_MEASURED,
            Verdict.NOT_COMPARABLE,
            Verdict.MISSING,
        )

    def word(self, metric: Metric) -> str:
        """The word for this verdict that fits the metric, such as "slower" for throughput or "more"
        for memory.
        """
        better, worse = metric.better, metric.worse
        words = {
            Verdict.FASTER: better,
            Verdict.NOT_FASTER: f"not {better}",
            Verdict.SLOWER: worse,
            Verdict.NOT_SLOWER: f"not {worse}",
        }
        return words.get(self, self.value)


@dataclass(frozen=True)
class Samples:
    """The values of one metric of one configuration in BASE and in NEW, one value per process.

    Attributes:
      paired: whether the i-th values of BASE and NEW are a pair (interleaved runs).
      noise: the A/A spread (see `aa_spread`); None if it was not measured.
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
    noise: float | None = None
    differences: Sequence[float] | None = None
    looks: tuple[InterimAnalysis, ...] = ()
    plan: AnalysisSchedule | None = None

    @property
    def all_looks(self) -> tuple[InterimAnalysis, ...]:
        """The interim analyses up to this one; one that spends all of alpha if there are none."""
        return self.looks or (InterimAnalysis(self.smaller_sample_size, 1.0),)

    @property
    def smaller_sample_size(self) -> int:
        """The number of values in BASE or in NEW, whichever has fewer values."""
        return min(len(self.base), len(self.new))


@dataclass(frozen=True, kw_only=True)
class SampleStatistics(Samples):
    """Two samples with their statistics: estimated change, interval, p-value and limits. A change
    is a share of the base value or, for metrics such as accuracy, a difference.

    Attributes:
      policy: constants of the tests for this metric and configuration.
      family: number of configurations that are tested together.
      change: the Hodges-Lehmann shift. -0.05 means that new is 5 % lower than base.
      low, high: confidence interval of the change; None if there are too few values.
      p: p-value of the two-sided test.
      p_of_looks: p-value that takes all interim analyses into account; it equals `p` without them.
      alpha: the interval has the level 1 - alpha, over all interim analyses.
      floor: smallest relevant change: the metric's threshold or the A/A spread.
      margin: largest change for the verdict "same".
      scatter: standard deviation of the pairs' differences or, without pairs, of the values within
        BASE and within NEW. If changes are shares, it is the deviation of logarithms. None if
        there are too few values.
    """

    policy: Policy
    family: int
    change: float
    low: float | None
    high: float | None
    p: float
    p_of_looks: float
    alpha: float
    base_median: float
    new_median: float
    floor: float
    margin: float
    scatter: float | None

    @property
    def by_interval(self) -> bool:
        """Whether a change is relevant only if the whole interval exceeds the smallest relevant
        change. Without pairs and without an A/A spread, sessions may drift by an unknown amount.
        """
        return self.policy.by_interval or (not self.paired and self.noise is None)

    @property
    def change_exceeds_floor(self) -> bool:
        """Whether the estimated change is larger than the smallest relevant change."""
        return exceeds_limit(change_magnitude(self.change, self.metric), self.floor)

    @property
    def excludes_no_change(self) -> bool:
        """Whether all changes in the confidence interval have the same sign."""
        return self.low is not None and self.high is not None and self.low * self.high > 0

    @property
    def interval_exceeds_floor(self) -> bool:
        """Whether all changes in the confidence interval have the same sign and exceed the smallest
        relevant change.
        """
        if self.low is None or self.high is None or not self.excludes_no_change:
            return False
        smallest = min(change_magnitude(end, self.metric) for end in (self.low, self.high))
        return exceeds_limit(smallest, self.floor)

    @property
    def may_be_worse(self) -> bool:
        """Whether the confidence interval contains a change for the worse above the margin."""
        return self._may_be_lower if self.metric.higher_is_better else self._may_be_higher

    @property
    def may_be_better(self) -> bool:
        """Whether the confidence interval contains a change for the better above the margin."""
        return self._may_be_higher if self.metric.higher_is_better else self._may_be_lower

    @property
    def _may_be_lower(self) -> bool:
        return self.low is None or (self.low < 0 and self._exceeds_margin(self.low))

    @property
    def _may_be_higher(self) -> bool:
        return self.high is None or (self.high > 0 and self._exceeds_margin(self.high))

    def _exceeds_margin(self, change: float) -> bool:
        return exceeds_limit(change_magnitude(change, self.metric), self.margin)


def change_magnitude(change: float, metric: Metric) -> float:
    """Magnitude of a change, at least 0. For relative changes, a change and its inverse have the
    same magnitude: -1/11 and +1/10.
    """
    if not metric.relative:
        return abs(change)
    return max(change, 1 / (1 + change) - 1) if change > -1 else math.inf


def exceeds_limit(value: float, limit: float) -> bool:
    """Whether a number is larger than a limit by more than a rounding error."""
    return value > limit * (1 + _SLACK)


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


def compute_sample_statistics(
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
    base = [log_or_value(value, metric) for value in samples.base]
    new = [log_or_value(value, metric) for value in samples.new]
    if samples.paired:
        differences = samples.differences
        if differences is None:
            differences = [after - before for before, after in zip(base, new, strict=True)]
        interval = inference.sequential_shift(differences, samples.all_looks, alpha)
        p = inference.signed_rank_p(differences)
        p_of_looks = inference.sequential_p(differences, samples.all_looks)
        scatter = inference.standard_deviation(differences) if len(differences) > 1 else None
    else:
        interval = inference.hodges_lehmann_shift(base, new, 1 - alpha)
        p = p_of_looks = inference.mann_whitney_p(base, new)
        scatter = _pooled_deviation(base, new)
    floor, margin = relevance_floor_and_same_margin(samples, policy)
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
        floor=floor,
        margin=margin,
        # Logarithms of equal ratios may differ in their last digits, so tiny deviations become 0.
        scatter=0.0 if scatter is not None and scatter < _ROUNDING else scatter,
    )


def relevance_floor_and_same_margin(samples: Samples, policy: Policy) -> tuple[float, float]:
    """Returns the smallest relevant change, and the largest change for the verdict "same". BASE
    must have a value.

    The A/A spread has no part in the comparison of pairs, because A and B run in random order at
    the same time. Without pairs, it is the difference between sessions.
    """
    threshold, base = policy.threshold_of(samples.metric), median(samples.base)
    if samples.metric.least and base > 0:
        threshold = max(threshold, samples.metric.least / base)
    floor = threshold if samples.paired else max(threshold, samples.noise or 0.0)
    limit = max(threshold, policy.same_limit) if samples.metric.relative else threshold
    return floor, min(floor, limit)


def detectable_change(statistics: SampleStatistics, number: int, alpha: float) -> float | None:
    """Returns the change that a test with `number` pairs (or processes in each of BASE and NEW)
    finds with 80 % power.

    Uses the normal approximation with the measured standard deviation. Rank tests need pi/3 times
    as many values as a t-test (Hodges and Lehmann, 1956). Returns None if the standard deviation
    is 0 or unknown.
    """
    if not statistics.scatter:
        return None
    normal = NormalDist()
    quantiles = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(_POWER)
    error = statistics.scatter * math.sqrt((1 if statistics.paired else 2) * math.pi / 3 / number)
    return from_test_scale(
        to_test_scale(statistics.floor, statistics.metric) + quantiles * error, statistics.metric
    )


def to_test_scale(change: float, metric: Metric) -> float:
    """Converts a change of the metric to the scale on which the tests compute: relative changes
    become differences of logarithms. Inverse of `from_test_scale`.
    """
    if not metric.relative:
        return change
    # A relative change that rounds to -1 means that the value decreased to nearly 0.
    return math.log1p(change) if change > -1 else -math.inf


def aa_spread(values: Sequence[float], policy: Policy, metric: Metric = THROUGHPUT) -> float:
    """Returns an upper limit for random differences between two processes of the same
    configuration, computed from A/A runs.

    The limit is ``noise_factor`` standard deviations (of logarithms, if changes are shares).
    Outliers increase the limit, so the gate reports fewer changes. Raises ValueError for fewer than
    two values, or for an unusable value.
    """
    if len(values) < 2 or not all(is_usable(value, metric) for value in values):
        raise ValueError(f"A/A spread of {list(values)}: needs two or more usable values")
    deviation = inference.standard_deviation([log_or_value(value, metric) for value in values])
    return from_test_scale(policy.noise_factor * deviation, metric)


def aa_spread_of_runs(
    records: Iterable[Measurement], metric: Metric, policy: Policy
) -> float | None:
    """Computes the A/A spread of a metric (see `aa_spread`) from A/A runs. Returns None if fewer
    than `policy.min_processes` values are usable.
    """
    values = usable_values(records, metric)
    return aa_spread(values, policy, metric) if len(values) >= policy.min_processes else None


def _pooled_deviation(first: Sequence[float], second: Sequence[float]) -> float | None:
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


def is_too_many_further_runs(more: int, paired: bool) -> bool:
    """Whether `more` further pairs (or processes in each of BASE and NEW) are too many to
    recommend.
    """
    return more > (MOST_PAIRS if paired else MOST_PROCESSES)


# Estimates the number of further pairs or processes that an inconclusive comparison needs.
#
# Future runs are simulated for increasing numbers of runs.
# Every interim analysis is simulated, at the significance level of that analysis.
# Measured runs are included unchanged, unless a new experiment begins.
# Sums of values are simulated instead of single values.
# If values are normally distributed, sums determine the Hodges-Lehmann estimate and its interval.
# The k-th smallest of n normal values is about the normal quantile of (k - 0.375) / (n + 0.25).
# Source: Blom, Statistical Estimates and Transformed Beta-Variables, 1958.
# Few runs were measured, so the variance is drawn from its posterior distribution.

_CHANCE = 0.82
"""Minimum probability of a verdict with the recommended number of runs. Because the number is
rounded up to the next interim analysis, the probability becomes 0.8 to 0.87.
"""

_DRAWS = 1000
_VALUES = 101  # One number for the variance, and two for each of up to fifty interim analyses.
_SEED = 1
_PLAUSIBLE = 2.0  # The unit is standard errors.
_KNOWN = 2
"""Factor for the degrees of freedom in the posterior distribution of the variance. With a factor of
1, the recommended number of pairs would be twice as high as most experiments need, if few pairs
with little variation have been measured.
"""
# Ratio of the variance of the Hodges-Lehmann estimate to the variance of the mean.
_EFFICIENCY = math.pi / 3

_Floats: TypeAlias = "NDArray[np.float64]"


def processes_for_verdict(statistics: SampleStatistics, alphas: tuple[float, float]) -> int | None:
    """Estimates the total number of pairs that a verdict needs. Without pairs, estimates the number
    of processes that BASE or NEW needs, whichever has fewer.

    With this number, the verdict is correct with 80 % power in two cases: "same" or "not slower" if
    nothing changed; "slower" or "faster" if the change is twice the smallest relevant change or, if
    larger, the estimate less its standard error. A case more than `_PLAUSIBLE` standard errors from
    the estimate is ignored. If this excludes both, the estimate is the only case. Returns None if
    the deviation or the margin is 0 or unknown.

    Args:
      statistics: its plan defines how further pairs are judged.
      alphas: levels of the interval and of the test, over all interim analyses.
    """
    floor, margin = (
        to_test_scale(limit, statistics.metric) for limit in (statistics.floor, statistics.margin)
    )
    change = to_test_scale(statistics.change, statistics.metric)
    if not (statistics.scatter and margin and math.isfinite(change)):
        return None
    estimate, scatter = abs(change), statistics.scatter
    is_worse = (change < 0) == statistics.metric.higher_is_better
    smaller = statistics.smaller_sample_size
    sizes = (smaller,) if statistics.paired else (len(statistics.base), len(statistics.new))
    error = scatter * math.sqrt(_EFFICIENCY * sum(1 / size for size in sizes))
    plan = statistics.plan
    afresh = plan is not None and plan.is_new_experiment
    if afresh and not statistics.paired:
        # The difference of a pair varies sqrt(2) times as much as a single value.
        sizes, scatter = (smaller,), scatter * math.sqrt(2)
    truths = [0.0] if estimate <= _PLAUSIBLE * error else []
    if estimate >= floor or estimate + _PLAUSIBLE * error >= 2 * floor:
        truths.append(max(2 * floor, estimate - error))
    futures = [
        _SimulatedEstimates(sizes, estimate, scatter, truth, afresh)
        for truth in truths or [estimate]
    ]

    def is_enough(number: int) -> bool:
        analyses, widths = _later_analyses(plan, number, sizes, alphas)
        return all(
            draws.chance_of_change(analyses, widths, floor, statistics.by_interval) >= _CHANCE
            if draws.truth >= floor
            else draws.chance_of_limit(analyses, widths, margin, is_worse) >= _CHANCE
            for draws in futures
        )

    numbers = (
        pair_counts_to_try(smaller + 1, 1, MOST_PROCESSES)
        if plan is None
        else plan.significant_pair_counts(smaller, alphas[1])
    )
    choices = list(numbers)
    return choices[min(bisect_left(choices, True, key=is_enough), len(choices) - 1)]


def _later_analyses(
    plan: AnalysisSchedule | None, number: int, sizes: Sequence[int], alphas: tuple[float, float]
) -> tuple[Sequence[InterimAnalysis], list[list[float]]]:
    """Returns the interim analyses that follow up to `number` pairs and, for each of them, half of
    the width of the confidence interval at both levels in `alphas`.

    `sizes` contains the number of measured pairs, or of measured values in BASE and in NEW.
    """
    if plan is None:
        analyses: tuple[InterimAnalysis, ...] = (InterimAnalysis(number, 1.0),)
        levels = [alphas]
    else:
        analyses = plan.analyses(number)
        every = (*plan.made, *analyses)
        both = (levels_of_analyses(every, alpha)[len(plan.made) :] for alpha in alphas)
        levels = list(zip(*both, strict=True))
    widths = []
    for analysis, of_analysis in zip(analyses, levels, strict=True):
        then = [size + analysis.pairs - min(sizes) for size in sizes]
        widths.append([interval_half_width(then, level) for level in of_analysis])
    return analyses, widths


def interval_half_width(sizes: Sequence[int], alpha: float) -> float:
    """Returns half of the width of the Hodges-Lehmann confidence interval at level 1 - alpha,
    divided by the standard deviation of a value.

    `sizes` contains the number of pairs, or the numbers of processes in BASE and NEW. The result is
    infinite if there are too few values.
    """
    left_out = interval_end_rank(sizes, 1 - alpha)
    if left_out < 1:
        return math.inf
    pairs = len(sizes) == 1
    count = sizes[0] * (sizes[0] + 1) // 2 if pairs else math.prod(sizes)
    quantile = NormalDist().inv_cdf(1 - (left_out - 0.375) / (count + 0.25))
    return quantile * (math.sqrt(0.5) if pairs else math.sqrt(2.0))


@cache
def _normal_numbers() -> _Floats:
    """Returns standard normal random numbers with a fixed seed, shape [_VALUES, _DRAWS]."""
    return np.random.default_rng(_SEED).standard_normal((_VALUES, _DRAWS))


def _chi_square_from_normal(freedom: int, normal: _Floats) -> _Floats:
    """Converts standard normal numbers to chi-square numbers (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * freedom)
    quantile: _Floats = freedom * np.maximum(1 - part + normal * math.sqrt(part), 0.02) ** 3
    return quantile


class _SimulatedEstimates:
    """Simulates the estimated change and its standard deviation at later interim analyses, for many
    random draws.

    Args:
      sizes: the number of measured pairs, or the numbers of measured values in BASE and NEW.
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
        first, *self._normals = _normal_numbers()
        self._scatter = np.sqrt(_KNOWN * squares / _chi_square_from_normal(_KNOWN * freedom, first))
        self.truth = truth
        # Without pairs, the first item is the harmonic mean of the numbers of values.
        self._start = (
            (0.0, 0.0, 0.0, 0)
            if afresh
            else (self._sides / sum(1 / size for size in sizes), centre, squares, freedom)
        )
        self._measured = 0 if afresh else min(sizes)

    def chance_of_change(
        self,
        analyses: Sequence[InterimAnalysis],
        widths: Sequence[Sequence[float]],
        floor: float,
        by_interval: bool,
    ) -> float:
        """Returns the share of the simulated draws in which at least one interim analysis finds a
        change of at least `floor`.

        Args:
          widths: for each analysis, half of the width of the interval, and the size of a
            significant change, in standard deviations.
          by_interval: whether the whole interval must exceed the floor.
        """
        found = np.zeros(_DRAWS, bool)
        for (width, certain), (centre, deviation) in zip(
            widths, self.simulate(analyses), strict=True
        ):
            least = centre - width * deviation * by_interval
            found |= (least >= floor) & (centre > certain * deviation)
        return float(found.mean())

    def chance_of_limit(
        self,
        analyses: Sequence[InterimAnalysis],
        widths: Sequence[Sequence[float]],
        margin: float,
        is_worse: bool,
    ) -> float:
        """Returns the share of the simulated draws in which at least one interim analysis finds
        that no change for the worse exceeds `margin`.

        `is_worse` says whether the measured change is one for the worse. For `widths`, see
        `chance_of_change`.
        """
        found = np.zeros(_DRAWS, bool)
        for (width, _), (centre, deviation) in zip(widths, self.simulate(analyses), strict=True):
            worst = (centre if is_worse else -centre) + width * deviation
            found |= worst <= margin
        return float(found.mean())

    def simulate(self, analyses: Sequence[InterimAnalysis]) -> Iterator[tuple[_Floats, _Floats]]:
        """Yields the simulated change and standard deviation at each analysis, shape [draws]."""
        count, start, measured_squares, freedom = self._start
        centre, squares = (np.full(_DRAWS, value) for value in (start, measured_squares))
        measured = self._measured
        for index, analysis in enumerate(analyses):
            more = analysis.pairs - measured
            measured = analysis.pairs
            normal, other = self._normals[2 * index : 2 * index + 2]
            error = self._scatter * math.sqrt(_EFFICIENCY * self._sides / more)
            mean = self.truth + error * normal
            within = self._sides * more - 1
            squares = squares + self._scatter**2 * (
                _chi_square_from_normal(within, other) if within else 0.0
            )
            squares = squares + count * more / (count + more) * (mean - centre) ** 2 / self._sides
            centre = (count * centre + more * mean) / (count + more)
            freedom += self._sides * more - (not count) * self._sides
            count += more
            yield centre, np.sqrt(squares / freedom)
