"""Estimates the change of a metric between two samples, with its confidence interval and p-value,
and writes sentences about the change.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from cnnbench.base import inference
from cnnbench.base.inference import MOST_PAIRS, MOST_PROCESSES, AnalysisSchedule
from cnnbench.base.stats import median
from cnnbench.base.text import NONE, count_text, item_count
from cnnbench.judge.metrics import THROUGHPUT, Measurement, Policy
from cnnbench.records.codec import dataclass_from_sources
from cnnbench.records.metric import Metric

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
    """

    SLOWER = "slower"
    CHANGED_WORK = "changed work"
    FAILED = "failed"
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"
    NOT_MEASURED = "not measured"
    INCONCLUSIVE = "inconclusive"
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
        if self is Verdict.FASTER:
            return metric.better
        return metric.worse if self is Verdict.SLOWER else self.value


@dataclass(frozen=True, kw_only=True)
class TwoSamples:
    """The values of one metric of one configuration in BASE and in NEW, one value per process.

    Attributes:
      paired: whether the i-th values of BASE and NEW are a pair (interleaved runs).
      noise: the A/A spread (see `aa_spread`); None if it was not measured.
      differences: differences of pairs (new - base) on the scale of `log_or_value`. None means that
        they are computed from the values.
      share: share of the significance level for the tests of this metric. Tests of another metric
        of the same runs use the rest.
      plan: plan for judging further pairs. None means that further runs are judged together with
        the measured runs.
      family: number of configurations that are tested together.
      asked: whether an inconclusive result sets the exit code.
      known: verdict and reason if no test is needed; otherwise None.
      policy: constants of the tests for this metric and configuration.
    """

    base: Sequence[float]
    new: Sequence[float]
    metric: Metric = THROUGHPUT
    paired: bool = False
    noise: float | None = None
    differences: Sequence[float] | None = None
    share: float = 1.0
    plan: AnalysisSchedule | None = None
    family: int = 1
    asked: bool = True
    known: tuple[Verdict, str] | None = None
    policy: Policy = field(default=Policy(), repr=False)

    @property
    def alpha_share(self) -> float:
        """The share of the significance level alpha that the tests of this metric use: `share`,
        multiplied by the share that the rules give to the metric.
        """
        return self.share * (1.0 if self.policy.share is None else self.policy.share)

    @property
    def smaller_sample_size(self) -> int:
        """The number of values in BASE or in NEW, whichever has fewer values."""
        return min(len(self.base), len(self.new))


@dataclass(frozen=True, kw_only=True)
class SampleStatistics(TwoSamples):
    """Two samples with their statistics: estimated change, interval, p-value and limits. A change
    is a share of the base value or, for metrics such as accuracy, a difference.

    Attributes:
      change: the Hodges-Lehmann shift. -0.05 means that new is 5 % lower than base.
      low, high: confidence interval of the change; None if there are too few values.
      p: p-value of the two-sided test.
      floor: smallest relevant change: the metric's threshold or the A/A spread.
      margin: largest change for the verdict "same".
      scatter: standard deviation of the pairs' differences or, without pairs, of the values within
        BASE and within NEW. If changes are shares, it is the deviation of logarithms. None if
        there are too few values.
    """

    change: float
    low: float | None
    high: float | None
    p: float
    base_median: float
    new_median: float
    floor: float
    margin: float
    scatter: float | None

    @property
    def change_exceeds_floor(self) -> bool:
        """Whether the estimated change is larger than the smallest relevant change."""
        return exceeds_limit(change_magnitude(self.change, self.metric), self.floor)

    @property
    def interval_exceeds_floor(self) -> bool:
        """Whether all changes in the confidence interval have the same sign and exceed the smallest
        relevant change.
        """
        if self.low is None or self.high is None or (self.low < 0) != (self.high < 0):
            return False
        smallest = min(change_magnitude(end, self.metric) for end in (self.low, self.high))
        return exceeds_limit(smallest, self.floor)

    @property
    def interval_within_margin(self) -> bool:
        """Whether no change in the confidence interval exceeds the margin, which is the largest
        change for the verdict "same".
        """
        if self.low is None or self.high is None:
            return False
        largest = max(change_magnitude(end, self.metric) for end in (self.low, self.high))
        return not exceeds_limit(largest, self.margin)


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


