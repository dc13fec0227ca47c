"""Commits between GOOD and BAD: rules from verdicts to answers, and the candidates that remain.

They are listed by git's own search; the repository is not changed.

GOOD against BAD is judged as by `cnnbench ab`. Where BAD is slower by a quarter, a commit need not
be distinguished from one that is slower by 3 %: the commits between are judged with half of the
change found there, on a logarithmic scale, as the floor. That needs far fewer pairs and is robust
against other programs on the machine. A commit between, neither the same as GOOD nor as slow as
that, is bad if it is slower by the usual floor. The candidates follow from the answers alone, so
that bisections can resume.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from cnnbench.errors import FlagError, UsageError
from cnnbench.judge.compare import (
    ComparedConfiguration,
    Comparison,
    Judgement,
    MetricResult,
    Policy,
    Verdict,
    judge,
)
from cnnbench.judge.compare.sequential import STEP
from cnnbench.judge.compare.words import too_many
from cnnbench.machine.repository import GitError, commit_of, git, why_missing


@dataclass(frozen=True)
class History:
    """The history of a repository; with `first_parent` a merge counts as one commit."""

    repository: Path
    first_parent: bool = False

    def suspects(self, good: Sequence[str], bad: str) -> list[str]:
        """Commits that may be the first bad one, including `bad`, the best to try next first.

        The best is the one whose ancestors among them are closest to one half.
        """
        options = ["--first-parent"] if self.first_parent else []
        excluded = [f"^{commit}" for commit in good]
        listed = self._git("rev-list", "--bisect-all", *options, bad, *excluded)
        return [line.split()[0] for line in listed.splitlines()]

    def ordered(self, commits: Collection[str], good: str, bad: str) -> tuple[str, ...]:
        """Commits with parents before children."""
        listed = self._git("rev-list", "--reverse", "--topo-order", bad, f"^{good}")
        return tuple(line for line in listed.splitlines() if line in commits)

    def show(self, commit: str, form: str = "%s") -> str:
        """The first line of a commit's message, or another format of git."""
        return self._git("show", "--no-patch", f"--format={form}", commit)

    def parent(self, commit: str) -> str:
        """The first parent of a commit that has one."""
        return self._git("rev-parse", f"{commit}^1")

    def _git(self, *arguments: str) -> str:
        return git(*arguments, folder=self.repository)


def repository_of(text: str) -> Path:
    """The working tree of a folder, the value of --repository; FlagError if there is none."""
    try:
        return Path(git("rev-parse", "--show-toplevel", folder=text))
    except GitError as error:
        raise FlagError("repository", text, f"must be in a git repository: {error}") from None


def ends_of(good: str, bad: str, repository: Path) -> tuple[str, str]:
    """The commits GOOD and BAD; UsageError if one is unknown, or GOOD is no ancestor of BAD."""
    found = []
    for name, text in (("GOOD", good), ("BAD", bad)):
        try:
            found.append(commit_of(text, repository))
        except GitError as error:
            raise UsageError(f"{name} {text!r}: is no revision of {repository}: {error}") from None
    if found[0] == found[1]:
        raise UsageError(f"GOOD {good!r} and BAD {bad!r} are the same commit")
    try:
        base = git("merge-base", *found, folder=repository)
    except GitError as error:
        why = why_missing(repository) or error
        raise UsageError(f"GOOD {good!r} and BAD {bad!r} have no common ancestor: {why}") from None
    if base != found[0]:
        reason = "BAD is an ancestor of it; swap them" if base == found[1] else ""
        reason = reason or f"it is no ancestor of BAD; give what both come from: {base[:12]}"
        raise UsageError(f"GOOD {good!r}: {reason}")
    return found[0], found[1]


GOOD, BAD, SKIP = "good", "bad", "skip"
_TO_SLOWER = {Verdict.SLOWER: BAD, Verdict.FASTER: GOOD, Verdict.SAME: GOOD}
_TO_CHANGED_WORK = {
    Verdict.CHANGED_WORK: BAD,
    Verdict.FAILED: SKIP,
    Verdict.NOT_COMPARABLE: SKIP,
    Verdict.NOT_MEASURED: SKIP,
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that was measured against GOOD or could not be.

    Attributes:
      answer: "good", "bad" or "skip".
      judgement: change of images/sec against GOOD; its `needed` are pairs for an answer.
      confidence: that of its interval.
      pairs: number of measured pairs.
      lost: whether its processes were ended from outside too often.
      good_fails: whether processes of GOOD failed.
    """

    commit: str
    answer: str
    judgement: Judgement
    confidence: float = 0.0
    pairs: int = 0
    lost: bool = False
    good_fails: bool = False

    @property
    def undecided(self) -> bool:
        """Whether more pairs may give an answer."""
        return self.answer == SKIP and self.judgement.verdict is Verdict.INCONCLUSIVE


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
    return differ is not None and differ.judgement.verdict is Verdict.CHANGED_WORK


def entry_of(comparison: Comparison) -> ComparedConfiguration | None:
    """The only configuration of an experiment; None if the sides have two."""
    deciding = [entry for entry in comparison.entries if entry.decides]
    return deciding[0] if len(deciding) == 1 else None


def policy_between(found: Step, usual: Policy) -> Policy:
    """The policy for a commit between GOOD and BAD; `found` is how BAD compares with GOOD."""
    change = found.judgement.change
    if change is None:
        return usual
    half = math.expm1(abs(math.log1p(change)) / 2)
    return usual.replace(threshold=max(usual.threshold, half))


def answer(result: MetricResult, usual: Policy, about_work: bool) -> str:
    """Answer about a commit from its comparison with GOOD, in pairs.

    One pair is enough in a search for changed work. In a search for lower speed, the policy `usual`
    decides where the comparison is inconclusive, at the same level.
    """
    if about_work:
        return _TO_CHANGED_WORK.get(result.verdict, GOOD)
    if result.verdict is Verdict.INCONCLUSIVE:
        again = judge(result.base, result.new, usual, paired=True)
        return BAD if again.verdict is Verdict.SLOWER else SKIP
    return _TO_SLOWER.get(result.verdict, SKIP)


def settling_pairs(undecided: Sequence[Step], most_pairs: int) -> int:
    """Pairs per commit, above `most_pairs`, that are expected to settle some steps.

    0 where more pairs will not help.
    """
    found = most_pairs + STEP
    for step in undecided:
        needed = step.judgement.needed
        if needed is None or too_many(needed - step.pairs, paired=True):
            return 0
        found = max(found, needed)
    return found
