"""Estimates of changes, their confidence intervals, and sentences about them."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from cnnbench.base import inference
from cnnbench.base.inference import MOST_PAIRS, MOST_PROCESSES, Continuation
from cnnbench.base.stats import median
from cnnbench.base.text import NONE, count_text, item_count
from cnnbench.judge.metrics import THROUGHPUT, Measurement, Policy
from cnnbench.records.codec import dataclass_from_sources
from cnnbench.records.metric import Metric

# Statistics of two samples: shift, confidence interval and p-value.

# Relative tolerance of comparisons with limits: in binary, 0.75 - 0.745 is more than 0.005.
_SLACK = 1e-9

_ROUNDING = 1e-12

# Probability of a verdict for the result of `detectable_change`.
_POWER = 0.8


class Level(enum.Enum):
    """Meaning of a verdict for a gate. The values are GitHub's annotation levels."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"
    NONE = ""


class Verdict(enum.Enum):
    """Verdicts on a metric, from worst to best.

    For every metric, FASTER means better and SLOWER means worse.
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
    def undecided(self) -> bool:
        """Whether no verdict is possible yet, although nothing failed."""
        return self in (
            Verdict.INCONCLUSIVE,
            Verdict.NOT_MEASURED,
            Verdict.NOT_COMPARABLE,
            Verdict.MISSING,
        )

    def word(self, metric: Metric) -> str:
        """The word for a verdict on a metric, such as "slower" or "more"."""
        if self is Verdict.FASTER:
            return metric.better
        return metric.worse if self is Verdict.SLOWER else self.value


@dataclass(frozen=True, kw_only=True)
class TwoSamples:
    """Values of one metric of one configuration on both sides, one per process.

    Attributes:
      paired: whether the i-th values of both sides are a pair (interleaved runs).
      noise: the A/A spread (see `aa_spread`); None if it was not measured.
      differences: differences of pairs (new - base) on the scale of `log_or_value`. None means that
        they are computed from the values.
      share: share of the significance level for its tests. Another metric of the same runs has the
        rest.
      plan: plan for judging further pairs. None means that further runs are judged together with
        these.
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
    plan: Continuation | None = None
    family: int = 1
    asked: bool = True
    known: tuple[Verdict, str] | None = None
    policy: Policy = field(default=Policy(), repr=False)

    @property
    def part(self) -> float:
        """The part of alpha for the tests of this case: `share` times the metric's share in the
        rules.
        """
        return self.share * (1.0 if self.policy.share is None else self.policy.share)

    @property
    def fewest(self) -> int:
        """Number of values on the side with fewer values."""
        return min(len(self.base), len(self.new))


