"""Candidate commits that remain, computed from the answers alone, so that bisections resume."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cnnbench.judge.compare.verdict import Verdict

GOOD, BAD, SKIP = "good", "bad", "skip"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that was measured against GOOD or could not be.

    Attributes:
      commit: its hash.
      answer: "good", "bad" or "skip".
      verdict: of the comparison; "failed" if there is none.
      reason: in a sentence.
      change, low, high: of images/sec against GOOD, and its interval; None if unknown.
      confidence: of the interval.
      pairs: that were measured.
      most_pairs: that were allowed.
      seconds: it took.
      results: folder of the records, relative to that of the bisection; "" if there are none.
      needed: about how many pairs would settle it; None if it is settled, or that is not known.
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


class Suspects(Protocol):
    """Source of candidates; see `cnnbench.campaigns.bisect.commits.History.suspects`."""

    def suspects(self, good: Sequence[str], bad: str) -> list[str]:
        """Commits that may be the first bad one, the best to try next first."""
        ...


class CommitSearch:
    """Search among the candidate commits."""

    def __init__(self, history: Suspects, good: str, bad: str) -> None:
        self._history = history
        self._good = [good]
        self.bad = bad
        self._skipped: set[str] = set()
        self._misses = 0
        self._suspects = history.suspects(self._good, bad)

    @property
    def suspects(self) -> tuple[str, ...]:
        """All of them; the first bad one alone when it is found."""
        return tuple(self._suspects)

    @property
    def steps_left(self) -> int:
        """Estimated number of remaining steps."""
        return math.ceil(math.log2(len(self._open()) + 1))

    def next(self) -> str | None:
        """The commit to measure; None if nothing more can be found out.

        After commits that were skipped it is one further and further away from them: what does
        not build seldom does so alone.
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