def compute_sample_statistics(case: TwoSamples, policy: Policy) -> SampleStatistics:
    """Computes estimate, confidence interval, p-value and limits of two samples. Both samples need
    usable values; paired samples must have equal length.
    """
    metric = case.metric
    confidence = 1 - case.alpha_share * policy.alpha
    base = [log_or_value(value, metric) for value in case.base]
    new = [log_or_value(value, metric) for value in case.new]
    if case.paired:
        differences = case.differences
        if differences is None:
            differences = [after - before for before, after in zip(base, new, strict=True)]
        interval = inference.paired_shift(differences, confidence)
        p = inference.signed_rank_p(differences)
        scatter = inference.standard_deviation(differences) if len(differences) > 1 else None
    else:
        interval = inference.hodges_lehmann_shift(base, new, confidence)
        p = inference.mann_whitney_p(base, new)
        scatter = _pooled_deviation(base, new)
    floor, margin = relevance_floor_and_same_margin(case, policy)
    return dataclass_from_sources(
        SampleStatistics,
        case,
        change=from_test_scale(interval.estimate, metric),
        low=None if interval.low is None else from_test_scale(interval.low, metric),
        high=None if interval.high is None else from_test_scale(interval.high, metric),
        p=p,
        base_median=median(case.base),
        new_median=median(case.new),
        floor=floor,
        margin=margin,
        # Logarithms of equal ratios may differ in their last digits, so tiny deviations become 0.
        scatter=0.0 if scatter is not None and scatter < _ROUNDING else scatter,
    )


def relevance_floor_and_same_margin(case: TwoSamples, policy: Policy) -> tuple[float, float]:
    """Returns the smallest relevant change, and the largest change for the verdict "same". BASE
    must have a value.
    """
    threshold, base = policy.threshold_of(case.metric), median(case.base)
    if case.metric.least and base > 0:
        threshold = max(threshold, case.metric.least / base)
    floor = max(threshold, case.noise or 0.0)
    limit = max(threshold, policy.same_limit) if case.metric.relative else threshold
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


# Writes sentences about the size of a change, and about the reason for a verdict.


def estimate_text(
    metric: Metric, change: float | None, low: float | None, high: float | None
) -> str:
    """Returns text with a change and, if it is known, its confidence interval: "-0.9 % (-13.9 to
    +15.6 %)".
    """
    if change is None:
        return NONE
    text = metric.change_text(change)
    return text if low is None or high is None else f"{text} ({metric.range_text(low, high)})"


def magnitude_text(
    metric: Metric, change: float | None, low: float | None, high: float | None
) -> str:
    """Returns text with the size and the direction of a change, and its confidence interval: "13.2
    % slower (10.1 to 16.0 %)".
    """
    assert change is not None
    assert low is not None
    assert high is not None
    size = metric.change_text(abs(change), signed=False)
    least, most = sorted((abs(low), abs(high)))
    ends = metric.range_text(least, most, signed=False)
    return f"{size} {_direction_word(change, metric)} ({ends})"


def p_value_text(p: float | None, family: int) -> str:
    """Returns text with a p-value and, if several configurations were tested, their number: "p =
    0.012 over 5 configurations".
    """
    assert p is not None
    return f"p = {p:.2g}" + (f" over {family} configurations" if family > 1 else "")


def same_verdict_reason(statistics: SampleStatistics) -> str:
    """Returns the reason for the verdict "same": text with the confidence interval and with the
    margin, which is the largest change for this verdict.
    """
    assert statistics.low is not None
    assert statistics.high is not None
    metric = statistics.metric
    margin = metric.change_text(statistics.margin, signed=False)
    return f"the change is {metric.range_text(statistics.low, statistics.high)}, less than {margin}"


