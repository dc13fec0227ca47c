"""Computes verdicts from plain numbers.

`judge` judges one metric of one configuration, with one value per process. `judge_all` judges
several together and limits the false discoveries (Benjamini and Hochberg), per metric or over all
requested metrics. Verdicts that follow from records, such as different machines or failed runs, are
known earlier, see `cnnbench.judge.compare.comparability`. The rules use logarithms of the values
(for accuracies, the values themselves):

* smallest relevant change = threshold of the metric;
* slower or faster: the test against no change is significant after all corrections, and the
  Hodges-Lehmann estimate exceeds the smallest relevant change. Without pairs, all changes in the
  confidence interval must exceed it, because sessions may drift;
* same: no change in the interval exceeds the smallest relevant change;
* not slower: no change for the worse in the interval exceeds it. If the question is whether NEW is
  faster, not faster: no change for the better exceeds it;
* failed: a value is unusable;
* inconclusive: all other cases, including too few values.

If several verdicts apply, the first one in this list is given.

Exchanging BASE and NEW, or inverting all values, reverses the verdict.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from cnnbench.base import inference
from cnnbench.base.stats import group_by, median
from cnnbench.base.text import count_text, number
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.estimate import (
    Estimate,
    Samples,
    SampleStatistics,
    is_usable,
    statistics_of,
)
from cnnbench.judge.compare.power import (
    detectable_change,
    least_runs,
    runs_for_verdict,
    too_many_further,
)
from cnnbench.judge.metrics.policy import Policy
from cnnbench.records.codec import ABSENT, HIDDEN, OPTIONAL, JsonKeys, dataclass_from_sources
from cnnbench.records.metric import Metric

_DEFAULT = Policy()

NEEDS = ("needed", "more", "at_least", "new_experiment")
"""Fields of a `Judgement` that say how many runs another verdict needs."""


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


@dataclass(frozen=True, kw_only=True)
class Judgement(Estimate):
    """The verdict on one metric of one configuration, with the statistics on which it is based.

    Attributes:
      verdict: the verdict.
      reason: reason for the verdict, in one sentence.
      base_median, new_median: medians of the values of BASE and NEW; None without values.
      confidence: confidence level of the interval (0.98: 98 %). None if the interval uses the whole
        significance level of the policy.
      p: p-value of the two-sided test; None if there was no test.
      p_adjusted: p-value after the corrections for interim analyses, metrics and configurations
        that were judged together; compare it with the whole level.
      floor: smallest relevant change.
      family: number of configurations that were tested together on the metric.
      scatter: standard deviation of the pairs' changes or, without pairs, of the processes within
        BASE and within NEW. If changes are shares, it is the deviation of logarithms. None if
        there are too few values.
      needed: if variation makes the result inconclusive, the estimated number of pairs (or
        processes in each of BASE and NEW) for a verdict, including measured ones; otherwise None.
      at_least: if there are too few values to prove a change, the minimum number of pairs (or
        processes in each of BASE and NEW) that can prove a change; otherwise None.
      more: number of further pairs (or processes in each of BASE and NEW) in `needed`.
      new_experiment: whether `needed` and `at_least` count pairs of a new experiment, which
        excludes the measured pairs.
      median_change: change of the speed at the median step, estimated as `change` is, if it differs
        from the change of the throughput by more than the threshold; otherwise None.
      decided_by: name of another metric of the same runs that decided the verdict, such as CPU time
        on disturbed machines; None if the metric itself decided.
      note: what the reason says in addition to the verdict and the numbers, for tables that show
        these; None for the whole reason.
    """

    json_keys: ClassVar[JsonKeys] = ("verdict", "reason", "base_median", "new_median", ...)

    verdict: Verdict
    reason: str
    base_median: float | None = None
    new_median: float | None = None
    confidence: float | None = field(default=None, metadata=ABSENT)
    p: float | None = None
    p_adjusted: float | None = None
    floor: float | None = None
    scatter: float | None = field(default=None, metadata=OPTIONAL)
    needed: int | None = field(default=None, metadata=OPTIONAL)
    at_least: int | None = field(default=None, metadata=ABSENT)
    more: int | None = field(default=None, metadata=HIDDEN)
    new_experiment: bool | None = field(default=None, metadata=ABSENT)
    decided_by: str | None = field(default=None, metadata=OPTIONAL)
    median_change: float | None = field(default=None, metadata=ABSENT)
    family: int | None = field(default=None, metadata=HIDDEN)
    note: str | None = field(default=None, metadata=HIDDEN)

    def adding(self, *texts: str) -> Judgement:
        """Returns the judgement with further texts in its reason and its note; "" adds nothing."""
        reason = "; ".join(filter(None, (self.reason, *texts)))
        note = None if self.note is None else "; ".join(filter(None, (self.note, *texts)))
        return replace(self, reason=reason, note=note)


@dataclass(frozen=True)
class Case:
    """Two samples, and how they are judged.

    Attributes:
      known: verdict and reason if no test is needed; otherwise None.
    """

    samples: Samples
    policy: Policy = _DEFAULT
    known: tuple[Verdict, str] | None = None


def judge(samples: Samples, policy: Policy = _DEFAULT) -> Judgement:
    """Judges one metric of one configuration."""
    return judge_all([Case(samples, policy)])[0]


def judge_all(cases: Sequence[Case]) -> list[Judgement]:
    """Judges several samples and corrects their p-values for multiple tests.

    All tests of a metric are one family. Tests whose policies have shares of alpha are one family
    for each kind of measurement, over all metrics. Each kind has the same part of alpha, so that
    many all-reduces do not reduce the power of tests of runs. If nothing changed, a family has a
    significant test with a probability of at most alpha. Otherwise, alpha is the largest expected
    share of false discoveries among the significant tests. Their intervals have the level at which
    they were significant (Benjamini and Yekutieli, JASA 100, 2005). The result is in the order of
    `cases`.
    """
    families = group_by((case for case in cases if case.known is None), _family_key)
    kinds = sum(members[0].policy.share is not None for members in families.values())
    sizes = {key: _family_size(members, kinds) for key, members in families.items()}
    judgements = {
        index: judgement
        for index, case in enumerate(cases)
        if (judgement := _judge_untested(case, sizes.get(_family_key(case), 1))) is not None
    }
    tested = [index for index in range(len(cases)) if index not in judgements]
    for indexes in group_by(tested, lambda index: _family_key(cases[index])).values():
        together = _judge_family([cases[index] for index in indexes], kinds)
        judgements |= zip(indexes, together, strict=True)
    return [judgements[index] for index in range(len(cases))]


def _judge_family(cases: Sequence[Case], kinds: int) -> list[Judgement]:
    """Judges cases that are corrected together. `kinds` is the number of kinds that share alpha."""
    size, total = _family_size(cases, kinds), sum(_weight(case.policy, kinds) for case in cases)
    tests = [statistics_of(case.samples, case.policy, size) for case in cases]
    shares = [case.policy.alpha_share / total for case in cases]
    adjusted = inference.adjusted_p_values([test.p_of_looks for test in tests], shares)
    significant = [
        p <= test.policy.alpha_of(test.metric) for test, p in zip(tests, adjusted, strict=True)
    ]
    judgements = []
    for test, share, p, is_significant in zip(tests, shares, adjusted, significant, strict=True):
        level = min(1.0, share * sum(significant))
        if is_significant and level != test.policy.alpha_share:
            test = statistics_of(test, test.policy, size, level * test.policy.alpha)
        judgements.append(_judge_statistics(test, p, is_significant))
    return judgements


def _family_key(case: Case) -> tuple[str, ...]:
    """Returns the key of tests that are corrected together: the metric, or its kind."""
    metric = case.samples.metric
    return (metric.name,) if case.policy.share is None else ("kind", next(iter(metric.judged)))


def _family_size(cases: Sequence[Case], kinds: int) -> int:
    """Returns the number of configurations that are tested together."""
    return max(1, round(sum(_weight(case.policy, kinds) for case in cases)))


def _weight(policy: Policy, kinds: int) -> float:
    """Returns the weight of a test in its family. A test that uses all of alpha weighs 1.

    `kinds` is the number of kinds of measurements that share alpha.
    """
    return 1.0 if policy.share is None else policy.alpha_share * kinds


def _judge_untested(case: Case, family: int) -> Judgement | None:
    """Returns the judgement of samples that need no test, or that cannot be tested because, for
    example, there are too few values. Returns None if a test is needed.

    `family` is the number of configurations that are tested together.
    """
    samples, policy = case.samples, case.policy
    if case.known is not None:
        return _judge_known(case, *case.known, family)
    sides = (("BASE", samples.base), ("NEW", samples.new))
    name = samples.metric.name
    for side, values in sides:
        bad = [value for value in values if not is_usable(value, samples.metric)]
        if bad:
            of = f"{len(bad)} of {count_text(len(values), 'value', 'values')} of {name} in {side}"
            reason = f"{of} cannot be used, the first is {number(bad[0])}"
            return Judgement(verdict=Verdict.FAILED, reason=reason)
    fewest, side = min((len(values), side) for side, values in sides)
    if not fewest:
        reason = f"{side} has no value of {name}"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=reason)
    needs: dict[str, Any] = {}
    if fewest < policy.min_processes:
        least, afresh = least_runs(samples, policy, 1 / family), samples.needs_new_experiment
        needs = {"at_least": least, "new_experiment": afresh or None}
    elif not samples.paired or len(samples.base) == len(samples.new):
        return None
    # The change is estimated and reported although there is no verdict.
    unpaired = replace(samples, paired=False, differences=None)
    statistics = statistics_of(unpaired, policy.replace(split=1.0))
    judgement = _judgement(statistics, Verdict.INCONCLUSIVE, p=None, **needs)
    if judgement.at_least is None:
        base = count_text(samples.base, "value", "values")
        reason = f"{base} in BASE and {len(samples.new)} in NEW make no pairs"
    else:
        runs, paired = judgement.at_least, samples.paired
        needed = phrases.needed_runs_text(runs, paired, samples.needs_new_experiment, "at least ")
        processes = count_text(fewest, "process", "processes")
        reason = f"{processes} in {side}; a verdict needs {needed}"
    return _with_reason(statistics, judgement, reason)


def _judge_known(case: Case, verdict: Verdict, reason: str, family: int) -> Judgement:
    """Returns the judgement of a case whose verdict is known without a test."""
    samples = case.samples
    before, after = (median(side) if side else None for side in (samples.base, samples.new))
    needs: dict[str, Any] = {}
    if verdict is Verdict.INCONCLUSIVE and samples.smaller_sample_size:
        least = least_runs(samples, case.policy, 1 / family)
        needs = {"at_least": least, "new_experiment": samples.needs_new_experiment or None}
    return Judgement(verdict=verdict, reason=reason, base_median=before, new_median=after, **needs)


def _judge_statistics(statistics: SampleStatistics, p: float, is_significant: bool) -> Judgement:
    verdict = _verdict(statistics, is_significant)
    needs = {} if verdict is not Verdict.INCONCLUSIVE else _needed_runs(statistics, is_significant)
    judgement = _judgement(statistics, verdict, p=statistics.p, p_adjusted=p, **needs)
    return _with_reason(statistics, judgement, *_verdict_reason(statistics, judgement))


def _needed_runs(statistics: SampleStatistics, is_significant: bool) -> dict[str, Any]:
    """Returns the fields of a `Judgement` that say how many runs an inconclusive result needs."""
    policy, afresh = statistics.policy, statistics.needs_new_experiment
    best = inference.smallest_p(len(statistics.base), len(statistics.new), statistics.paired)
    # Not even samples that do not overlap were significant, so no change could have been: more runs
    # are needed.
    separated = math.isclose(statistics.p, best) and not is_significant
    if statistics.low is None or statistics.high is None or separated:
        least = least_runs(statistics, policy, policy.alpha_share / statistics.family)
        return {"at_least": least, "new_experiment": afresh or None}
    alphas = (policy.alpha_share * policy.alpha, _level_of_test(statistics))
    enough = runs_for_verdict(statistics, alphas)
    if enough is None:
        return {}
    more = enough if afresh else enough - statistics.smaller_sample_size
    return {"needed": enough, "more": more, "new_experiment": afresh or None}


def _level_of_test(statistics: SampleStatistics) -> float:
    """Returns the significance level of one test of a family."""
    policy = statistics.policy
    return policy.alpha_share * policy.alpha_of(statistics.metric) / statistics.family


def _verdict(statistics: SampleStatistics, is_significant: bool) -> Verdict:
    """Returns the verdict of a test. The interval of a significant test may still contain 0,
    because the boundaries of interim analyses vary slightly between the tested centres.
    """
    if is_significant and statistics.is_relevant:
        is_better = (statistics.change > 0) == statistics.metric.higher_is_better
        return Verdict.FASTER if is_better else Verdict.SLOWER
    may_be_worse, may_be_better = (
        statistics.may_exceed_floor(better=False),
        statistics.may_exceed_floor(better=True),
    )
    if not (may_be_worse or may_be_better):
        return Verdict.SAME
    if statistics.policy.questions == ("slower",) and not may_be_worse:
        return Verdict.NOT_SLOWER
    if statistics.policy.questions == ("faster",) and not may_be_better:
        return Verdict.NOT_FASTER
    return Verdict.INCONCLUSIVE


def _verdict_reason(statistics: SampleStatistics, judgement: Judgement) -> tuple[str, str | None]:
    """Returns the reason for a test's verdict, and its note (see `Judgement`)."""
    metric, verdict = statistics.metric, judgement.verdict
    change = phrases.known_change_text(metric, statistics)
    chance = phrases.chance(judgement.p_adjusted, statistics.family)
    floor = metric.change_text(statistics.floor, signed=False)
    if verdict in (Verdict.FASTER, Verdict.SLOWER):
        return f"{change}, {chance}", ""
    if verdict is not Verdict.INCONCLUSIVE:
        assert statistics.low is not None
        assert statistics.high is not None
        interval = metric.range_text(statistics.low, statistics.high)
        reason = f"the change is {interval}, less than {floor}"
        if verdict is Verdict.SAME:
            return reason, ""
        word = metric.worse if verdict is Verdict.NOT_SLOWER else metric.better
        return f"{reason} {word}", None
    if judgement.at_least is not None:
        begins = bool(judgement.new_experiment)
        needed = phrases.needed_runs_text(judgement.at_least, statistics.paired, begins)
        size = detectable_change(statistics, judgement.at_least, _level_of_test(statistics))
        return phrases.too_few_text(statistics, needed, size), None
    doubt, further = _doubt(statistics), _further_runs(statistics, judgement)
    question = phrases.OPEN_QUESTION.format(floor=floor)
    why = "; ".join(filter(None, (doubt or question, further)))
    note = "; ".join(filter(None, (doubt, further))) or why
    return f"{change}, {chance}: {why}", note


