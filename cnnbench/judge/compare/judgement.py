"""Computes verdicts from plain numbers.

`judge` judges one configuration, with one value per process. `judge_all` judges several
configurations together and limits the false discoveries (Benjamini and Hochberg), per metric or
over all requested metrics. Verdicts that follow from records, such as different machines or failed
runs, are decided earlier, in `cnnbench.judge.compare.compare`. The rules use logarithms of the
values (for accuracies, the values themselves):

* smallest relevant change = threshold of the metric or, without pairs, the measured A/A spread if
  it is larger;
* slower or faster: the test against no change is significant after all corrections, and the
  Hodges-Lehmann estimate exceeds the smallest relevant change. Without pairs and without an A/A
  spread, all changes in the confidence interval must exceed it, because sessions may drift;
* same: no change in the interval exceeds the smallest relevant change or, if the A/A spread
  determines it, `Policy.same_limit`;
* not slower: no change for the worse in the interval exceeds this limit. If the question is whether
  NEW is faster, not faster: no change for the better exceeds it;
* failed: a value is unusable;
* inconclusive: all other cases, including too few values.

If several verdicts apply, the first one in this list is given.

Exchanging BASE and NEW, or inverting all values, reverses the verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np

from cnnbench.base import inference
from cnnbench.base.inference import (
    paired_shift,
)
from cnnbench.base.slow_steps import slow_step_cost_increase
from cnnbench.base.stats import group_by, median
from cnnbench.base.text import count_text, item_count, percent
from cnnbench.judge.compare import estimate
from cnnbench.judge.compare.comparability import MeasurementGroup
from cnnbench.judge.compare.estimate import (
    SampleStatistics,
    TwoSamples,
    Verdict,
    aa_spread_of_runs,
    change_magnitude,
    compute_sample_statistics,
    detectable_change,
    exceeds_limit,
    is_usable,
    magnitude_text,
    processes_for_verdict,
)
from cnnbench.judge.metrics import (
    CPU_TIME,
    THROUGHPUT,
    Measurement,
    Policy,
    common_slow_steps,
)
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.codec import ABSENT, OPTIONAL, dataclass_from_sources
from cnnbench.records.metric import Metric
from cnnbench.records.run import RunRecord

_DEFAULT = Policy()

_FOUND_CHANCE = 0.9
"""The probability with which a test finds a change in every configuration of a suite."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on one metric of one configuration, with the statistics on which it is based.

    Attributes:
      verdict: the verdict.
      reason: reason for the verdict, in one sentence.
      base_median, new_median: medians of the values of BASE and NEW; None without values.
      change: the Hodges-Lehmann shift as a share of the base (-0.05 means that new is 5 % lower),
        or as a difference for accuracies; None if unknown.
      low, high: confidence interval of the change; None if there are too few values.
      confidence: confidence level of the interval (0.98: 98 %). None if the interval uses the whole
        significance level of the policy.
      p: p-value of the two-sided test; None if there was no test.
      p_adjusted: p-value after the corrections for interim analyses, metrics and configurations
        that were judged together; compare it with the whole level.
      floor: smallest relevant change.
      margin: largest change for the verdict "same".
      family: number of configurations that were tested together on the metric.
      medians_change: change of the medians, if its direction is opposite to `change`; otherwise
        None.
      noise: the A/A spread; None if it was not measured.
      scatter: standard deviation of the pairs' changes or, without pairs, of the processes within
        BASE and within NEW. If changes are shares, it is the deviation of logarithms. None if
        there are too few values.
      needed: if variation makes the result inconclusive, the estimated number of pairs (or
        processes in each of BASE and NEW) for a verdict, including measured ones; otherwise None.
      at_least: if there are too few values to prove a change, the minimum number of pairs (or
        processes in each of BASE and NEW) that can prove a change; otherwise None.
      verdict_needs: if there are too few values for any verdict, the minimum number of pairs (or
        processes in each of BASE and NEW) for a verdict; otherwise None.
      more: number of further pairs (or processes in each of BASE and NEW) in `needed`.
      provable_change: change that `at_least` pairs detect with 80 % power; None if unknown.
      new_experiment: whether `needed` and `at_least` count pairs of a new experiment, which
        excludes the measured pairs.
      median_change: change of the speed at the median step, estimated as `change` is, if it differs
        from the change of the throughput by more than the threshold; otherwise None.
      decided_by: name of another metric of the same runs that decided the verdict, such as CPU time
        on disturbed machines; None if the metric itself decided.
    """

    verdict: Verdict
    reason: str
    base_median: float | None = None
    new_median: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = field(default=None, metadata=ABSENT)
    p: float | None = None
    p_adjusted: float | None = None
    floor: float | None = None
    noise: float | None = None
    scatter: float | None = field(default=None, metadata=OPTIONAL)
    needed: int | None = field(default=None, metadata=OPTIONAL)
    at_least: int | None = field(default=None, metadata=ABSENT)
    verdict_needs: int | None = field(default=None, metadata=ABSENT)
    more: int | None = field(default=None, metadata=ABSENT)
    provable_change: float | None = field(default=None, metadata=ABSENT)
    new_experiment: bool | None = field(default=None, metadata=ABSENT)
    decided_by: str | None = field(default=None, metadata=OPTIONAL)
    median_change: float | None = field(default=None, metadata=ABSENT)
    margin: float | None = field(default=None, metadata=OPTIONAL)
    family: int | None = field(default=None, metadata=OPTIONAL)
    medians_change: float | None = field(default=None, metadata=ABSENT)


def judge(
    base: Sequence[float],
    new: Sequence[float],
    policy: Policy = _DEFAULT,
    *,
    paired: bool = False,
    noise: float | None = None,
    metric: Metric = THROUGHPUT,
    **more: Any,
) -> Judgement:
    """Judges one metric of one configuration. For the arguments, see `TwoSamples`."""
    case = TwoSamples(base=base, new=new, metric=metric, paired=paired, noise=noise, **more)
    return judge_all([case], policy)[0]


def judge_all(cases: Sequence[TwoSamples], policy: Policy | None = None) -> list[Judgement]:
    """Judges several samples and corrects their p-values for multiple tests. If `policy` is None,
    the policy of each sample is used.

    All tests of a metric are one family. Tests whose policies have shares of alpha are one family
    for each kind of measurement, over all metrics. Each kind has the same part of alpha, so that
    many all-reduces do not reduce the power of tests of runs. If nothing changed, a family has a
    significant test with a probability of at most alpha. Otherwise, alpha is the largest expected
    share of false discoveries among the significant tests. Their intervals have the level at which
    they were significant (Benjamini and Yekutieli, JASA 100, 2005). The result is in the order of
    `cases`.
    """
    if policy is not None:
        cases = [replace(case, policy=policy) for case in cases]
    open_cases = group_by((case for case in cases if case.known is None), _test_family_key)
    kinds = sum(those[0].policy.share is not None for those in open_cases.values())
    sizes = {
        name: _number_of_tested_configurations([_case_weight(case, kinds) for case in family_cases])
        for name, family_cases in open_cases.items()
    }
    judgements = [_judge_untestable(c, c.policy, sizes.get(_test_family_key(c), 0)) for c in cases]
    tested = (index for index, judgement in enumerate(judgements) if judgement is None)
    for family in group_by(tested, lambda index: _test_family_key(cases[index])).values():
        weights = [_case_weight(cases[index], kinds) for index in family]
        size = _number_of_tested_configurations(weights)
        tests = [
            compute_sample_statistics(replace(cases[i], family=size), cases[i].policy)
            for i in family
        ]
        for index, judgement in zip(family, _judge_family(tests, sum(weights)), strict=True):
            judgements[index] = judgement
    return [judgement for judgement in judgements if judgement is not None]


def _judge_family(tests: Sequence[SampleStatistics], total: float) -> list[Judgement]:
    """Judges tests that are corrected together. `total` is the sum of their weights."""
    shares = [test.alpha_share / total for test in tests]
    adjusted = inference.adjust_for_false_discoveries([test.p_of_looks for test in tests], shares)
    significant = [
        p <= test.policy.alpha_of(test.metric) for test, p in zip(tests, adjusted, strict=True)
    ]
    judgements = []
    for test, share, p, is_significant in zip(tests, shares, adjusted, significant, strict=True):
        level = min(1.0, share * sum(significant))
        if is_significant and level != test.alpha_share:
            test = compute_sample_statistics(test, test.policy, level * test.policy.alpha)
        judgements.append(_judge_statistics(test, p, is_significant))
    return judgements


def _test_family_key(case: TwoSamples) -> tuple[str, ...]:
    """Returns the key of the tests that are corrected together: the metric or, if metrics share
    alpha, the kind of measurement.
    """
    metric = case.metric
    return (metric.name,) if case.policy.share is None else ("kind", next(iter(metric.judged)))


def _number_of_tested_configurations(weights: Sequence[float]) -> int:
    """Returns the number of configurations that are tested together, from their tests' weights."""
    return max(1, round(sum(weights)))


