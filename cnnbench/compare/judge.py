"""Verdicts from plain numbers: the one place where cnnbench decides what is slower.

`judge` takes one value per process of each side; `judge_all` does the same for the
configurations of a suite together and pays for testing many of them (Holm, per metric).
What records add, such as different machines or failed runs, comes before, in
`cnnbench.compare.compare`.

The rules, on the logarithms of the values (on the values themselves for accuracies):

* floor = max(threshold of the metric, measured A/A spread);
* slower or faster: the test is significant after Holm and the Hodges-Lehmann shift lies
  beyond the floor;
* same: the whole confidence interval lies within the floor, and within
  `Policy.same_limit` where it is the A/A spread that makes the floor wider;
* else inconclusive. Too few values, and values that are no numbers, never get that far.

Swapping the sides, or inverting all values, mirrors the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.compare import explain
from cnnbench.compare.estimate import Case, Evidence, gather, usable
from cnnbench.metrics.policy import Policy, Verdict
from cnnbench.metrics.registry import THROUGHPUT, Metric
from cnnbench.stats.rank_tests import holm

_DEFAULT = Policy()


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict with the numbers that led to it.

    Attributes:
      verdict: the outcome.
      reason: why, in one sentence.
      base_median, new_median: of the values; None if there is nothing to compute.
      change: the Hodges-Lehmann shift as a share of the base (-0.05: new is 5 % lower),
        or as a difference for accuracies; None if unknown.
      low, high: ends of its confidence interval; None if there are too few values.
      p: of the two-sided test; None if it was not done.
      p_adjusted: after Holm over the configurations judged together.
      floor: changes up to here do not count.
      noise: the A/A spread; None if it was not measured.
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


def judge(
    base: Sequence[float],
    new: Sequence[float],
    policy: Policy = _DEFAULT,
    *,
    paired: bool = False,
    noise: float | None = None,
    metric: Metric = THROUGHPUT,
) -> Judgement:
    """Judges one metric of one configuration.

    Args:
      base, new: one value per process, such as images per second of its median step.
      policy: the constants.
      paired: the i-th values of both sides belong together.
      noise: A/A spread, see `cnnbench.compare.aa_spread`; None if not measured.
      metric: what the values are.

    Returns:
      A judgement for whatever is given: no values, NaN, constants, unequal counts.
    """
    case = Case(base=base, new=new, metric=metric, paired=paired, noise=noise)
    return judge_all([case], policy)[0]


def judge_all(cases: Sequence[Case], policy: Policy = _DEFAULT) -> list[Judgement]:
    """Judges cases together: the tests of one metric are one family for Holm.

    Args:
      cases: metrics of configurations.
      policy: the constants.

    Returns:
      A judgement per case, in their order.
    """
    judgements = [_unjudgeable(case, policy) for case in cases]
    families: dict[str, dict[int, Evidence]] = {}
    for index, case in enumerate(cases):
        if judgements[index] is None:
            families.setdefault(case.metric.name, {})[index] = gather(case, policy)
    for family in families.values():
        p_values = holm([found.p for found in family.values()])
        for (index, found), p in zip(family.items(), p_values, strict=True):
            judgements[index] = _judged(cases[index], found, p, len(family), policy)
    return [judgement for judgement in judgements if judgement is not None]


def _unjudgeable(case: Case, policy: Policy) -> Judgement | None:
    """The judgement of a case that cannot be tested; None for one that can."""
    sides = (("BASE", case.base), ("NEW", case.new))
    for side, values in sides:
        if not all(usable(value, case.metric) for value in values):
            reason = explain.unusable(side, list(values), case.metric)
            return Judgement(verdict=Verdict.FAILED, reason=reason, noise=case.noise)
    fewest, side = min((len(values), side) for side, values in sides)
    if fewest >= policy.min_processes:
        if not case.paired or len(case.base) == len(case.new):
            return None
        reason = explain.unequal_pairs(case)
    else:
        reason = explain.too_few(side, case, policy)
    if not fewest:
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=reason, noise=case.noise)
    # An estimate is worth showing even where nothing follows from it.
    unpaired = Case(base=case.base, new=case.new, metric=case.metric, noise=case.noise)
    return _judgement(unpaired, gather(unpaired, policy), Verdict.INCONCLUSIVE, reason)


def _judged(case: Case, found: Evidence, p: float, family: int, policy: Policy) -> Judgement:
    """The rules."""
    if p <= case.metric.alpha(policy) and found.beyond_floor:
        better = (found.change > 0) == case.metric.higher_is_better
        verdict = Verdict.FASTER if better else Verdict.SLOWER
        reason = explain.decided(case, found, p, family)
    elif found.within_margin:
        verdict, reason = Verdict.SAME, explain.equivalent(case, found)
    else:
        verdict = Verdict.INCONCLUSIVE
        reason = explain.undecided(case, found, p, family, policy)
    return _judgement(case, found, verdict, reason, p)


def _judgement(
    case: Case, found: Evidence, verdict: Verdict, reason: str, p_adjusted: float | None = None
) -> Judgement:
    return Judgement(
        verdict=verdict,
        reason=reason,
        base_median=found.base_median,
        new_median=found.new_median,
        change=found.change,
        low=found.low,
        high=found.high,
        p=None if p_adjusted is None else found.p,
        p_adjusted=p_adjusted,
        floor=found.floor,
        noise=case.noise,
    )