@dataclass(frozen=True, kw_only=True)
class Evidence(TwoSamples):
    """A case with its statistics. Changes are relative to the base, or differences.

    Attributes:
      change: the Hodges-Lehmann shift. -0.05 means that new is 5 % lower than base.
      low, high: confidence interval of the change; None if there are too few values.
      p: p-value of the two-sided test.
      floor: smallest relevant change: the metric's threshold or the A/A spread.
      margin: largest change for the verdict "same".
      scatter: standard deviation of the pairs' differences or, without pairs, within the sides. If
        changes are shares, it is the deviation of logarithms. None if there are too few values.
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
        """Whether the estimated change exceeds the floor."""
        return exceeds_limit(change_magnitude(self.change, self.metric), self.floor)

    @property
    def interval_exceeds_floor(self) -> bool:
        """Whether the whole interval is beyond the floor, on one side of zero."""
        if self.low is None or self.high is None or (self.low < 0) != (self.high < 0):
            return False
        smallest = min(change_magnitude(end, self.metric) for end in (self.low, self.high))
        return exceeds_limit(smallest, self.floor)

    @property
    def interval_within_margin(self) -> bool:
        """Whether the whole interval lies within the margin."""
        if self.low is None or self.high is None:
            return False
        largest = max(change_magnitude(end, self.metric) for end in (self.low, self.high))
        return not exceeds_limit(largest, self.margin)


def change_magnitude(change: float, metric: Metric) -> float:
    """Magnitude of a change. For relative changes, -1/11 has the same size as its inverse,
    +1/10.
    """
    if not metric.relative:
        return abs(change)
    return max(change, 1 / (1 + change) - 1) if change > -1 else math.inf


def exceeds_limit(value: float, limit: float) -> bool:
    """Whether a size is larger than a limit, by more than rounding errors."""
    return value > limit * (1 + _SLACK)


def is_usable(value: float, metric: Metric) -> bool:
    """Whether a number is a valid value: finite and, if changes of the metric are relative,
    positive.
    """
    return math.isfinite(value) and (value > 0 or not metric.relative)


def usable_values(records: Iterable[Measurement], metric: Metric) -> tuple[float, ...]:
    """Valid values of successful measurements with this metric."""
    values = metric.values([record for record in records if record.status == "ok"])
    return tuple(value for value in values if value is not None and is_usable(value, metric))


def compute_evidence(case: TwoSamples, policy: Policy) -> Evidence:
    """Computes the statistics of a case. Both sides need usable values, and pairs the same
    number.
    """
    metric = case.metric
    confidence = 1 - case.part * policy.alpha
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
    floor, margin = floor_and_margin(case, policy)
    return dataclass_from_sources(
        Evidence,
        case,
        change=from_test_scale(interval.estimate, metric),
        low=None if interval.low is None else from_test_scale(interval.low, metric),
        high=None if interval.high is None else from_test_scale(interval.high, metric),
        p=p,
        base_median=median(case.base),
        new_median=median(case.new),
        floor=floor,
        margin=margin,
        # Logarithms of equal quotients may differ in their last digits.
        scatter=0.0 if scatter is not None and scatter < _ROUNDING else scatter,
    )


def floor_and_margin(case: TwoSamples, policy: Policy) -> tuple[float, float]:
    """Floor and margin (see `Evidence`) of a case with at least one base value."""
    threshold, base = policy.threshold_of(case.metric), median(case.base)
    if case.metric.least and base > 0:
        threshold = max(threshold, case.metric.least / base)
    floor = max(threshold, case.noise or 0.0)
    limit = max(threshold, policy.same_limit) if case.metric.relative else threshold
    return floor, min(floor, limit)


def detectable_change(evidence: Evidence, number: int, alpha: float) -> float | None:
    """The change that this number of pairs (or processes per side) detects with 80 % power.

    Uses the normal approximation with the measured scatter. Rank tests need pi/3 times as many
    values as a t-test (Hodges and Lehmann, 1956). None if the scatter is unknown.
    """
    if not evidence.scatter:
        return None
    normal = NormalDist()
    quantiles = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(_POWER)
    error = evidence.scatter * math.sqrt((1 if evidence.paired else 2) * math.pi / 3 / number)
    return from_test_scale(
        to_test_scale(evidence.floor, evidence.metric) + quantiles * error, evidence.metric
    )


def to_test_scale(change: float, metric: Metric) -> float:
    """Converts a change to the scale of the tests. This is the inverse of `from_test_scale`."""
    if not metric.relative:
        return change
    # A decrease to nearly 0 is rounded to -1.
    return math.log1p(change) if change > -1 else -math.inf


def aa_spread(values: Sequence[float], policy: Policy, metric: Metric = THROUGHPUT) -> float:
    """Upper limit of random differences between two processes of the same configuration.

    The limit is ``noise_factor`` standard deviations (of logarithms, if changes are shares).
    Outliers increase it, so the gate reports fewer changes. ValueError for fewer than two values,
    or for an invalid value.
    """
    if len(values) < 2 or not all(is_usable(value, metric) for value in values):
        raise ValueError(f"A/A spread of {list(values)}: needs two or more usable values")
    deviation = inference.standard_deviation([log_or_value(value, metric) for value in values])
    return from_test_scale(policy.noise_factor * deviation, metric)


def aa_spread_of_runs(
    records: Iterable[Measurement], metric: Metric, policy: Policy
) -> float | None:
    """The A/A spread of a metric; None if there are too few usable values."""
    values = usable_values(records, metric)
    return aa_spread(values, policy, metric) if len(values) >= policy.min_processes else None


def _pooled_deviation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pooled standard deviation of two samples with possibly different means."""
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
    """Converts a value to the scale of the tests: its logarithm, if changes of the metric are
    relative.
    """
    return math.log(value) if metric.relative else value


def from_test_scale(shift: float, metric: Metric) -> float:
    """Converts a shift on the scale of the tests to a change: relative, or a difference."""
    if not metric.relative:
        return shift
    try:
        return math.expm1(shift)
    except OverflowError:
        return math.inf


# Sentences about the size of changes, and about the reasons for verdicts.


def estimate_text(
    metric: Metric, change: float | None, low: float | None, high: float | None
) -> str:
    """Text with the known change and its interval: "-0.9 % (-13.9 to +15.6 %)"."""
    if change is None:
        return NONE
    text = metric.change_text(change)
    return text if low is None or high is None else f"{text} ({metric.range_text(low, high)})"


