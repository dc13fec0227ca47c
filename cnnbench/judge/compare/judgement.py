"""Computes verdicts from plain numbers, and the numbers of processes that verdicts need.

`judge` judges one configuration, with one value per process. `judge_all` judges several
configurations together and corrects for multiple tests (Holm), per metric or over all requested
metrics. Verdicts that follow from records, such as different machines or failed runs, are decided
earlier, in `cnnbench.judge.compare.compare`. The rules use logarithms of the values (for
accuracies, the values themselves):

* floor = max(threshold of the metric, measured A/A spread);
* slower or faster: the test is significant after the correction, and the whole confidence interval
  of the Hodges-Lehmann shift lies beyond the floor;
* same: the whole confidence interval lies within the floor, and also within `Policy.same_limit` if
  the A/A spread makes the floor wider;
* failed: a value is unusable;
* inconclusive: all other cases, including too few values.

Exchanging the sides, or inverting all values, reverses the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

from cnnbench.base import inference
from cnnbench.base.inference import Continuation
from cnnbench.base.stats import grouped, median
from cnnbench.base.text import count, number_of
from cnnbench.judge.compare import estimate
from cnnbench.judge.compare.estimate import (
    Evidence,
    TwoSamples,
    Verdict,
    compute_evidence,
    detectable_change,
    is_usable,
)
from cnnbench.judge.compare.further import needed_processes
from cnnbench.judge.metrics.measurement import THROUGHPUT, Policy
from cnnbench.records.codec import ABSENT, OPTIONAL, from_sources
from cnnbench.records.metric import Metric

_DEFAULT = Policy()

_FOUND_CHANCE = 0.9
"""Power with which a change is found in every configuration of a suite."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict, with the numbers from which it follows.

    Attributes:
      verdict: the verdict.
      reason: reason for the verdict, in one sentence.
      base_median, new_median: medians of the values of BASE and NEW; None without values.
      change: the Hodges-Lehmann shift as a share of the base (-0.05 means that new is 5 % lower),
        or as a difference for accuracies; None if unknown.
      low, high: confidence interval of the change; None if there are too few values.
      p: p-value of the two-sided test; None if there was no test.
      p_adjusted: p-value after Holm's correction over the configurations that were judged together;
        compare it with the whole level.
      floor: largest irrelevant change.
      margin: largest change for the verdict "same".
      family: number of configurations that were tested together on the metric.
      medians_change: change of the medians, if its direction is opposite to `change`; otherwise
        None.
      noise: the A/A spread; None if it was not measured.
      scatter: standard deviation of the pairs' changes or, without pairs, of the processes within
        the sides. If changes are shares, it is the deviation of logarithms. None if there are too
        few values.
      needed: if the scatter makes the result inconclusive, the estimated number of pairs (or
        processes per side) that would decide it, including the measured ones; otherwise None.
      at_least: if there are too few values to prove a change, the minimum number of pairs (or
        processes per side) for that; otherwise None.
      verdict_needs: if there are too few values for any verdict, the minimum number of pairs (or
        processes per side) for a verdict; otherwise None.
      more: number of further pairs (or processes per side) in `needed`.
      provable_change: change that `at_least` pairs detect with 80 % power; None if unknown.
      new_experiment: whether `needed` and `at_least` count pairs of a new experiment, which
        excludes the measured pairs.
      median_change: change of the median step, if it differs from the change of the throughput by
        more than the threshold; otherwise None.
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
    plan: Continuation | None = None,
) -> Judgement:
    """Judges one metric of one configuration with one value per process; see `TwoSamples`."""
    case = TwoSamples(base=base, new=new, metric=metric, paired=paired, noise=noise, plan=plan)
    return judge_all([case], policy)[0]


def judge_all(cases: Sequence[TwoSamples], policy: Policy | None = None) -> list[Judgement]:
    """Judges cases, in their order. If `policy` is None, the policy of each case is used.

    For Holm's correction, all tests of a metric are one family. Tests whose policies have shares of
    alpha are one family for each kind of measurement, over all metrics. Each kind has the same part
    of alpha, so that many reductions do not cost runs their power. If the shares of a configuration
    add up to at most this part, the weighted procedure (Holm, 1979) controls alpha over all
    configurations and
    metrics.
    """
    if policy is not None:
        cases = [replace(case, policy=policy) for case in cases]
    open_cases = grouped((case for case in cases if case.known is None), _family)
    kinds = sum(those[0].policy.share is not None for those in open_cases.values())
    sizes = {
        name: _size([_weight(case, kinds) for case in family_cases])
        for name, family_cases in open_cases.items()
    }
    judgements = [_unjudgeable(case, case.policy, sizes.get(_family(case), 0)) for case in cases]
    tested = (index for index, judgement in enumerate(judgements) if judgement is None)
    for family in grouped(tested, lambda index: _family(cases[index])).values():
        weights = [_weight(cases[index], kinds) for index in family]
        size = _size(weights)
        gathered_cases = [
            compute_evidence(replace(cases[i], family=size), cases[i].policy) for i in family
        ]
        # Scaled to the whole level, because a case may have only a part of it.
        scaled = [
            min(1.0, evidence.p / evidence.part) if evidence.part else 1.0
            for evidence in gathered_cases
        ]
        for index, evidence, p in zip(
            family, gathered_cases, inference.holm(scaled, weights), strict=True
        ):
            judgements[index] = _judged(evidence, p, evidence.policy)
    return [judgement for judgement in judgements if judgement is not None]