def _case_weight(case: TwoSamples, kinds: int) -> float:
    """Returns the weight of a test in its family. A test that uses all of alpha weighs 1.

    `kinds` is the number of kinds of measurements that share alpha.
    """
    return 1.0 if case.policy.share is None else case.alpha_share * kinds


def processes_needed(
    policy: Policy,
    configurations: int = 1,
    paired: bool = False,
    metric: Metric = THROUGHPUT,
    share: float = 1.0,
) -> int:
    """Returns the minimum number of pairs (or processes in each of BASE and NEW) that can prove a
    change if `configurations` tests are made together.
    """
    needed = policy.min_processes
    alpha = share * policy.alpha_of(metric)
    while configurations * inference.smallest_p(needed, needed, paired) > alpha:
        needed += 1
    return needed


def processes_to_decide(configurations: int) -> int:
    """Returns how many processes each of BASE and NEW needs for a verdict on every configuration.

    With this number, a change in one configuration alone can be significant. A change in the only
    configuration can be significant even if one process contradicts it.
    """
    n = processes_needed(_DEFAULT, configurations)
    # The first sample has one value below the second sample, and all other values above it.
    while inference.mann_whitney_p([-1.0, *range(n, 2 * n - 1)], range(n)) > _DEFAULT.alpha:
        n += 1
    return n