def _doubt(statistics: SampleStatistics) -> str:
    """Returns text that says why a change is not certain although the whole interval exceeds the
    smallest relevant change; "" if the reason is that the interval contains smaller changes, too.
    """
    if not statistics.interval_exceeds_floor:
        return ""
    metric = statistics.metric
    floor = metric.change_text(statistics.floor, signed=False)
    word = phrases.direction(metric, statistics.change)
    return f"{word} by more than {floor}, but not certainly so"


def _further_runs(statistics: SampleStatistics, judgement: Judgement) -> str:
    """Returns text with the variation between pairs (or processes), and with the number of further
    pairs (or processes) that a verdict needs; "" if one of these numbers is unknown.
    """
    needed, more, scatter = judgement.needed, judgement.more, statistics.scatter
    if needed is None or more is None or scatter is None:
        return ""
    paired, begins = statistics.paired, bool(judgement.new_experiment)
    text = phrases.scatter_text(scatter, statistics.metric, statistics.policy.split < 1)
    runs, remedy = phrases.plural(paired), f"about {phrases.more_runs_text(more, paired)} it"
    if too_many_further(more, paired or begins):
        remedy = f"more {runs} will not help"
    elif begins:
        remedy = f"a new experiment of {needed} pairs settles it"
    return f"{runs} differ by {text}: {remedy}"


