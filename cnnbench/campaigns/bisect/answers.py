"""The answer about a commit, good, bad or skip, from its comparison with GOOD, and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cnnbench.base.text import percent, percent_range
from cnnbench.campaigns.ab.sessions import ExperimentState
from cnnbench.judge.compare import (
    ComparedConfiguration,
    Comparison,
    Judgement,
    Policy,
    Verdict,
)
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
      judgement: change of images/sec relative to GOOD.
      confidence: confidence of the judgement's interval.
      pairs: number of measured pairs.
      about_work: whether bisect looks for the commit that changed the work, such as FLOPs, and not
        the speed.
      lost: whether the commit's processes were killed from outside twice in a row.
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
        """Whether the commit was measured, but its pairs of processes give no answer."""
        return self.answer == SKIP and self.judgement.verdict is Verdict.INCONCLUSIVE


def skipped_step(commit: str, reason: str, verdict: Verdict = Verdict.FAILED) -> BisectionStep:
    """The answer about a commit that could not be measured or compared."""
    judgement = Judgement(verdict=verdict, reason=reason)
    return BisectionStep(commit=commit, answer=SKIP, judgement=judgement)


def step_of_experiment(
    commit: str, state: ExperimentState, bad_step: BisectionStep | None
) -> BisectionStep:
    """The answer about a commit, from an experiment with GOOD that has ended. `bad_step` is the
    answer about BAD; None if the commit is BAD.
    """
    end, comparison = state.last_end_event, state.final_comparison()
    assert end is not None
    assert comparison is not None
    step = skipped_step(commit, _OTHER_CONFIGURATION, Verdict.NOT_COMPARABLE)
    entry = shared_configuration(comparison)
    if entry is not None:
        judgement = entry.main.judgement
        about_work = judgement.verdict is Verdict.CHANGED_WORK
        if bad_step is not None:
            about_work = bad_step.about_work
        step = BisectionStep(
            commit=commit,
            answer=bisect_answer(judgement.verdict, about_work),
            judgement=judgement,
            confidence=comparison.policy.confidence,
            pairs=min(len(entry.base), len(entry.new)),
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
    """The policy for a commit between GOOD and BAD: its threshold is half of BAD's change.

    `step` is the comparison of BAD with GOOD. `usual` is the policy of that comparison.
    """
    change = step.judgement.change
    if change is None:
        return usual
    half = math.expm1(abs(math.log1p(change)) / 2)
    return usual.replace(threshold=max(usual.threshold, half))


def bisect_answer(verdict: Verdict, about_work: bool) -> str:
    """The answer about a commit ("good", "bad" or "skip"), from the verdict on the commit and GOOD.
    `about_work` says whether the search is for changed work, and not for lower speed.
    """
    return _TO_CHANGED_WORK.get(verdict, GOOD) if about_work else _TO_SLOWER.get(verdict, SKIP)


def pairs_for_answers(undecided: Sequence[BisectionStep]) -> int:
    """The number of pairs per commit with which a new search should give answers about the
    undecided commits; 0 if more pairs would not help.
    """
    pairs = [step.judgement.needed or step.judgement.at_least or 0 for step in undecided]
    return 0 if 0 in pairs or too_many_further(max(pairs), paired=True) else max(pairs)


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
