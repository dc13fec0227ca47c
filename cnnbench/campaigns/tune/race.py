"""Races of the groups of a space, one after the other, each with the best flags of those before.

The rules by which candidates leave are functions of measured speeds, without processes.

Every round measures all remaining candidates, once each. After it a candidate leaves

* `SLOWER`: it is significantly slower than the best. The difference is tested by the additive model
  of candidates and rounds (`cnnbench.base.stats.additive`), on logarithms of speeds. The level of
  round r is alpha / (r (r - 1)), which adds up to alpha over all rounds, shared by the other
  candidates (Bonferroni): with the noise of the model, of which one candidate may have more, the
  fastest candidate leaves this way in at most a share alpha of races, whichever candidate appears
  to be the best;
* `BEHIND`: time is short. The next round may take at most half of the remaining time, so that the
  candidates with the lowest estimates, as many as do not fit, leave (successive halving). That
  proves nothing about them, and is reported as such;
* `FAILED`: its process failed.

A race is over when one candidate is left; when none of the others can be faster than the best by
more than the threshold, at the level alpha; after `MOST_ROUNDS`; or when time is too short for
another round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cnnbench.base.stats.additive import Additive, fit_blocks
from cnnbench.base.text.numbers import percent
from cnnbench.campaigns.tune.space import Candidate, Dropped

SLOWER, BEHIND, FAILED = "slower", "behind", "failed"
UNTRIED = "untried"
"""Mark of a candidate that was not measured for lack of time."""

ALPHA = 0.05
"""Share of races in which the fastest candidate may leave as slower, by chance."""

FINALISTS = 3
"""Candidates that do not leave for lack of time."""

MOST_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class Leaver:
    """A candidate that has left its race.

    Attributes:
      key: key of the candidate.
      after: number of its last round.
      how: `SLOWER`, `BEHIND` or `FAILED`.
      slower_by: how much slower a `SLOWER` one is than the best, as a share of the best speed.
      p: p value of that test.
      place: place of one that is `BEHIND` among the remaining candidates, from 1.
      problem: why a `FAILED` one failed, or "".
    """

    key: str
    after: int
    how: str
    slower_by: float | None = None
    p: float | None = None
    place: int | None = None
    problem: str = ""

    @property
    def reason(self) -> str:
        """Why it left, in words."""
        if self.p is not None:
            return f"{percent(self.slower_by)} slower than the best, p = {self.p:.1g}"
        if self.place is not None:
            return f"no time for more of it; {_ordinal(self.place)} so far"
        return self.problem


@dataclass(frozen=True)
class Round:
    """Results of a round, by key of the candidate.

    A block has candidates that stepped in turn; no blocks: all did. `late` ones did not run.
    """

    speeds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    blocks: list[list[str]] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


class Race:
    """The race of a group of candidates; the threshold is the smallest relative gain that counts.

    The first of `entered` is the best of the groups before; `dropped` candidates cannot run, and
    there was no time to run the `untried` ones once. `rounds` are logarithms of the speeds by key,
    and `blocks` the same in blocks of candidates that ran at the same time. `remaining` are keys,
    and `leavers` in the order in which they left.
    """

    def __init__(
        self,
        group: str,
        entered: Sequence[Candidate],
        threshold: float = 0.01,
        dropped: Sequence[Dropped] = (),
    ) -> None:
        self.group = group
        self.entered = tuple(entered)
        self.dropped = dropped
        self.untried = self.entered[1:]
        self.remaining = [one.key for one in entered]
        self.rounds: list[dict[str, float]] = []
        self.blocks: list[list[dict[str, float]]] = []
        self.leavers: list[Leaver] = []
        self._worth = math.log1p(threshold)
        self._short = False

    @property
    def candidates(self) -> list[Candidate]:
        """The first one, and all others that ran."""
        return [one for one in self.entered if one not in self.untried]

    @property
    def is_over(self) -> bool:
        """Whether there is no round to come."""
        over = len(self.remaining) < 2 or len(self.rounds) >= MOST_ROUNDS or self._short
        return over or self._is_settled()

    @property
    def fitted(self) -> Additive:
        """The estimates so far; only after a round with a value."""
        return fit_blocks(self.blocks)

    def add(self, found: Round) -> None:
        """Adds a round; failed candidates leave.

        Late ones are removed if this is the first round; else they keep their estimates.
        """
        speeds = {key: math.log(speed) for key, speed in found.speeds.items()}
        if not self.rounds:
            self.untried = tuple(one for one in self.entered[1:] if one.key in found.late)
            self.remaining = [one.key for one in self.candidates]
        self.rounds.append(speeds)
        blocks = found.blocks or [list(speeds)]
        self.blocks.append([{key: speeds[key] for key in one if key in speeds} for one in blocks])
        for key in [one for one in self.remaining if one in found.failed]:
            self._leave(key, FAILED, problem=found.failed[key])

    def drop(self, affordable: int) -> list[Leaver]:
        """Removes and returns slower candidates and those for which there is no time.

        `affordable` is the number of processes that fit into the remaining time.
        """
        if any(self.rounds):
            fitted = self.fitted
            self._drop_slower(fitted)
            most = max(FINALISTS, affordable // 2)
            for place, key in enumerate(self.ranked(fitted)[most:], start=most + 1):
                self._leave(key, BEHIND, place=place)
        self._short = affordable < len(self.remaining)
        return [one for one in self.leavers if one.after == len(self.rounds)]

    @property
    def leader(self) -> Candidate:
        """The best estimate, or the first candidate if it is not worse by over the threshold."""
        first = self.entered[0]
        ranked = self.ranked(self.fitted) if any(self.rounds) else []
        if not ranked:
            return first
        if first.key in ranked and self.fitted.difference(ranked[0], first.key) <= self._worth:
            return first
        return next(one for one in self.entered if one.key == ranked[0])

    def ranked(self, fitted: Additive) -> list[str]:
        """The measured remaining candidates, the fastest first."""
        known = [key for key in self.remaining if key in fitted.names]
        return sorted(known, key=fitted.effect, reverse=True)

    def _is_settled(self) -> bool:
        """Whether no remaining candidate can exceed the best by more than the threshold."""
        if not any(self.rounds):
            return False
        fitted = self.fitted
        ranked = self.ranked(fitted)
        if fitted.scatter is None or len(ranked) < max(2, len(self.remaining)):
            return False
        best, *others = ranked
        tail = ALPHA / len(others)
        return all(fitted.p_above(best, name, self._worth) <= tail for name in others)

    def _drop_slower(self, fitted: Additive) -> None:
        number = len(self.rounds)
        ranked = self.ranked(fitted)
        if number < 2 or len(ranked) < 2:
            return
        best, *others = ranked
        level = ALPHA / (number * (number - 1)) / len(others)
        for name in others:
            p = fitted.p_above(best, name)
            if p <= level:
                slower_by = -math.expm1(fitted.difference(name, best))
                self._leave(name, SLOWER, slower_by=slower_by, p=p)

    def _leave(self, key: str, how: str, **why: Any) -> None:
        self.remaining.remove(key)
        self.leavers.append(Leaver(key=key, after=len(self.rounds), how=how, **why))


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 <= number % 100 <= 20 else ending}"


@dataclass(frozen=True)
class SearchOutcome:
    """Result of the races of all groups; the leader is the best of the last one."""

    races: tuple[Race, ...]
    leader: Candidate

    @property
    def rounds(self) -> list[dict[str, float]]:
        """Logarithms of the speeds in the rounds of all races, by key of the candidate."""
        return [found for race in self.races for found in race.rounds if found]

    @property
    def blocks(self) -> list[list[dict[str, float]]]:
        """The same in blocks, see `Race`."""
        return [found for race in self.races for found in race.blocks if any(found)]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The measured candidates, without duplicates."""
        found: dict[str, Candidate] = {}
        for one in (one for race in self.races for one in race.candidates):
            found.setdefault(one.key, one)
        return tuple(found.values())

    @property
    def is_late(self) -> bool:
        """Whether there was no time to try any candidate."""
        return len(self.candidates) <= 1 and any(race.untried for race in self.races)

    @property
    def leavers(self) -> dict[str, Leaver]:
        """Ends of the candidates that left, by key; the last race counts."""
        return {leaver.key: leaver for race in self.races for leaver in race.leavers}
