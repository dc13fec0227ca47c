"""Estimates of a change, their intervals, and the sentences about them."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from cnnbench.base import inference
from cnnbench.base.inference import MOST_PAIRS, MOST_PROCESSES, Continuation
from cnnbench.base.stats import median
from cnnbench.base.text import NONE, count, number_of
from cnnbench.judge.metrics.measurement import THROUGHPUT, Measurement, Policy
from cnnbench.records.codec import gathered
from cnnbench.records.metric import Metric

# Statistics of two samples: a shift, its interval and a p value.

# 0.75 - 0.745 is more than 0.005 in binary: limits are compared up to this share of them.
_SLACK = 1e-9

_ROUNDING = 1e-12

# The chance of a verdict that `provable` is about.
_POWER = 0.8


class Level(enum.Enum):
    """Meaning of a verdict for a gate; the values are GitHub's levels of annotations."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"
    NONE = ""


class Verdict(enum.Enum):
    """The verdict on a metric, the worst first.

    FASTER means better and SLOWER worse for any metric.
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
        """Whether the verdict is open and nothing failed."""
        return self in (
            Verdict.INCONCLUSIVE,
            Verdict.NOT_MEASURED,
            Verdict.NOT_COMPARABLE,
            Verdict.MISSING,
        )

    def word(self, metric: Metric) -> str:
        """The verdict in the words of a metric."""
        if self is Verdict.FASTER:
            return metric.better
        return metric.worse if self is Verdict.SLOWER else self.value


@dataclass(frozen=True, kw_only=True)
class TwoSamples:
    """Values of one metric of one configuration on both sides, one per process.

    Attributes:
      paired: whether the i-th values of both sides belong together (interleaved runs).
      noise: the A/A spread, see `aa_spread`; None if not measured.
      differences: differences of pairs, new - base on the scale of `scaled`; None: computed from
        the values.
      share: share of the level for its tests; another metric of the same runs has the rest.
      plan: how further pairs are judged; None: further runs are added, and all are judged together.
      family: number of configurations that are tested together.
      asked: whether an open question about it counts for the exit code.
      known: the verdict and its reason where no test is needed; None if it is to be tested.
      policy: constants of the tests of this metric and configuration.
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
        """Part of alpha for its tests: its share, of the share that rules give to the metric."""
        return self.share * (1.0 if self.policy.share is None else self.policy.share)

    @property
    def fewest(self) -> int:
        """Values of the smaller side."""
        return min(len(self.base), len(self.new))


