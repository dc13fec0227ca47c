"""Iterates over the groups of a space: a race for each, with the best flags of those before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cnnbench.campaigns.tune.race import FINALISTS, Leaver, Race
from cnnbench.campaigns.tune.space import Candidate, Dropped, Maker, Space, field_of

_ROUNDS = 2
"""Rounds that the time of a race should be enough for; of the second, for `FINALISTS`, or a third
of the affordable processes. Candidates without time in the first round are not tried.
"""

_FEWEST = 2
"""Processes of a race: the best of the groups before and a candidate."""

_LEAST = 6
"""Processes of a small group, where its share of the time would be less."""


@dataclass(frozen=True)
class Round:
    """Results of a round, by key of the candidate.

    A block has candidates that stepped in turn; no blocks: all did. `late` ones did not run.
    """

    speeds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    blocks: list[list[str]] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


class CandidateBench(Protocol):
    """Measures candidates and knows how much time there is."""

    def affordable(self, group: str, number: int, proof: bool) -> int:
        """Processes that fit into the remaining time, after a round (0: before the first one).

        `proof`: the leader will have to be proven, because it is not the given flags.
        """

    def measure(self, group: str, number: int, candidates: Sequence[Candidate], kept: int) -> Round:
        """Runs a round, numbered from 1, as far as there is time, less that of `kept` processes."""

    def closed(self, group: str, number: int, left: Sequence[Leaver], best: str) -> None:
        """Reports the end of a round, those that leave, and the name of the best."""


@dataclass(frozen=True, kw_only=True)
class GroupRace:
    """The race of a group, the best of those before first; dropped candidates cannot run."""

    name: str
    candidates: tuple[Candidate, ...]
    race: Race
    leader: Candidate
    dropped: tuple[Dropped, ...]
    untried: tuple[Candidate, ...]


@dataclass(frozen=True)
class SearchOutcome:
    """Result of the races of all groups with candidates; the leader is the best of the last one."""

    races: tuple[GroupRace, ...]
    leader: Candidate

    @property
    def rounds(self) -> list[dict[str, float]]:
        """Logarithms of the speeds in the rounds of all races, by key of the candidate."""
        return [found for one in self.races for found in one.race.rounds if found]

    @property
    def blocks(self) -> list[list[dict[str, float]]]:
        """The same in blocks, see `Race`."""
        return [found for one in self.races for found in one.race.blocks if any(found)]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The measured candidates, without duplicates."""
        found: dict[str, Candidate] = {}
        for race in self.races:
            for one in race.candidates:
                found.setdefault(one.key, one)
        return tuple(found.values())

    @property
    def is_late(self) -> bool:
        """Whether there was no time to try any candidate."""
        return len(self.candidates) <= 1 and any(race.untried for race in self.races)

    @property
    def leavers(self) -> dict[str, tuple[str, Leaver]]:
        """Group and end of the candidates that left, by key; the last race counts."""
        return {
            leaver.name: (race.name, leaver) for race in self.races for leaver in race.race.leavers
        }


def search(
    space: Space, first: Candidate, make: Maker, bench: CandidateBench, threshold: float
) -> SearchOutcome:
    """Races the candidates of all groups; `threshold` is the gain for which one is adopted."""
    leader = first
    races: list[GroupRace] = []
    weights = [len(group.choices) for group in space.groups]
    for at, group in enumerate(space.groups):
        found = field_of(group, leader, make)
        race = Race([leader.key], threshold)
        if len(found.candidates) > 1:
            there_is = bench.affordable(group.name, 0, True)
            share = there_is * weights[at] // sum(weights[at:])
            # A small group has a few processes, wherever it stands.
            own, *later = (min(_ROUNDS * many, _LEAST) for many in weights[at:])
            share = min(there_is, max(min(share, there_is - sum(later)), own))
            if share >= _FEWEST:
                race = Race([one.key for one in found.candidates], threshold)
                _run(race, group.name, found.candidates, bench, (there_is - share, share), first)
        by_key = {one.key: one for one in found.candidates}
        leader = by_key[race.leader(leader.key)]
        ran = {*race.remaining, *(one.name for one in race.leavers)}
        races.append(
            GroupRace(
                name=group.name,
                candidates=tuple(one for one in found.candidates if one.key in ran),
                race=race,
                leader=leader,
                dropped=found.dropped,
                untried=tuple(one for one in found.candidates if one.key not in ran),
            )
        )
    return SearchOutcome(tuple(races), leader)


def _run(
    race: Race,
    group: str,
    candidates: Sequence[Candidate],
    bench: CandidateBench,
    time: tuple[int, int],
    given: Candidate,
) -> None:
    """Runs the rounds of a race; `time`: processes that fit for later groups and for this one."""
    names = {one.key: one.name for one in candidates}
    kept, share = time
    while not race.is_over:
        running = [one for one in candidates if one.key in race.remaining]
        number = len(race.rounds) + 1
        again = 0 if race.rounds else min(FINALISTS, len(candidates), share // 3)
        measured = bench.measure(group, number, running, kept + again)
        late = set(measured.late) - {candidates[0].key}  # which is the answer without a race
        race.add(measured.speeds, measured.failed, measured.blocks, late)
        if not measured.speeds:
            break
        proof = race.leader(candidates[0].key) != given.key
        left = race.drop(max(0, bench.affordable(group, number, proof) - kept))
        bench.closed(group, number, left, names[race.ranked(race.fitted)[0]])