def processes_to_detect(change: float, scatter: float, configurations: int) -> int:
    """Estimates how many processes BASE and NEW need each to find a change in all of several
    configurations with 90 % power.

    Uses the normal approximation. The change must be significant even if no other configuration
    changed, and its whole interval must exceed the threshold.

    Args:
      change: relative change: -0.2 is 20 % slower. Raises ValueError if it is within the threshold.
      scatter: standard deviation of the logarithms of equal processes' speeds.
    """
    size, floor = abs(math.log1p(change)), math.log1p(_DEFAULT.threshold)
    if size <= floor:
        raise ValueError(f"change={change}: must exceed the threshold {_DEFAULT.threshold}")
    normal = NormalDist()
    chance = normal.inv_cdf(_FOUND_CHANCE ** (1 / configurations))
    certain = (normal.inv_cdf(1 - _DEFAULT.alpha / 2 / configurations) + chance) / size
    beyond = (normal.inv_cdf(1 - _DEFAULT.alpha / 2) + chance) / (size - floor)
    number = 2 * math.pi / 3 * (scatter * max(certain, beyond)) ** 2
    # One process is added, because the exact interval of few values is wider than estimated.
    return max(math.ceil(number) + 1, processes_needed(_DEFAULT, configurations))


def _judge_untestable(case: TwoSamples, policy: Policy, family: int) -> Judgement | None:
    """Returns the judgement of samples that need no test, or that cannot be tested because, for
    example, there are too few values. Returns None if a test is needed.
    """
    if case.known is not None:
        verdict, reason = case.known
        before, after = (median(side) if side else None for side in (case.base, case.new))
        again: dict[str, Any] = {}
        if verdict is Verdict.INCONCLUSIVE and case.smaller_sample_size:
            least = _minimum_runs_to_prove_change(case, policy, 1 / max(1, family))
            again = {"at_least": least, "new_experiment": _needs_new_experiment(case)}
        return Judgement(
            verdict=verdict, reason=reason, base_median=before, new_median=after, **again
        )
    sides = (("BASE", case.base), ("NEW", case.new))
    name = case.metric.name
    for side, values in sides:
        bad = [value for value in values if not is_usable(value, case.metric)]
        if bad:
            of = f"{len(bad)} of {count_text(len(values), 'value', 'values')} of {name}"
            reason = f"{of} in {side} cannot be used, the first is {bad[0]:.4g}"
            return Judgement(verdict=Verdict.FAILED, reason=reason, noise=case.noise)
    tested: dict[str, Any] = {}
    fewest, side = min((item_count(values), side) for side, values in sides)
    if not fewest:
        reason = f"{side} has no value of {name}"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=reason, noise=case.noise)
    if fewest < policy.min_processes:
        least = _minimum_runs_to_prove_change(case, policy, 1 / family)
        tested = {
            "at_least": least,
            "verdict_needs": least,
            "new_experiment": _needs_new_experiment(case),
        }
    elif not case.paired or len(case.base) == len(case.new):
        return None
    # The estimated change is reported, although there is no verdict.
    unpaired = replace(case, paired=False, differences=None, share=1.0)
    statistics = compute_sample_statistics(unpaired, policy)
    judgement = _judgement_without_reason(statistics, Verdict.INCONCLUSIVE, p=None, **tested)
    if judgement.verdict_needs is None:
        sizes = (
            f"{count_text(case.base, 'value', 'values')} in BASE and {item_count(case.new)} in NEW"
        )
        return _add_reason(statistics, judgement, f"{sizes} make no pairs")
    needs = estimate.minimum_processes_text(case, judgement.verdict_needs)
    few = f"{count_text(fewest, 'process', 'processes')} in {side}; a verdict needs {needs}"
    return _add_reason(statistics, judgement, few)


