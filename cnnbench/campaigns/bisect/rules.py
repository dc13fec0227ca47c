"""Rules from verdicts against GOOD to answers: good, bad, or skip.

GOOD against BAD is judged as by `cnnbench ab`. What of BAD is slower by a quarter has hardly to
be told from what is slower by 3 %: the commits between are judged with half of the change that
was found there, on the scale of logarithms, as the floor. That needs far fewer pairs, and no
neighbour makes a commit bad that is not. One that lies between, neither the same as GOOD nor as
slow as that, is bad if it is slower by the usual floor.
"""

from __future__ import annotations

import math

from cnnbench.campaigns.bisect.search import BAD, GOOD, SKIP, Step
from cnnbench.judge.compare import ComparedConfiguration, Comparison, Policy, Verdict, judge

_ANSWERS = {Verdict.SLOWER: BAD, Verdict.FASTER: GOOD, Verdict.SAME: GOOD}


def is_about_work(differ: Step | None) -> bool:
    """Whether the bisection looks for changed work instead of lower speed.

    Args:
      differ: how BAD compares with GOOD; None if that is not known yet.
    """
    return differ is not None and differ.verdict == Verdict.CHANGED_WORK.value


def half_of(change: float, policy: Policy) -> Policy:
    """The policy that separates commits as slow as BAD from those as fast as GOOD.

    Args:
      change: of BAD against GOOD, as a share: -0.2.
      policy: with which it was found; the floor never gets lower than its threshold.
    """
    half = math.expm1(abs(math.log1p(change)) / 2)
    return policy.replace(threshold=max(policy.threshold, half))


def entry_of(comparison: Comparison) -> ComparedConfiguration | None:
    """The only configuration of an experiment; None if the sides have two."""
    deciding = [entry for entry in comparison.entries if entry.decides]
    return deciding[0] if len(deciding) == 1 else None


def answer_to_slower(comparison: Comparison, usual: Policy) -> str:
    """Answer about a commit in a search for lower speed.

    Args:
      comparison: with GOOD, by the floor of the bisection.
      usual: the policy that decides where that is inconclusive, at the level of the comparison.
    """
    entry = entry_of(comparison)
    if entry is None:
        return SKIP
    result = entry.main
    if result.verdict is Verdict.INCONCLUSIVE:
        again = judge(result.base, result.new, usual, paired=comparison.paired)
        return BAD if again.verdict is Verdict.SLOWER else SKIP
    return _ANSWERS.get(result.verdict, SKIP)


def answer_to_changed_work(comparison: Comparison) -> str:
    """Answer about a commit in a search for changed work; one pair is enough."""
    entry = entry_of(comparison)
    if entry is None or entry.main.verdict in (Verdict.FAILED, Verdict.NOT_COMPARABLE):
        return SKIP
    return BAD if entry.main.verdict is Verdict.CHANGED_WORK else GOOD