@dataclass(frozen=True, kw_only=True)
class Evidence(TwoSamples):
    """A case with its statistics; changes are shares of the base, or differences.

    Attributes:
      change: the Hodges-Lehmann shift: -0.05 where new is 5 % lower than base.
      low, high: its confidence interval; None if there are too few values.
      p: p value of the two-sided test.
      floor: smallest change that counts: the metric's threshold or the A/A spread.
      margin: widest change that may be called the same.
      scatter: standard deviation of the pairs' differences, or within the sides; of logarithms
        where changes are shares. None if there are too few values.
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
    def beyond_floor(self) -> bool:
        """Whether the estimated change lies beyond the floor."""
        return exceeds(size(self.change, self.metric), self.floor)

    @property
    def wholly_beyond_floor(self) -> bool:
        """Whether the whole interval lies beyond the floor, on one side."""
        if self.low is None or self.high is None or (self.low < 0) != (self.high < 0):
            return False
        smallest = min(size(end, self.metric) for end in (self.low, self.high))
        return exceeds(smallest, self.floor)

    @property
    def within_margin(self) -> bool:
        """Whether the whole interval lies within the margin of the verdict "same"."""
        if self.low is None or self.high is None:
            return False
        largest = max(size(end, self.metric) for end in (self.low, self.high))
        return not exceeds(largest, self.margin)


def size(change: float, metric: Metric) -> float:
    """Magnitude of a change; for shares, -1/11 has the size of +1/10, its inverse."""
    if not metric.relative:
        return abs(change)
    return max(change, 1 / (1 + change) - 1) if change > -1 else math.inf


def exceeds(value: float, limit: float) -> bool:
    """Whether a size is above a limit by more than rounding."""
    return value > limit * (1 + _SLACK)


def usable(value: float, metric: Metric) -> bool:
    """Whether a number can be a value: finite, and positive where changes are shares."""
    return math.isfinite(value) and (value > 0 or not metric.relative)


def usable_values(records: Iterable[Measurement], metric: Metric) -> tuple[float, ...]:
    """Usable values of the measurements that succeeded and measured the metric."""
    values = metric.values([record for record in records if record.status == "ok"])
    return tuple(value for value in values if value is not None and usable(value, metric))


def gather(case: TwoSamples, policy: Policy) -> Evidence:
    """Computes the statistics of a case; both sides have usable values, equally many if paired."""
    metric = case.metric
    confidence = 1 - case.part * policy.alpha
    base = [scaled(value, metric) for value in case.base]
    new = [scaled(value, metric) for value in case.new]
    if case.paired:
        differences = case.differences
        if differences is None:
            differences = [after - before for before, after in zip(base, new, strict=True)]
        interval = inference.paired_shift(differences, confidence)
        p = inference.signed_rank_p(differences)
        scatter = inference.standard_deviation(differences) if len(differences) > 1 else None
    else:
        interval = inference.shift(base, new, confidence)
        p = inference.mann_whitney_p(base, new)
        scatter = _pooled(base, new)
    floor, margin = limits(case, policy)
    return gathered(
        Evidence,
        case,
        change=unscaled(interval.estimate, metric),
        low=None if interval.low is None else unscaled(interval.low, metric),
        high=None if interval.high is None else unscaled(interval.high, metric),
        p=p,
        base_median=median(case.base),
        new_median=median(case.new),
        floor=floor,
        margin=margin,
        # Logarithms of equal quotients differ in their last digits.
        scatter=0.0 if scatter is not None and scatter < _ROUNDING else scatter,
    )


def limits(case: TwoSamples, policy: Policy) -> tuple[float, float]:
    """Floor and margin of a case with at least one value of the base, see `Evidence`."""
    threshold, base = policy.threshold_of(case.metric), median(case.base)
    if case.metric.least and base > 0:
        threshold = max(threshold, case.metric.least / base)
    floor = max(threshold, case.noise or 0.0)
    limit = max(threshold, policy.same_limit) if case.metric.relative else threshold
    return floor, min(floor, limit)


def provable(evidence: Evidence, number: int, alpha: float) -> float | None:
    """The change that this many pairs, or processes per side, prove with a chance of 0.8.

    By the normal approximation with the measured scatter; the rank tests need pi/3 times as many
    values as a t test (Hodges and Lehmann, 1956). None if the scatter is unknown.
    """
    if not evidence.scatter:
        return None
    normal = NormalDist()
    quantiles = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(_POWER)
    error = evidence.scatter * math.sqrt((1 if evidence.paired else 2) * math.pi / 3 / number)
    return unscaled(shift_of(evidence.floor, evidence.metric) + quantiles * error, evidence.metric)


def shift_of(change: float, metric: Metric) -> float:
    """A change on the scale of the tests, the inverse of `unscaled`."""
    if not metric.relative:
        return change
    # A change to nearly 0 is rounded to -1.
    return math.log1p(change) if change > -1 else -math.inf


def aa_spread(values: Sequence[float], policy: Policy, metric: Metric = THROUGHPUT) -> float:
    """Upper limit of the chance difference between two processes of one configuration.

    ``noise_factor`` standard deviations, of the logarithms where changes are shares. Outliers widen
    it, which makes the gate more careful. ValueError for fewer than two values, or an unusable one.
    """
    if len(values) < 2 or not all(usable(value, metric) for value in values):
        raise ValueError(f"A/A spread of {list(values)}: needs two or more usable values")
    deviation = inference.standard_deviation([scaled(value, metric) for value in values])
    return unscaled(policy.noise_factor * deviation, metric)


def spread_of(records: Iterable[Measurement], metric: Metric, policy: Policy) -> float | None:
    """The A/A spread of a metric of some measurements; None for too few usable values."""
    values = usable_values(records, metric)
    return aa_spread(values, policy, metric) if len(values) >= policy.min_processes else None


def _pooled(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Standard deviation within two samples whose means may differ."""
    freedom = len(first) + len(second) - 2
    if freedom < 1:
        return None
    squares = [
        (len(side) - 1) * inference.standard_deviation(side) ** 2
        for side in (first, second)
        if len(side) > 1
    ]
    return math.sqrt(sum(squares) / freedom)


def scaled(value: float, metric: Metric) -> float:
    """A usable value on the scale of the tests: its logarithm where changes are shares."""
    return math.log(value) if metric.relative else value


def unscaled(shift: float, metric: Metric) -> float:
    """The change, a share of the base or a difference, of a shift of `scaled` values."""
    if not metric.relative:
        return shift
    try:
        return math.expm1(shift)
    except OverflowError:
        return math.inf


# Sentences about changes: their size, and the reasons of verdicts.