def _needs_new_experiment(case: TwoSamples) -> bool | None:
    """Returns True if further pairs must be measured in a new experiment; otherwise None, which
    JSON documents omit.
    """
    return (case.plan is not None and case.plan.is_new_experiment) or None


def _minimum_runs_to_prove_change(case: TwoSamples, policy: Policy, share: float) -> int:
    """Returns the minimum number of pairs (or processes in each of BASE and NEW) that can prove a
    change at the significance level `share` times alpha.
    """
    if case.plan is None:
        return processes_needed(policy, 1, case.paired, case.metric, share)
    alpha = share * policy.alpha_of(case.metric)
    return next(case.plan.pair_counts_that_can_be_significant(case.smaller_sample_size, alpha))


def _judge_statistics(statistics: SampleStatistics, p: float, is_significant: bool) -> Judgement:
    policy, metric = statistics.policy, statistics.metric
    share, family = statistics.alpha_share, statistics.family
    verdict = _verdict(statistics, is_significant)
    values: dict[str, Any] = {}
    best = inference.smallest_p(len(statistics.base), len(statistics.new), statistics.paired)
    # Samples that do not overlap at all were not significant, so no change could have been.
    separated = math.isclose(statistics.p, best) and not is_significant
    if verdict is not Verdict.INCONCLUSIVE:
        pass
    elif statistics.low is None or statistics.high is None or separated:
        least = _minimum_runs_to_prove_change(statistics, policy, share / family)
        size = detectable_change(statistics, least, share * policy.alpha_of(metric) / family)
        values = {
            "at_least": least,
            "provable_change": size,
            "new_experiment": _needs_new_experiment(statistics),
        }
    else:
        alphas = share * policy.alpha, share * policy.alpha_of(metric) / family
        enough = processes_for_verdict(statistics, alphas)
        if enough is not None:
            begins = _needs_new_experiment(statistics)
            more = enough if begins else enough - statistics.smaller_sample_size
            values = {"needed": enough, "more": more, "new_experiment": begins}
    judgement = _judgement_without_reason(
        statistics, verdict, p=statistics.p, p_adjusted=p, **values
    )
    return _add_reason(statistics, judgement, _verdict_reason(statistics, judgement))


def _verdict(statistics: SampleStatistics, is_significant: bool) -> Verdict:
    """Returns the verdict of a test. The interval of a significant test may still contain 0,
    because the boundaries of interim analyses vary slightly between the tested centres.
    """
    is_relevant = (
        statistics.interval_exceeds_floor
        if statistics.by_interval
        else statistics.excludes_no_change and statistics.change_exceeds_floor
    )
    if is_significant and is_relevant:
        is_better = (statistics.change > 0) == statistics.metric.higher_is_better
        return Verdict.FASTER if is_better else Verdict.SLOWER
    if not (statistics.may_be_worse or statistics.may_be_better):
        return Verdict.SAME
    if statistics.questions == ("slower",) and not statistics.may_be_worse:
        return Verdict.NOT_SLOWER
    if statistics.questions == ("faster",) and not statistics.may_be_better:
        return Verdict.NOT_FASTER
    return Verdict.INCONCLUSIVE


