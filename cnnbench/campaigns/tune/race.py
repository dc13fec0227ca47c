"""Races of ``cnnbench tune``: rounds of measurements that eliminate slower candidates.

A candidate is a set of flags for a run. The rules for eliminating candidates depend only on
measured speeds.

Every round measures all remaining candidates once. After a round, a candidate is eliminated for one
of these reasons:

* `RACED_SLOWER`: it is significantly slower than the best candidate. The test uses the additive
  model of candidates and rounds (`cnnbench.base.inference`) on logarithms of speeds. The
  significance level of round r is alpha / (r (r - 1)), divided by the number of other candidates
  (Bonferroni). Over all rounds, the levels add up to alpha. So the fastest candidate is eliminated
  in this way in at most a share alpha of races, even if one candidate is noisier than the others.
* `BEHIND`: time is short. The next round may take at most half of the remaining time, so the
  slowest candidates are eliminated until the others fit (successive halving). This does not prove
  that they are slower, and reports say so.
* `FAILED`: its process failed.

A race is over when one candidate remains; when no other candidate can be faster than the best one
by more than the threshold, at level alpha; after `MOST_ROUNDS`; or when there is no time for
another round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cnnbench.base.additive import AdditiveModel, fit_additive_blocks
from cnnbench.base.stats import CONFIDENCE, median
from cnnbench.base.text import percent
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.campaigns.tune import phrases
from cnnbench.campaigns.tune.space import Candidate, DroppedCandidate
from cnnbench.records.campaigns import TuneRow

# There is one race for each group of flags, one race after the other.
# Each race starts with the best flags of the previous groups.

RACED_SLOWER, BEHIND, FAILED = "slower", "behind", "failed"
UNTRIED = "untried"
"""Mark of a candidate that was not measured for lack of time."""

ALPHA = 0.05
"""Maximum probability that the fastest candidate of a race is eliminated as `RACED_SLOWER`."""

FINALISTS = 3
"""Number of candidates that are not eliminated for lack of time."""

MOST_ROUNDS = 10


@dataclass(frozen=True)
class RaceRound:
    """Results of one round of a race.

    Attributes:
      blocks: images/sec by key of the candidate, in blocks of candidates that ran at the same time.
      failed: error messages by key of the candidate.
      late: keys of candidates that did not run, for lack of time.
    """

    blocks: Sequence[Mapping[str, float]] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    late: Sequence[str] = ()


class CandidateRace:
    """The state of a race between candidates: measured speeds, and which candidates remain.

    Attributes:
      group: name of the group of flags that the candidates vary.
      entered: all candidates by key. The first one is the best candidate of the previous groups.
      dropped: candidates that cannot run.
      untried: candidates that there was no time to run once.
      remaining: keys of the candidates that are not eliminated.
      rounds: logarithms of speeds, by key of the candidate, for each round, in blocks of candidates
        that ran at the same time.
      eliminated: by key and in order, rows of the eliminated candidates, without measurements.
    """

    def __init__(
        self,
        group: str,
        entered: Sequence[Candidate],
        threshold: float = 0.01,
        dropped: Sequence[DroppedCandidate] = (),
    ) -> None:
        self.group = group
        self.entered = {candidate.key: candidate for candidate in entered}
        self.dropped = dropped
        self._first, *others = entered
        self.untried = tuple(others)
        self.remaining = [*self.entered]
        self.rounds: list[list[dict[str, float]]] = []
        self.eliminated: dict[str, TuneRow] = {}
        # A candidate is adopted only if the logarithm of its gain is larger than this value.
        self._worth = math.log1p(threshold)
        self._short = False

    @property
    def candidates(self) -> list[Candidate]:
        """The first candidate, and the other candidates that were measured at least once."""
        return [candidate for candidate in self.entered.values() if candidate not in self.untried]

    @property
    def is_over(self) -> bool:
        """Whether the race needs no further round.

        It needs none if no candidate is faster than the best one by more than the threshold. The
        test has the significance level `ALPHA`.
        """
        if len(self.remaining) < 2 or len(self.rounds) >= MOST_ROUNDS or self._short:
            return True
        if not any(self.rounds):
            return False
        fitted = fit_additive_blocks(self.rounds)
        ranked = self._ranked(fitted)
        if fitted.scatter is None or len(ranked) < len(self.remaining):
            return False
        best, *others = ranked
        tail = ALPHA / len(others)
        return all(fitted.p_value_above(best, name, self._worth) <= tail for name in others)

    def add_round(self, round_: RaceRound) -> None:
        """Adds the results of a round to the race, and eliminates candidates that failed.

        Late candidates are removed after the first round. In later rounds, they keep their
        estimates.
        """
        if not self.rounds:
            late = (candidate for candidate in self.untried if candidate.key in round_.late)
            self.untried = tuple(late)
            self.remaining = [candidate.key for candidate in self.candidates]
        self.rounds.append(
            [
                {key: math.log(speed) for key, speed in block.items()}
                for block in round_.blocks
                if block
            ]
        )
        for key in [key for key in self.remaining if key in round_.failed]:
            self._eliminate(key, FAILED, round_.failed[key])

    def eliminate_after_round(self, affordable_processes: int) -> list[TuneRow]:
        """Eliminates candidates that are slower, or for which there is no time, after a round.

        Returns all candidates that were eliminated after this round. `affordable_processes` is the
        number of processes that fit into the remaining time.
        """
        if any(self.rounds):
            fitted = fit_additive_blocks(self.rounds)
            self._eliminate_slower(fitted)
            most = max(FINALISTS, affordable_processes // 2)
            for place, key in enumerate(self._ranked(fitted)[most:], start=most + 1):
                self._eliminate(key, BEHIND, phrases.behind_reason(place))
        self._short = affordable_processes < len(self.remaining)
        return [row for row in self.eliminated.values() if row.after == len(self.rounds)]

    @property
    def fastest(self) -> Candidate:
        """The remaining candidate with the highest estimated speed. One must have been measured."""
        return self.entered[self._ranked(fit_additive_blocks(self.rounds))[0]]

    @property
    def leader(self) -> Candidate:
        """The fastest candidate. If its gain is at most the threshold, the first candidate."""
        first = self._first
        if not any(self.rounds):
            return first
        fitted = fit_additive_blocks(self.rounds)
        ranked = self._ranked(fitted)
        if not ranked:
            return first
        if first.key in ranked and fitted.difference(ranked[0], first.key) <= self._worth:
            return first
        return self.entered[ranked[0]]

    def _ranked(self, fitted: AdditiveModel) -> list[str]:
        """Keys of the remaining measured candidates by estimated speed, the fastest first."""
        known = [key for key in self.remaining if key in fitted.names]
        return sorted(known, key=fitted.effect, reverse=True)

    def _eliminate_slower(self, fitted: AdditiveModel) -> None:
        number = len(self.rounds)
        ranked = self._ranked(fitted)
        if number < 2 or len(ranked) < 2:
            return
        best, *others = ranked
        level = ALPHA / (number * (number - 1)) / len(others)
        for name in others:
            p = fitted.p_value_above(best, name)
            if p <= level:
                share = percent(-math.expm1(fitted.difference(name, best)))
                self._eliminate(name, RACED_SLOWER, phrases.SLOWER.format(share=share, p=p))

    def _eliminate(self, key: str, how: str, reason: str) -> None:
        self.remaining.remove(key)
        row = _unmeasured_row(self.entered[key], self.group)
        self.eliminated[key] = replace(row, left=how, after=len(self.rounds), reason=reason)


class SearchOutcome(NamedTuple):
    """Results of the races of all groups, of which there is at least one."""

    races: tuple[CandidateRace, ...]

    @property
    def leader(self) -> Candidate:
        """The best candidate of the last race."""
        return self.races[-1].leader

    @property
    def rounds(self) -> list[list[dict[str, float]]]:
        """The rounds of all races with measured speeds; see `CandidateRace`."""
        return [round_ for race in self.races for round_ in race.rounds if round_]

    @property
    def fitted(self) -> AdditiveModel | None:
        """The model of candidates and rounds, fitted to all speeds; None if there are no speeds."""
        return fit_additive_blocks(self.rounds) if self.rounds else None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates that were measured in any race, without duplicates."""
        by_key: dict[str, Candidate] = {}
        for candidate in (candidate for race in self.races for candidate in race.candidates):
            by_key.setdefault(candidate.key, candidate)
        return tuple(by_key.values())

    @property
    def tried_no_candidate(self) -> bool:
        """Whether the time was too short to measure any candidate besides the given flags."""
        return len(self.candidates) <= 1 and any(race.untried for race in self.races)

    @property
    def eliminated(self) -> dict[str, TuneRow]:
        """Rows of the eliminated candidates by key, with the result of the last race of each
        candidate.
        """
        return {key: row for race in self.races for key, row in race.eliminated.items()}

    def rows(self, as_given: Candidate) -> Iterator[TuneRow]:
        """Yields a table row for each candidate: measured candidates by their gain over the
        candidate `as_given`, then candidates that were not tried.
        """
        groups = {
            candidate.key: race.group
            for race in reversed(self.races)
            for candidate in race.candidates
        }
        rows: list[TuneRow] = []
        fitted, eliminated = self.fitted, self.eliminated
        blocks = [block for round_ in self.rounds for block in round_]
        for candidate in self.candidates:
            key, group = candidate.key, groups[candidate.key]
            speeds = [math.exp(block[key]) for block in blocks if key in block]
            row = replace(
                eliminated.get(key, _unmeasured_row(candidate, group)),
                group=group,
                processes=len(speeds),
                images_per_sec=median(speeds) if speeds else None,
                **_gain_fields(fitted, key, as_given.key),
            )
            rows.append(row)
        yield from sorted(
            rows, key=lambda row: -math.inf if row.gain is None else row.gain, reverse=True
        )
        for race in self.races:
            for candidate in race.untried:
                if candidate.key not in groups:
                    row = _unmeasured_row(candidate, race.group)
                    yield replace(row, left=UNTRIED, reason=phrases.NOT_TRIED)


def _unmeasured_row(candidate: Candidate, group: str) -> TuneRow:
    """Creates the row of a candidate in the table of results, without measurements."""
    return TuneRow(
        candidate=candidate.name,
        flags=flags_to_arguments(candidate.flags),
        variables=candidate.variables,
        changes=candidate.changes,
        group=group,
    )


def _gain_fields(fitted: AdditiveModel | None, key: str, base: str) -> dict[str, Any]:
    if fitted is None or key not in fitted.names or base not in fitted.names:
        return {}
    difference = fitted.difference(key, base)
    gains = {"gain": math.expm1(difference)}
    reach = None if key == base else fitted.error_quantile(key, base, (1 - CONFIDENCE) / 2)
    if reach is not None:
        gains["low"] = math.expm1(difference - reach)
        gains["high"] = math.expm1(difference + reach)
    return gains