def _family(case: TwoSamples) -> tuple[str, ...]:
    """Name of a case's family of tests."""
    metric = case.metric
    return (metric.name,) if case.policy.share is None else ("kind", next(iter(metric.judged)))


def _size(weights: Sequence[float]) -> int:
    """Number of configurations in a family."""
    return max(1, round(sum(weights)))


def _weight(case: TwoSamples, kinds: int) -> float:
    """Weight of a case in its family, in units of configurations.

    `kinds` is the number of families that share alpha.
    """
    return 1.0 if case.policy.share is None else case.part * kinds


def processes_needed(
    policy: Policy,
    configurations: int = 1,
    paired: bool = False,
    metric: Metric = THROUGHPUT,
    share: float = 1.0,
) -> int:
    """Minimum number of processes per side (or pairs) to prove a change among several tests."""
    needed = policy.min_processes
    alpha = share * policy.alpha_of(metric)
    while configurations * inference.smallest_p(needed, needed, paired) > alpha:
        needed += 1
    return needed


def processes_to_decide(configurations: int) -> int:
    """Number of processes per side that is sufficient for a verdict on every configuration.

    The smallest number for which a change of all configurations can be significant (Holm), and a
    change of one configuration even if one process of a side overlaps with the other side.
    """
    n = processes_needed(_DEFAULT, configurations)
    # All values of one side, except at most one, exceed all values of the other side.
    while inference.mann_whitney_p([-1.0, *range(n, 2 * n - 1)], range(n)) > _DEFAULT.alpha:
        n += 1
    return n


def processes_to_find(change: float, scatter: float, configurations: int) -> int:
    """Estimated number of processes per side that finds a change with 90 % power.

    Uses the normal approximation. The change must be significant (Holm), and its interval must be
    beyond the threshold.

    Args:
      change: relative change: -0.2 is 20 % slower. Raises ValueError if it is within the threshold.
      scatter: standard deviation of the logarithms of equal processes' speeds.
    """
    size, floor = abs(math.log1p(change)), math.log1p(_DEFAULT.threshold)
    if size <= floor:
        raise ValueError(f"change={change}: is within the threshold {_DEFAULT.threshold}")
    normal = NormalDist()
    chance = normal.inv_cdf(_FOUND_CHANCE ** (1 / configurations))
    certain = (normal.inv_cdf(1 - _DEFAULT.alpha / 2 / configurations) + chance) / size
    beyond = (normal.inv_cdf(1 - _DEFAULT.alpha / 2) + chance) / (size - floor)
    number = 2 * math.pi / 3 * (scatter * max(certain, beyond)) ** 2
    # One more process, because exact intervals of few values are wider than approximate ones.
    return max(math.ceil(number) + 1, processes_needed(_DEFAULT, configurations))


def _unjudgeable(case: TwoSamples, policy: Policy, family: int) -> Judgement | None:
    """The judgement of a case that is not tested; None for other cases."""
    if case.known is not None:
        verdict, reason = case.known
        before, after = (median(side) if side else None for side in (case.base, case.new))
        again: dict[str, Any] = {}
        if verdict is Verdict.INCONCLUSIVE and case.fewest:  # For example, after an interrupt.
            least = _fewest_that_prove(case, policy, 1 / max(1, family))
            again = {"at_least": least, "new_experiment": _begins(case)}
        return Judgement(
            verdict=verdict, reason=reason, base_median=before, new_median=after, **again
        )
    sides = (("BASE", case.base), ("NEW", case.new))
    name = case.metric.name
    for side, values in sides:
        bad = [value for value in values if not is_usable(value, case.metric)]
        if bad:
            of = f"{len(bad)} of {count(len(values), 'value', 'values')} of {name}"
            reason = f"{of} in {side} cannot be used, the first is {bad[0]:.4g}"
            return Judgement(verdict=Verdict.FAILED, reason=reason, noise=case.noise)
    tested: dict[str, Any] = {}
    fewest, side = min((number_of(values), side) for side, values in sides)
    if not fewest:
        reason = f"{side} has no value of {name}"
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=reason, noise=case.noise)
    if fewest < policy.min_processes:
        least = _fewest_that_prove(case, policy, 1 / family)
        tested = {"at_least": least, "verdict_needs": least, "new_experiment": _begins(case)}
    elif not case.paired or len(case.base) == len(case.new):
        return None
    # The estimate is reported even without a verdict.
    unpaired = replace(case, paired=False, differences=None, share=1.0)
    evidence = compute_evidence(unpaired, policy)
    judgement = _judgement(evidence, Verdict.INCONCLUSIVE, p=None, **tested)
    if judgement.verdict_needs is None:
        sizes = f"{number_of(case.base)} values in BASE and {number_of(case.new)} in NEW"
        return _with_reason(evidence, judgement, f"{sizes} make no pairs")
    needs = estimate.minimum_text(case, judgement.verdict_needs)
    few = f"{count(fewest, 'process', 'processes')} in {side}; a verdict needs {needs}"
    return _with_reason(evidence, judgement, few)