def _verdict_reason(statistics: SampleStatistics, judgement: Judgement) -> str:
    """Returns the reason for a test's verdict."""
    chance = estimate.p_value_text(judgement.p_adjusted, statistics.family)
    interval = (statistics.metric, statistics.change, statistics.low, statistics.high)
    if judgement.verdict in (Verdict.FASTER, Verdict.SLOWER):
        return f"{estimate.magnitude_text(*interval)}, {chance}"
    if judgement.verdict is not Verdict.INCONCLUSIVE:
        return estimate.limited_change_reason(statistics, judgement.verdict)
    if judgement.at_least is not None:
        return estimate.too_few_values_text(
            statistics, judgement.at_least, judgement.provable_change
        )
    why = estimate.undecided_reason(statistics) + estimate.further_runs_text(
        statistics, judgement.needed, judgement.more
    )
    known = estimate.estimate_text if not statistics.excludes_no_change else estimate.magnitude_text
    return f"{known(*interval)}, {chance}: {why}"


def _judgement_without_reason(
    statistics: SampleStatistics, verdict: Verdict, **tested: Any
) -> Judgement:
    """Returns a judgement with the given statistics and an empty reason."""
    medians, metric = statistics.new_median - statistics.base_median, statistics.metric
    change: float | None = None
    if medians * statistics.change < 0:
        change = medians / statistics.base_median if metric.relative else medians
        if not (
            metric.is_nonzero_after_rounding(change)
            and metric.is_nonzero_after_rounding(statistics.change)
        ):
            change = None  # One of the two changes is shown as 0 after rounding.
    is_whole = math.isclose(statistics.alpha, statistics.policy.alpha)
    confidence = None if is_whole else 1 - statistics.alpha
    own = {
        "verdict": verdict,
        "reason": "",
        "medians_change": change,
        "confidence": confidence,
    }
    return dataclass_from_sources(Judgement, statistics, **own, **tested)


def _add_reason(statistics: SampleStatistics, judgement: Judgement, reason: str) -> Judgement:
    reason += estimate.median_disagreement_text(statistics, judgement.medians_change)
    return replace(judgement, reason=reason)


# Reports disturbances of runs, and also judges CPU time if runs were disturbed.
#
# CPU time is judged, too, if at least half of the runs on CPUs were disturbed in their timed steps.
# Throughput and CPU time are then both tested, each at half of the significance level (Bonferroni).
# The tests remain exact, because exchanging BASE and NEW does not change which runs were disturbed.
# The verdict combines the verdicts on throughput and CPU time:
# * slower or faster, if one verdict is slower or faster and the other verdict is not the opposite;
# * same or not slower, if this is the verdict on throughput, or if it is the verdict on CPU time
#   and throughput is neither significantly worse nor worse by the smallest relevant change;
# * inconclusive in all other cases.
#
# docs/evidence.md contains the error rates under load.

_BUSY = 0.05
"""If other programs used fewer CPUs than this, texts do not mention other programs."""

_BY_OTHERS = frozenset(("load", "steal"))


def disturbance_text(measurements: Iterable[Measurement]) -> str:
    """Returns text that says how many runs were disturbed, and by what; "" if no run recorded its
    measuring conditions.
    """
    checked = [
        record
        for record in measurements
        if isinstance(record, RunRecord) and record.conditions is not None
    ]
    if not checked:
        return ""
    by_run = [(record, _disturbance_ids(record)) for record in checked]
    names = dict.fromkeys(name for _, own in by_run for name in own)
    runs_by_name = {name: [record for record, own in by_run if name in own] for name in names}
    if not runs_by_name:
        most = _disturbance_amount_text("load", checked) or "as far as they could be checked"
        return f"none of {count_text(len(checked), 'run', 'runs')} was disturbed ({most})"
    disturbed = sum(bool(own) for _, own in by_run)
    verb = "was" if disturbed == 1 else "were"
    causes = [
        f"{CONDITIONS.get(name, name)} in {len(runs)}"
        + (f" ({amount})" if (amount := _disturbance_amount_text(name, runs)) else "")
        for name, runs in sorted(runs_by_name.items(), key=lambda item: -len(item[1]))
    ]
    runs = count_text(len(checked), "run", "runs")
    return f"{disturbed} of {runs} {verb} disturbed: {', '.join(causes)}"


