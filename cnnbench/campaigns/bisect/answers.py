"""The answer about a commit, good, bad or skip, from its comparison with GOOD, and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cnnbench.base.inference import ANALYSIS_STEP
from cnnbench.base.text import percent, percent_range
from cnnbench.campaigns.ab.sessions import ExperimentState
from cnnbench.judge.compare import (
    ComparedConfiguration,
    Comparison,
    Judgement,
    MetricResult,
    Policy,
    Verdict,
    processes_needed,
)
from cnnbench.judge.compare.estimate import exceeds
from cnnbench.judge.compare.power import too_many_further
from cnnbench.judge.metrics.judged import THROUGHPUT

GOOD, BAD, SKIP = "good", "bad", "skip"
_TO_SLOWER = {
    Verdict.SLOWER: BAD,
    Verdict.FASTER: GOOD,
    Verdict.SAME: GOOD,
    Verdict.NOT_SLOWER: GOOD,
}
_TO_CHANGED_WORK = {
    Verdict.CHANGED_WORK: BAD,
    Verdict.FAILED: SKIP,
    Verdict.NOT_COMPARABLE: SKIP,
    Verdict.NOT_MEASURED: SKIP,
}
_OTHER_CONFIGURATION = "its runs have a different configuration from the runs of GOOD"

_LARGE = 0.1
"""Changes of at least this size are printed as whole percentages."""


@dataclass(frozen=True, kw_only=True)
class BisectionStep:
    """The answer (good, bad or skip) about one commit, which was compared with GOOD or could not be
    measured.

    Attributes:
      answer: "good", "bad" or "skip".
      judgement: change of images/sec relative to GOOD. `needed` is the number of pairs for an
        answer.
      confidence: confidence of the judgement's interval.
      pairs: number of measured pairs.
      about_work: whether bisect looks for the commit that changed the work, such as FLOPs, and not
        the speed.
      lost: whether the commit's processes were killed from outside too often.
      good_fails: whether processes of GOOD failed.
    """

    commit: str
    answer: str
    judgement: Judgement
    confidence: float = 0.0
    pairs: int = 0
    about_work: bool = False
    lost: bool = False
    good_fails: bool = False

    @property
    def is_undecided(self) -> bool:
        """Whether more pairs of processes may give an answer about the commit."""
        return self.answer == SKIP and self.judgement.verdict is Verdict.INCONCLUSIVE


def skipped_step(commit: str, reason: str, verdict: Verdict = Verdict.FAILED) -> BisectionStep:
    """The answer about a commit that could not be measured or compared."""
    judgement = Judgement(verdict=verdict, reason=reason)
    return BisectionStep(commit=commit, answer=SKIP, judgement=judgement)


def step_of_experiment(
    commit: str, state: ExperimentState, usual: Policy, bad_step: BisectionStep | None
) -> BisectionStep:
    """The answer about a commit, from an experiment with GOOD that has ended.

    `usual` contains the thresholds of the comparison of BAD with GOOD, `bad_step` its answer. In
    this comparison, `bad_step` is None.
    """
    end, comparison = state.last_end_event, state.final_comparison(state.is_alpha_spent)
    assert end is not None
    assert comparison is not None
    step = skipped_step(commit, _OTHER_CONFIGURATION, Verdict.NOT_COMPARABLE)
    entry = shared_configuration(comparison)
    if entry is not None:
        judgement, pairs = entry.main.judgement, min(len(entry.base), len(entry.new))
        fewest = processes_needed(usual, paired=True)
        if pairs < fewest:
            judgement = replace(judgement, needed=fewest)
        about_work = judgement.verdict is Verdict.CHANGED_WORK
        if bad_step is not None:
            about_work = bad_step.about_work
        step = BisectionStep(
            commit=commit,
            answer=bisect_answer(entry.main, usual, about_work),
            judgement=judgement,
            confidence=usual.confidence,
            pairs=pairs,
            about_work=about_work,
        )
    of_good = (record for entry in comparison.entries for record in entry.base)
    return replace(
        step,
        judgement=replace(step.judgement, reason=end["failure"] or step.judgement.reason),
        lost=end.get("lost", False),
        good_fails=any(record.status != "ok" for record in of_good),
    )


def shared_configuration(comparison: Comparison) -> ComparedConfiguration | None:
    """The configuration of the runs of GOOD and of another commit; None if their configurations
    differ.
    """
    deciding = [entry for entry in comparison.entries if entry.affects_exit_code]
    return deciding[0] if len(deciding) == 1 else None


def policy_for_middle_commit(step: BisectionStep, usual: Policy) -> Policy:
    """Decision thresholds for a commit between GOOD and BAD: half of BAD's change. The whole
    interval of the commit's change must lie on one side of it.

    `step` is the comparison of BAD with GOOD. `usual` contains the thresholds of that comparison.
    """
    change = step.judgement.change
    if change is None:
        return usual
    half = math.expm1(abs(math.log1p(change)) / 2)
    return usual.replace(threshold=max(usual.threshold, half), by_interval=True)


def bisect_answer(result: MetricResult, usual_policy: Policy, about_work: bool) -> str:
    """The answer about a commit ("good", "bad" or "skip"), from its comparison with GOOD.

    In a search for changed work (`about_work`), one pair is enough. In a search for lower speed, an
    open commit is bad if the whole interval is slower by more than the threshold in `usual_policy`.
    """
    if about_work:
        return _TO_CHANGED_WORK.get(result.verdict, GOOD)
    high = result.judgement.high
    if result.verdict is Verdict.INCONCLUSIVE and high is not None and high < 0:
        threshold = usual_policy.threshold_of(result.metric)
        if exceeds(high, result.metric, threshold):
            return BAD
    return _TO_SLOWER.get(result.verdict, SKIP)


def follow_up_pairs(undecided: Sequence[BisectionStep], most_pairs: int) -> int:
    """Number of pairs per commit that should give answers about the undecided commits.

    The number is above `most_pairs`. 0 if more pairs would not help.
    """
    pairs = most_pairs + ANALYSIS_STEP
    for step in undecided:
        needed = step.judgement.needed
        if needed is None or too_many_further(needed - step.pairs, paired=True):
            return 0
        pairs = max(pairs, needed)
    return pairs


def step_answer_text(step: BisectionStep) -> str:
    """The answer about a commit as text, such as "bad: 37 % slower (15 to 61 %)"."""
    judgement = step.judgement
    if step.answer == SKIP:
        return f"{'undecided' if step.is_undecided else 'skipped'}: {judgement.reason}"
    if step.about_work:
        return "bad: other work to do" if step.answer == BAD else "good: the same work to do"
    change, low, high = judgement.change, judgement.low, judgement.high
    if change is None or low is None or high is None:
        return f"{step.answer}: {judgement.verdict.value}, {judgement.reason}"
    if low <= 0 <= high:
        interval = THROUGHPUT.range_text(low, high)
        return f"{step.answer}: {THROUGHPUT.change_text(change)} ({interval})"
    digits = 0 if abs(change) >= _LARGE else 1
    least, most = sorted((abs(low), abs(high)))
    direction = "slower" if change < 0 else "faster"
    interval = percent_range(least, most, digits)
    return f"{step.answer}: {percent(abs(change), digits)} {direction} ({interval})"
