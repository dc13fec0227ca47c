"""Rules from verdicts to answers (good, bad or skip), and the candidate commits that remain.

GOOD against BAD is judged as by `cnnbench ab`. Where BAD is slower by a quarter, a commit need not
be distinguished from one that is slower by 3 %: the commits between are judged with half of the
change found there, on a logarithmic scale, as the floor. That needs far fewer pairs and is robust
against other programs on the machine. A commit between, neither the same as GOOD nor as slow as
that, is bad if it is slower by the usual floor. The candidates follow from the answers alone, so
that bisections can resume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cnnbench.campaigns.bisect.commits import History
from cnnbench.judge.compare import ComparedConfiguration, Comparison, Policy, Verdict, judge

GOOD, BAD, SKIP = "good", "bad", "skip"
_ANSWERS = {Verdict.SLOWER: BAD, Verdict.FASTER: GOOD, Verdict.SAME: GOOD}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that was measured against GOOD or could not be.

    Attributes:
      answer: "good", "bad" or "skip".
      verdict: of the comparison; "failed" if there is none.
      change, low, high: of images/sec against GOOD, and its interval; None if unknown.
      pairs, most_pairs: measured and allowed.
      results: folder of the records, relative to that of the bisection; "" without records.
      needed: estimated pairs for an answer; None if it is settled or unknown.
      lost: whether its processes were ended from outside too often.
    """

    commit: str
    answer: str
    verdict: str
    reason: str
    change: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = 0.0
    pairs: int = 0
    most_pairs: int = 0
    seconds: float = 0.0
    results: str = ""
    needed: int | None = None
    lost: bool = False

    @property
    def undecided(self) -> bool:
        """Whether more pairs may give an answer."""
        return self.answer == SKIP and self.verdict == Verdict.INCONCLUSIVE.value


class CommitSearch:
    """Search among the candidate commits."""

    def __init__(self, history: History, good: str, bad: str) -> None:
        self._history = history
        self._good = [good]
        self.bad = bad
        self._skipped: set[str] = set()
        self._misses = 0
        self._suspects = history.suspects(self._good, bad)

    @property
    def suspects(self) -> tuple[str, ...]:
        """The candidates; the first bad commit alone when it is found."""
        return tuple(self._suspects)

    @property
    def steps_left(self) -> int:
        """Estimated number of remaining steps."""
        return math.ceil(math.log2(len(self._open()) + 1))

    def next(self) -> str | None:
        """The commit to measure; None if no answer can narrow the candidates.

        After skipped commits it is farther and farther away: broken commits are seldom single.
        """
        left = self._open()
        if not left:
            return None
        return left[min((1 << self._misses) - 1, len(left) // 2)]

    def add(self, step: Step) -> None:
        """Adds an answer."""
        if step.answer == SKIP:
            self._skipped.add(step.commit)
            self._misses += 1
            return
        if step.answer == BAD:
            self.bad = step.commit
        else:
            self._good.append(step.commit)
        self._misses = 0
        self._suspects = self._history.suspects(self._good, self.bad)

    def _open(self) -> list[str]:
        return [one for one in self._suspects if one != self.bad and one not in self._skipped]


def is_about_work(differ: Step | None) -> bool:
    """Whether the search is for changed work, not lower speed; `differ` is BAD against GOOD."""
    return differ is not None and differ.verdict == Verdict.CHANGED_WORK.value


def half_of(change: float, policy: Policy) -> Policy:
    """The policy that separates commits as slow as BAD from those as fast as GOOD.

    The change of BAD against GOOD is a share such as -0.2; the floor is at least the threshold.
    """
    half = math.expm1(abs(math.log1p(change)) / 2)
    return policy.replace(threshold=max(policy.threshold, half))


def entry_of(comparison: Comparison) -> ComparedConfiguration | None:
    """The only configuration of an experiment; None if the sides have two."""
    deciding = [entry for entry in comparison.entries if entry.decides]
    return deciding[0] if len(deciding) == 1 else None


def answer_to_slower(comparison: Comparison, usual: Policy) -> str:
    """Answer about a commit in a search for lower speed, from a comparison with GOOD.

    Where the comparison is inconclusive, the policy `usual` decides, at the same level.
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