def estimate(metric: Metric, change: float | None, low: float | None, high: float | None) -> str:
    """The change with its interval, as far as they are known: "-0.9 % (-13.9 to +15.6 %)"."""
    if change is None:
        return NONE
    text = metric.change_text(change)
    return text if low is None or high is None else f"{text} ({metric.range_text(low, high)})"


def magnitude(metric: Metric, change: float | None, low: float | None, high: float | None) -> str:
    """A change of a side that is worse or better: "13.2 % slower (10.1 to 16.0 %)"."""
    assert change is not None
    assert low is not None
    assert high is not None
    size = metric.change_text(abs(change), signed=False)
    least, most = sorted((abs(low), abs(high)))
    ends = metric.range_text(least, most, signed=False)
    return f"{size} {_direction(change, metric)} ({ends})"


def chance_words(p: float | None, family: int) -> str:
    """The p value, over a number of configurations."""
    assert p is not None
    return f"p = {p:.2g}" + (f" over {family} configurations" if family > 1 else "")


def within_margin(evidence: Evidence) -> str:
    """Why two sides are the same."""
    assert evidence.low is not None
    assert evidence.high is not None
    metric = evidence.metric
    margin = metric.change_text(evidence.margin, signed=False)
    return f"the change is {metric.range_text(evidence.low, evidence.high)}, less than {margin}"


def undecided_words(evidence: Evidence, certain: bool) -> str:
    """Why an interval gives no verdict; `certain`: whether the test is significant."""
    metric = evidence.metric
    floor, margin = (
        metric.change_text(limit, signed=False) for limit in (evidence.floor, evidence.margin)
    )
    word = _direction(evidence.change, metric)
    if evidence.wholly_beyond_floor:
        return f"{word} by more than {floor}, but not certainly so"
    if certain and evidence.beyond_floor:
        return f"{word}, but perhaps by less than {floor}"
    if certain and evidence.floor > evidence.margin:
        return f"{word}, but within the A/A spread of {floor}"
    if certain:
        return f"{word}, but perhaps by less than {margin}, perhaps by more"
    return f"the change may be smaller or larger than {margin}"


def too_many(more: int, paired: bool) -> bool:
    """Whether this many further pairs, or processes per side, are not useful advice."""
    return more > (MOST_PAIRS if paired else MOST_PROCESSES)


def outlook(evidence: Evidence, enough: int | None, more: int | None) -> str:
    """Text: scatter, and number of further or total runs for a verdict; "" without scatter."""
    metric = evidence.metric
    if enough is None or more is None or evidence.scatter is None:
        return ""
    name = "pairs" if evidence.paired else "processes"
    text = (
        f"; {name} differ by {metric.change_text(unscaled(evidence.scatter, metric), signed=False)}"
    )
    begins = evidence.plan is not None and evidence.plan.begins
    if too_many(more, evidence.paired or begins):
        return f"{text}: more {name} will not help"
    if begins:
        return f"{text}: a new experiment of {enough} pairs settles it"
    singular, plural = (
        ("pair", "pairs") if evidence.paired else ("process per side", "processes per side")
    )
    return f"{text}: about {count(more, f'more {singular} settles', f'more {plural} settle')} it"


def at_least(case: TwoSamples, number: int) -> str:
    """A number of pairs, or processes per side, that is needed: "at least 6 pairs"."""
    if case.plan is not None and case.plan.begins:
        return f"a new experiment of at least {number} pairs"
    return f"at least {number} {'pairs' if case.paired else 'on each side'}"


def too_few(evidence: Evidence, enough: int, size: float | None) -> str:
    """Text: there are too few values; this many could prove a change of this size."""
    counts = f"{number_of(evidence.base)} against {number_of(evidence.new)} processes"
    text = f"{number_of(evidence.base)} pairs" if evidence.paired else counts
    among = f" among {evidence.family} configurations" if evidence.family > 1 else ""
    text += f" are too few to prove a change{among}, of whatever size"
    if evidence.plan is not None and evidence.plan.begins:
        text += f"; a new experiment of {enough} pairs could prove one"
    else:
        text += f"; {enough} {'pairs' if evidence.paired else 'on each side'} could prove one"
    return text if size is None else f"{text} of {evidence.metric.change_text(size, signed=False)}"


def disagreement(evidence: Evidence, of_medians: float | None) -> str:
    """Names the estimator where the shown medians change in the opposite direction."""
    if of_medians is None:
        return ""
    of = "within pairs" if evidence.paired else "between processes of both sides"
    text = evidence.metric.change_text(of_medians)
    return f" (the change is the median {of}, Hodges-Lehmann; that of the two medians is {text})"


def _direction(change: float, metric: Metric) -> str:
    return metric.better if (change > 0) == metric.higher_is_better else metric.worse