def magnitude_text(
    metric: Metric, change: float | None, low: float | None, high: float | None
) -> str:
    """Text with a change and its direction: "13.2 % slower (10.1 to 16.0 %)"."""
    assert change is not None
    assert low is not None
    assert high is not None
    size = metric.change_text(abs(change), signed=False)
    least, most = sorted((abs(low), abs(high)))
    ends = metric.range_text(least, most, signed=False)
    return f"{size} {_direction_word(change, metric)} ({ends})"


def p_value_text(p: float | None, family: int) -> str:
    """Text with the p-value, and the number of configurations if there are several."""
    assert p is not None
    return f"p = {p:.2g}" + (f" over {family} configurations" if family > 1 else "")


def same_verdict_reason(evidence: Evidence) -> str:
    """The reason for the verdict "same"."""
    assert evidence.low is not None
    assert evidence.high is not None
    metric = evidence.metric
    margin = metric.change_text(evidence.margin, signed=False)
    return f"the change is {metric.range_text(evidence.low, evidence.high)}, less than {margin}"


def undecided_reason(evidence: Evidence, certain: bool) -> str:
    """The reason why an interval does not lead to a verdict. `certain`: whether the test is
    significant.
    """
    metric = evidence.metric
    floor, margin = (
        metric.change_text(limit, signed=False) for limit in (evidence.floor, evidence.margin)
    )
    word = _direction_word(evidence.change, metric)
    if evidence.interval_exceeds_floor:
        return f"{word} by more than {floor}, but not certainly so"
    if certain and evidence.change_exceeds_floor:
        return f"{word}, but perhaps by less than {floor}"
    if certain and evidence.floor > evidence.margin:
        return f"{word}, but within the A/A spread of {floor}"
    if certain:
        return f"{word}, but perhaps by less than {margin}, perhaps by more"
    return f"the change may be smaller or larger than {margin}"


def is_too_many(more: int, paired: bool) -> bool:
    """Whether this number of further pairs (or processes per side) is too large to recommend."""
    return more > (MOST_PAIRS if paired else MOST_PROCESSES)


def further_runs_text(evidence: Evidence, enough: int | None, more: int | None) -> str:
    """Text with the scatter and with the number of runs for a verdict; "" if the scatter is
    unknown.
    """
    metric = evidence.metric
    if enough is None or more is None or evidence.scatter is None:
        return ""
    name = "pairs" if evidence.paired else "processes"
    scatter = metric.change_text(from_test_scale(evidence.scatter, metric), signed=False)
    text = f"; {name} differ by {scatter}"
    begins = evidence.plan is not None and evidence.plan.begins
    if is_too_many(more, evidence.paired or begins):
        return f"{text}: more {name} will not help"
    if begins:
        return f"{text}: a new experiment of {enough} pairs settles it"
    singular, plural = (
        ("pair", "pairs") if evidence.paired else ("process per side", "processes per side")
    )
    return (
        f"{text}: about {count_text(more, f'more {singular} settles', f'more {plural} settle')} it"
    )


def minimum_processes_text(case: TwoSamples, number: int) -> str:
    """Text for a minimum number of pairs (or processes per side): "at least 6 pairs"."""
    if case.plan is not None and case.plan.begins:
        return f"a new experiment of at least {number} pairs"
    return f"at least {number} {'pairs' if case.paired else 'on each side'}"


def too_few_values_text(evidence: Evidence, enough: int, size: float | None) -> str:
    """Text for too few values, with the number that could prove a change of this size."""
    counts = f"{item_count(evidence.base)} against {item_count(evidence.new)} processes"
    text = f"{item_count(evidence.base)} pairs" if evidence.paired else counts
    among = f" among {evidence.family} configurations" if evidence.family > 1 else ""
    text += f" are too few to prove a change{among}, of whatever size"
    if evidence.plan is not None and evidence.plan.begins:
        text += f"; a new experiment of {enough} pairs could prove one"
    else:
        text += f"; {enough} {'pairs' if evidence.paired else 'on each side'} could prove one"
    return text if size is None else f"{text} of {evidence.metric.change_text(size, signed=False)}"


def median_disagreement_text(evidence: Evidence, of_medians: float | None) -> str:
    """Text that names the estimator if the medians change in the opposite direction."""
    if of_medians is None:
        return ""
    of = "within pairs" if evidence.paired else "between processes of both sides"
    text = evidence.metric.change_text(of_medians)
    return f" (the change is the median {of}, Hodges-Lehmann; that of the two medians is {text})"


def _direction_word(change: float, metric: Metric) -> str:
    return metric.better if (change > 0) == metric.higher_is_better else metric.worse