def mostly_disturbed(measurements: Sequence[Measurement]) -> bool:
    """Whether, in at least half of the runs, other programs or other virtual machines used the CPUs
    during the timed steps.
    """
    disturbed = sum(not _BY_OTHERS.isdisjoint(_disturbance_ids(record)) for record in measurements)
    return 2 * disturbed >= len(measurements) > 0


def other_cpus_text(measurements: Iterable[Measurement]) -> str:
    """Returns text with the median number of CPUs that other programs used during the runs; "" if
    this number is unknown or small.
    """
    runs = [record for record in measurements if isinstance(record, RunRecord)]
    used = _condition_values("other_cpus", runs)
    if not used or (typical := median(used)) < _BUSY:
        return ""
    facts = runs[-1].environment
    cpus = facts.get("usable_cpus") or facts.get("logical_cpus")
    of = f" of {count_text(cpus, 'CPU', 'CPUs')}" if isinstance(cpus, int) else " CPUs"
    return f"other programs use {typical:.1f}{of}"


def repeated_pairs_and_causes(measurements: Iterable[Measurement]) -> tuple[int, str]:
    """Returns the number of pairs that `cnnbench ab` measured again because a process was killed,
    and a text with the causes.
    """
    lost: dict[object, list[tuple[str, str]]] = {}
    for record in measurements:
        # The field `ab` contains JSON that was not validated.
        place = record.ab or {} if isinstance(record, RunRecord) else {}
        processes = place.get("lost")
        ends = processes if isinstance(processes, (list, tuple)) else ()
        lost_processes = [
            (str(e.get("side")), str(e.get("how"))) for e in ends if isinstance(e, Mapping)
        ]
        if lost_processes:
            lost[place.get("seed"), place.get("pair")] = lost_processes
    if not lost:
        return 0, ""
    counted = Counter(process for processes in lost.values() for process in processes)
    causes = [
        f"a process of {side.upper()} was {how}" + (f" ({times} times)" if times > 1 else "")
        for (side, how), times in sorted(counted.items())
    ]
    pairs = count_text(len(lost), "pair was", "pairs were")
    return len(lost), f"{pairs} measured again: {', '.join(causes)}"


def _disturbance_ids(measurement: Measurement) -> Mapping[str, None]:
    """Returns the IDs of the disturbances in a run's timed steps: the keys, in a fixed order."""
    if not isinstance(measurement, RunRecord) or measurement.conditions is None:
        return {}
    return dict.fromkeys(note.id for note in measurement.conditions.notes if note.when == "during")


def _disturbance_amount_text(name: str, runs: Sequence[RunRecord]) -> str:
    if name == "load" and (others := _condition_values("other_cpus", runs)):
        return f"others kept at most {max(others):.2f} CPUs busy"
    if name == "steal" and (stolen := _condition_values("steal_fraction", runs)):
        return f"at most {percent(max(stolen))}"
    return ""


def _condition_values(name: str, runs: Sequence[RunRecord]) -> list[float]:
    values = (run.condition(name) for run in runs)
    return [value for value in values if value is not None]


S = TypeVar("S", bound=TwoSamples)

_FEWEST_TURNS = 4
_SETTLED: Mapping[str, Any] = dict.fromkeys(("needed", "more", "at_least", "new_experiment"))
_OPPOSITE = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}
_PASSES = (Verdict.SAME, Verdict.NOT_SLOWER, Verdict.NOT_FASTER)

_WAITS = "its steps wait longer: for input, for each other, or with fewer threads at work"
_SPINS = "more threads are at work, or threads that wait keep a CPU busy"


def throughput_and_cpu_time_samples(
    throughput: S, base: MeasurementGroup, new: MeasurementGroup, aa_runs: Sequence[Measurement]
) -> tuple[S, S] | None:
    """Returns the samples of throughput and CPU time of disturbed pairs, each with a share of the
    significance level. Returns None if only the throughput is judged.

    Only the throughput is judged if runs are not paired, were not disturbed, did not compute on a
    CPU in one process, or recorded no CPU time.
    """
    runs = [record for record in (*base.records, *new.records) if isinstance(record, RunRecord)]
    measured = [CPU_TIME.value(run) for run in runs]
    if (
        throughput.metric is not THROUGHPUT
        or not throughput.paired
        or len(runs) != len(base.records) + len(new.records)
        or any(run.cluster or not run.placement or run.placement.device != "cpu" for run in runs)
        or not all(measured)
        or not mostly_disturbed(runs)
    ):
        return None
    values = tuple(value for value in measured if value)
    pairs = len(base.records)
    cpu_time = replace(
        throughput,
        base=values[:pairs],
        new=values[pairs:],
        metric=CPU_TIME,
        noise=aa_spread_of_runs(aa_runs, CPU_TIME, throughput.policy),
        differences=[
            log_cpu_time_ratio(a, b) for a, b in zip(runs[:pairs], runs[pairs:], strict=True)
        ],
    )
    return split_alpha_between_samples(throughput, cpu_time)