def _judgement(statistics: SampleStatistics, verdict: Verdict, **tested: Any) -> Judgement:
    """Returns a judgement with the given statistics and an empty reason."""
    is_whole = math.isclose(statistics.alpha, statistics.policy.alpha)
    confidence = None if is_whole else 1 - statistics.alpha
    own = {"verdict": verdict, "reason": "", "confidence": confidence}
    return dataclass_from_sources(Judgement, statistics, **own, **tested)


def _opposite_medians_change(statistics: SampleStatistics) -> float | None:
    """Returns the change of the medians if its direction is opposite to that of the estimate;
    otherwise None.
    """
    medians, metric = statistics.new_median - statistics.base_median, statistics.metric
    if medians * statistics.change >= 0:
        return None
    change = medians / statistics.base_median if metric.relative else medians
    # A change that is printed as 0 has no direction that a reader could compare.
    shown = metric.shows_change(change) and metric.shows_change(statistics.change)
    return change if shown else None


def _with_reason(
    statistics: SampleStatistics, judgement: Judgement, reason: str, note: str | None = None
) -> Judgement:
    """Returns the judgement with the given reason and note (see `Judgement`). If the change and the
    difference of the medians seem to disagree, the reason and the note also say why.
    """
    change = _opposite_medians_change(statistics)
    if change is not None:
        of = "within pairs" if statistics.paired else "between processes of BASE and NEW"
        opposite = f"the change is the median {of}, Hodges-Lehmann; the two medians differ by "
        opposite += statistics.metric.change_text(change)
        reason = f"{reason} ({opposite})"
        note = None if note is None else "; ".join(filter(None, (note, opposite)))
    return replace(judgement, reason=reason, note=note)