def undecided_reason(statistics: SampleStatistics, is_significant: bool) -> str:
    """Returns the reason why a confidence interval allows no verdict. `is_significant` says
    whether the test is significant.
    """
    metric = statistics.metric
    floor, margin = (
        metric.change_text(limit, signed=False) for limit in (statistics.floor, statistics.margin)
    )
    word = _direction_word(statistics.change, metric)
    if statistics.interval_exceeds_floor:
        return f"{word} by more than {floor}, but not certainly so"
    if is_significant and statistics.change_exceeds_floor:
        return f"{word}, but perhaps by less than {floor}"
    if is_significant and statistics.floor > statistics.margin:
        return f"{word}, but within the A/A spread of {floor}"
    if is_significant:
        return f"{word}, but perhaps by less than {margin}, perhaps by more"
    return f"the change may be smaller or larger than {margin}"


def is_too_many_further_runs(more: int, paired: bool) -> bool:
    """Whether `more` further pairs (or processes in each of BASE and NEW) are too many to
    recommend.
    """
    return more > (MOST_PAIRS if paired else MOST_PROCESSES)


def further_runs_text(
    statistics: SampleStatistics, needed_runs: int | None, more: int | None
) -> str:
    """Returns text with the variation between pairs (or processes), and with the number of further
    pairs (or processes) that a verdict needs; "" if one of these numbers is unknown.
    """
    metric = statistics.metric
    if needed_runs is None or more is None or statistics.scatter is None:
        return ""
    name = "pairs" if statistics.paired else "processes"
    scatter = metric.change_text(from_test_scale(statistics.scatter, metric), signed=False)
    text = f"; {name} differ by {scatter}"
    begins = statistics.plan is not None and statistics.plan.is_new_experiment
    if is_too_many_further_runs(more, statistics.paired or begins):
        return f"{text}: more {name} will not help"
    if begins:
        return f"{text}: a new experiment of {needed_runs} pairs settles it"
    singular, plural = (
        ("pair", "pairs") if statistics.paired else ("process per side", "processes per side")
    )
    return (
        f"{text}: about {count_text(more, f'more {singular} settles', f'more {plural} settle')} it"
    )


def minimum_processes_text(case: TwoSamples, number: int) -> str:
    """Returns text with the minimum number of pairs (or processes in each of BASE and NEW) for a
    verdict: "at least 6 pairs".
    """
    if case.plan is not None and case.plan.is_new_experiment:
        return f"a new experiment of at least {number} pairs"
    return f"at least {number} {'pairs' if case.paired else 'on each side'}"


def too_few_values_text(statistics: SampleStatistics, needed_runs: int, size: float | None) -> str:
    """Returns text that says that there are too few values to prove a change, and that
    `needed_runs` pairs (or processes) could prove a change of size `size`.
    """
    counts = f"{item_count(statistics.base)} against {item_count(statistics.new)} processes"
    text = f"{item_count(statistics.base)} pairs" if statistics.paired else counts
    among = f" among {statistics.family} configurations" if statistics.family > 1 else ""
    text += f" are too few to prove a change{among}, of whatever size"
    if statistics.plan is not None and statistics.plan.is_new_experiment:
        text += f"; a new experiment of {needed_runs} pairs could prove one"
    else:
        text += (
            f"; {needed_runs} {'pairs' if statistics.paired else 'on each side'} could prove one"
        )
    return (
        text if size is None else f"{text} of {statistics.metric.change_text(size, signed=False)}"
    )


def median_disagreement_text(statistics: SampleStatistics, medians_change: float | None) -> str:
    """Returns text that explains why the estimated change and the change of the medians have
    opposite signs; "" if `medians_change` is None.
    """
    if medians_change is None:
        return ""
    of = "within pairs" if statistics.paired else "between processes of BASE and NEW"
    text = statistics.metric.change_text(medians_change)
    return f" (the change is the median {of}, Hodges-Lehmann; the two medians differ by {text})"


def _direction_word(change: float, metric: Metric) -> str:
    return metric.better if (change > 0) == metric.higher_is_better else metric.worse