def log_cpu_time_ratio(base: RunRecord, new: RunRecord) -> float:
    """Returns the logarithm of the ratio of the CPU times per step, NEW to BASE. If the processes
    were interleaved in short time slices, the ratio is computed from the time slices.
    """
    means = [float(np.mean(run.step_cpu_seconds)) for run in (base, new)]
    slices = [cpu_seconds_by_time_slice(run) for run in (base, new)]
    return log_ratio_of_time_slices(slices[0], slices[1], math.log(means[1] / means[0]))


def log_ratio_of_time_slices(
    base: Sequence[float], new: Sequence[float], log_ratio_of_means: float
) -> float:
    """Returns the Hodges-Lehmann estimate of the logarithm of the ratio NEW to BASE. Each value is
    from a time slice in which the other process of the pair waited. With too few time slices,
    returns `log_ratio_of_means`.
    """
    turns = [
        math.log(after / before)
        for before, after in zip(base, new, strict=False)
        if before > 0 and after > 0
    ]
    return paired_shift(turns, 0.5).estimate if len(turns) >= _FEWEST_TURNS else log_ratio_of_means


def cpu_seconds_by_time_slice(run: RunRecord) -> tuple[float, ...]:
    """Returns the mean CPU seconds per step in each time slice of a run, during which the other
    process of the pair waited; () if the processes were not interleaved.
    """
    if run.turns is None:
        return ()
    starts = [start - 1 for start in run.turns.starts]
    times = np.asarray(run.step_cpu_seconds)
    return tuple(float(times[a:b].mean()) for a, b in pairwise([*starts, len(times)]) if a < b)


def split_alpha_between_samples(throughput: S, cpu_time: S) -> tuple[S, S]:
    """Gives half of the significance level alpha to each of the two samples (throughput and CPU
    time).
    """
    return replace(throughput, share=0.5), replace(cpu_time, share=0.5)


def joint_judgement(
    throughput: Judgement,
    cpu_time: Judgement,
    policy: Policy,
    runs: Sequence[Measurement],
    questions: Sequence[str] = ("slower",),
) -> Judgement:
    """Returns the judgement of the throughput with a verdict that combines the verdicts on
    throughput and CPU time. For `questions`, see `TwoSamples`.
    """
    speed, work = throughput.verdict, cpu_time.verdict
    like = "the same" if work is Verdict.SAME else work.word(CPU_TIME)
    cpu_change = (CPU_TIME, cpu_time.change, cpu_time.low, cpu_time.high)
    if speed in _OPPOSITE and work is _OPPOSITE[speed]:
        why = _WAITS if speed is Verdict.SLOWER else _SPINS
        interval = (throughput.change, throughput.low, throughput.high)
        amount = magnitude_text(THROUGHPUT, *interval)
        reason = f"{amount}, but CPU time {magnitude_text(*cpu_change)}: {why}"
        return replace(throughput, verdict=Verdict.INCONCLUSIVE, reason=reason, **_SETTLED)
    if speed is Verdict.SLOWER and work in _PASSES:
        return replace(throughput, reason=f"{throughput.reason}; CPU time is {like}: {_WAITS}")
    if speed in _OPPOSITE or (speed in _PASSES and work not in _OPPOSITE):
        return throughput
    others = other_cpus_text(runs) or "other machines use the CPUs"
    if work in _OPPOSITE:
        chance = f"p = {cpu_time.p_adjusted:.2g}"
        reason = f"CPU time {magnitude_text(*cpu_change)}, {chance}; {others}"
        return replace(
            throughput, verdict=work, reason=reason, decided_by=CPU_TIME.name, **_SETTLED
        )
    if work not in _PASSES:
        if (cpu_time.needed or math.inf) >= (throughput.needed or math.inf):
            return throughput
        # CPU time needs fewer further pairs than throughput, so its number of pairs is recommended.
        sooner = {name: getattr(cpu_time, name) for name in _SETTLED}
        return replace(throughput, reason=f"CPU time: {cpu_time.reason}", **sooner)
    direction = _apparent_direction(throughput, policy)
    if direction is None or direction in questions:
        reason = f"{throughput.reason}; CPU time is {like}: perhaps {_WAITS}"
        return replace(throughput, reason=reason)
    if direction and work is Verdict.SAME:
        # Throughput may have changed, but not in the direction that the user asks for.
        work = Verdict.NOT_SLOWER if direction == "faster" else Verdict.NOT_FASTER
    reason = f"CPU time: {cpu_time.reason}; {others}"
    return replace(throughput, verdict=work, reason=reason, decided_by=CPU_TIME.name, **_SETTLED)


