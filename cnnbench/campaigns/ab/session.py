"""Measurement of pairs until the verdict of an experiment is clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cnnbench.base.stats.rank_tests import paired_bounds
from cnnbench.base.text.numbers import percent
from cnnbench.campaigns.ab.pairs import PairFailedError, Pairs
from cnnbench.campaigns.ab.results import CLEAR, compare_pairs
from cnnbench.campaigns.ab.sequential import InterimAnalysis
from cnnbench.judge.compare import ComparedConfiguration, Comparison, Verdict
from cnnbench.judge.compare.estimate import TwoSamples, limits, scaled
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import CPU_TIME

SMALLEST_CHANCE = 0.05
"""An experiment ends at an interim analysis if its chance of a verdict is smaller."""

_DRAWS = 400
_SEED = 1
# More pairs cannot change these.
_HOPELESS = (
    Verdict.FAILED,
    Verdict.CHANGED_WORK,
    Verdict.NOT_COMPARABLE,
    Verdict.MISSING,
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Comparison of all complete pairs at a level, and how the experiment ended.

    `failure` is the error, or ""; `lost` if processes were ended from outside too often.
    """

    comparison: Comparison
    alpha: float
    failure: str = ""
    lost: bool = False
    interrupted: bool = False


class ExperimentSession:
    """One experiment; pairs that its folder already holds are not measured again."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._experiment = pairs.experiment
        self._journal = pairs.results.journal

    def run(self) -> Finding:
        """Measures and judges, also after an interrupt or a failure."""
        self._journal.add("ab", **self._experiment.facts)
        failure, lost, interrupted = "", False, False
        alpha = self._experiment.analyses[0].alpha
        try:
            missing = self._pairs.earlier < self._experiment.pairs
            for number in range(1, missing * self._experiment.burn_in + 1):
                self._pairs.measure(number, burn_in=True)
            alpha = self._measure()
        except PairFailedError as error:
            failure, lost = str(error), error.lost
        except KeyboardInterrupt:
            interrupted = True
        pairs = len(self._pairs.records["a"])
        if failure or interrupted:
            alpha = self._experiment.level_after(pairs)
        comparison = self._compare(alpha)
        self._journal.add(
            "end",
            pairs=pairs,
            alpha=alpha,
            verdicts=[entry.main.verdict.value for entry in comparison.entries],
            failure=failure,
            interrupted=interrupted,
        )
        return Finding(
            comparison=comparison,
            alpha=alpha,
            failure=failure,
            lost=lost,
            interrupted=interrupted,
        )

    def _measure(self) -> float:
        """Runs pairs up to the interim analysis that ends it; returns that analysis's level."""
        analyses = {one.pairs: one for one in self._experiment.analyses}
        first = max(1, self._pairs.earlier)
        for pair in range(first, self._experiment.pairs + 1):
            if pair > self._pairs.earlier:
                self._pairs.measure(pair)
            if pair == first:
                so_far = self._compare(self._experiment.analyses[0].alpha)
                if any(entry.main.verdict in _HOPELESS for entry in so_far.entries):
                    break
            analysis = analyses.get(pair)
            if analysis is not None and self._ends(analysis):
                return analysis.alpha
        return self._experiment.analyses[-1].alpha

    def _ends(self, analysis: InterimAnalysis) -> bool:
        """Whether an interim analysis ends the experiment: clear, last, or futile."""
        comparison = self._compare(analysis.alpha)
        results = [entry.main for entry in comparison.entries]
        verdicts = [result.verdict.value for result in results]
        last = analysis.pairs == self._experiment.pairs
        clear = self._experiment.stop_early and all(r.verdict in CLEAR for r in results)
        chance = (
            None
            if last or clear or not self._experiment.stop_early
            else self._chance(comparison.entries)
        )
        look = {**vars(analysis), "verdicts": verdicts}
        self._journal.add("look", **look, **({} if chance is None else {"chance": chance}))
        futile = chance is not None and chance < SMALLEST_CHANCE
        if not last:
            verdict = "; ".join(f"{result.word}: {result.judgement.reason}" for result in results)
            after = "enough" if clear else "going on"
            if futile:
                after = f"stopped: {self._experiment.pairs} pairs would hardly give a verdict "
                after += f"(chance below {percent(SMALLEST_CHANCE, 0)})"
            self._pairs.campaign.reporter.notice(f"after {analysis.pairs} pairs {verdict}; {after}")
        return clear or last or futile

    def _chance(self, entries: Sequence[ComparedConfiguration]) -> float:
        """The smallest chance of a clear verdict over entries without one."""
        pairs = len(self._pairs.records["a"])
        left = [one for one in self._experiment.analyses if one.pairs > pairs]
        policy = self._experiment.policy
        chances = []
        for entry in entries:
            # CPU time can decide, too, where it was judged beside the throughput.
            measures = [entry.main, *(one for one in entry.results if one.metric is CPU_TIME)]
            cases = [
                TwoSamples(
                    base=one.base,
                    new=one.new,
                    metric=one.metric,
                    paired=True,
                    noise=one.judgement.noise,
                )
                for one in measures
                if one.judgement.p is not None
            ]
            if entry.main.verdict is Verdict.INCONCLUSIVE and cases:
                chances.append(max(chance(case, left, policy) for case in cases))
        return min(chances, default=1.0)

    def _compare(self, alpha: float) -> Comparison:
        records, experiment = self._pairs.records, self._experiment
        return compare_pairs(records["a"], records["b"], experiment.facts, alpha, experiment.aa)


def chance(case: TwoSamples, left: Sequence[InterimAnalysis], policy: Policy) -> float:
    """The probability that a later interim analysis is clear: faster, slower or same.

    Future pairs are drawn from the measured ones (a bootstrap), whose values are usable and as many
    on each side. Each draw is judged at the remaining interim analyses `left`, by the policy except
    its alpha; the result is the share of draws in which one of them is clear. The draws include
    noise, outliers and the apparent change as measured. Stopping for futility cannot turn a verdict
    into a regression; it can only omit one, and docs/methodology.md says how rarely that happens.
    """
    metric = case.metric
    pairs = zip(case.base, case.new, strict=True)
    so_far = np.asarray([scaled(new, metric) - scaled(base, metric) for base, new in pairs])
    floor, margin = (
        scaled(1 + limit, metric) if metric.relative else limit for limit in limits(case, policy)
    )
    # The same pairs give the same answer, also when records are judged again.
    generator = np.random.default_rng(_SEED)
    to_come = generator.choice(so_far, (_DRAWS, max(0, left[-1].pairs - len(so_far))))
    drawn = np.hstack([np.tile(so_far, (_DRAWS, 1)), to_come])
    clear = np.zeros(_DRAWS, bool)
    for analysis in left:
        low, high = paired_bounds(drawn[:, : analysis.pairs], 1 - analysis.alpha)
        clear |= (low > floor) | (high < -floor) | ((-margin <= low) & (high <= margin))
    return float(clear.mean())