def _begins(case: TwoSamples) -> bool | None:
    """Whether further pairs belong to a new experiment: True or None."""
    return (case.plan is not None and case.plan.begins) or None


def _fewest_that_prove(case: TwoSamples, policy: Policy, share: float) -> int:
    """Minimum number of pairs (or processes per side) that can prove a change at part of alpha."""
    if case.plan is None:
        return processes_needed(policy, 1, case.paired, case.metric, share)
    return next(case.plan.numbers(case.fewest, share))


def _judged(evidence: Evidence, p: float, policy: Policy) -> Judgement:
    metric, alpha, share = evidence.metric, policy.alpha_of(evidence.metric), evidence.part or 0.5
    plan, family, verdict = evidence.plan, evidence.family, Verdict.INCONCLUSIVE
    values: dict[str, Any] = {}
    best = inference.smallest_p(len(evidence.base), len(evidence.new), evidence.paired)
    separated = family * best > evidence.part * alpha and math.isclose(evidence.p, best)
    if p <= alpha and evidence.wholly_beyond_floor:
        better = (evidence.change > 0) == metric.higher_is_better
        verdict = Verdict.FASTER if better else Verdict.SLOWER
    elif evidence.within_margin:
        verdict = Verdict.SAME
    elif evidence.low is None or evidence.high is None or separated:
        # Too few values for significance. Reports the minimum number, and the change that it can
        # prove.
        least = _fewest_that_prove(evidence, policy, share / family)
        level = alpha if plan is None else plan.analyses(least)[-1].alpha
        size = detectable_change(evidence, least, share * level / family)
        values = {"at_least": least, "provable_change": size, "new_experiment": _begins(evidence)}
    else:
        level = share * (policy.alpha if plan is None else 1.0)
        enough = needed_processes(evidence, (level, level * alpha / policy.alpha / family))
        if enough is not None:
            begins = _begins(evidence)
            more = enough if begins else enough - evidence.fewest
            values = {"needed": enough, "more": more, "new_experiment": begins}
    judgement = _judgement(evidence, verdict, p=evidence.p, p_adjusted=p, **values)
    return _with_reason(evidence, judgement, _reason(evidence, judgement, p <= alpha))


def _reason(evidence: Evidence, judgement: Judgement, certain: bool) -> str:
    """The reason for a verdict from values. `certain` is whether the test is significant."""
    chance = estimate.p_value_text(judgement.p_adjusted, evidence.family)
    interval = (evidence.metric, evidence.change, evidence.low, evidence.high)
    if judgement.verdict in (Verdict.FASTER, Verdict.SLOWER):
        return f"{estimate.magnitude_text(*interval)}, {chance}"
    if judgement.verdict is Verdict.SAME:
        return estimate.same_text(evidence)
    if judgement.at_least is not None:
        return estimate.too_few_text(evidence, judgement.at_least, judgement.provable_change)
    why = estimate.undecided_text(evidence, certain) + estimate.outlook_text(
        evidence, judgement.needed, judgement.more
    )
    return f"{estimate.estimate_text(*interval)}, {chance}: {why}"


def _judgement(evidence: Evidence, verdict: Verdict, **tested: Any) -> Judgement:
    """A judgement without its reason, which is added later."""
    medians, metric = evidence.new_median - evidence.base_median, evidence.metric
    change: float | None = None
    if medians * evidence.change < 0:
        change = medians / evidence.base_median if metric.relative else medians
        if not (metric.shows(change) and metric.shows(evidence.change)):
            change = None  # A smaller change is not visible in the output.
    own = {"verdict": verdict, "reason": "", "medians_change": change}
    return from_sources(Judgement, evidence, **own, **tested)


def _with_reason(evidence: Evidence, judgement: Judgement, reason: str) -> Judgement:
    reason += estimate.disagreement_text(evidence, judgement.medians_change)
    return replace(judgement, reason=reason)