def _apparent_direction(throughput: Judgement, policy: Policy) -> str | None:
    """Returns "slower" or "faster" if the throughput changed significantly, or if its estimate
    exceeds the smallest relevant change; otherwise "". Returns None if the estimate is unknown.

    CPU time cannot see waiting, so it cannot exclude a change that the throughput seems to show.
    """
    p, change, floor = throughput.p_adjusted, throughput.change, throughput.floor
    if change is None or floor is None:
        return None
    is_significant = p is not None and p <= policy.alpha
    if is_significant or exceeds_limit(change_magnitude(change, THROUGHPUT), floor):
        return "slower" if change < 0 else "faster"
    return ""


def slow_steps_and_median_change_text(
    change: float | None, slow: tuple[str, str], names: tuple[str, str], paired: bool
) -> str:
    """Returns text about slow steps and the change of the median step, such as "in NEW every third
    step takes 90 ms more; paired change at the median step +0.1 %".

    Args:
      change, slow: results of `median_step_change_and_slow_steps`; "" if the change is None.
      names: names of BASE and NEW in the text.
      paired: whether the change was estimated within pairs. It then differs from the change of the
        medians over the processes.
    """
    if change is None:
        return ""
    parts = [f"in {name} {text}" for name, text in zip(names, slow, strict=True) if text]
    which = "paired change" if paired else "change"
    return "; ".join([*parts, f"{which} at the median step {THROUGHPUT.change_text(change)}"])


def median_step_change_and_slow_steps(
    case: TwoSamples,
    change: float | None,
    base: Sequence[Measurement],
    new: Sequence[Measurement],
    policy: Policy,
) -> tuple[float | None, tuple[str, str]]:
    """Returns the change of the speed at the median step, and texts about the slow steps of BASE
    and of NEW.

    Args:
      case: the judged throughputs of successful runs.
      change: the judged change of the throughput; None if unknown.
      base, new: the runs of BASE and of NEW.

    Returns:
      The change of the ratio of global batch and median step, as a share of the base. None unless
      it differs from the change of the throughput by more than the threshold. A text is "" if the
      slow steps cost at most the threshold. Both texts are "" if the costs in BASE and NEW differ
      by at most the threshold, because then slow steps did not change the speed.
    """
    sides = [
        [run for run in side if isinstance(run, RunRecord) and run.status == "ok"]
        for side in (base, new)
    ]
    timed = all(side and all(run.step_seconds and run.batch for run in side) for side in sides)
    if case.metric is not THROUGHPUT or change is None or change <= -1 or not timed:
        return None, ("", "")
    rates = [
        [run.batch.global_ / median(run.step_seconds) for run in side if run.batch]
        for side in sides
    ]
    mean_change = compute_sample_statistics(
        replace(case, base=rates[0], new=rates[1]), policy
    ).change
    threshold = policy.threshold_of(THROUGHPUT)
    if not exceeds_limit(
        change_magnitude((1 + change) / (1 + mean_change) - 1, THROUGHPUT), threshold
    ):
        return None, ("", "")
    shared = [*map(common_slow_steps, sides)]
    # Slow steps cost the same in BASE and NEW.
    if abs(slow_step_cost_increase(*shared)) <= threshold:
        shared = [None, None]
    before, after = (
        slow_steps.text if slow_steps and slow_steps.cost > threshold else ""
        for slow_steps in shared
    )
    return mean_change, (before, after)
