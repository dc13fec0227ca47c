"""Searches over made-up speeds, without processes.

Tests cnnbench/campaigns/tune/race.py.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from covering import slow_if

from cnnbench.base.inference import interim_analyses
from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.processes.campaign import Campaign, ProcessRequests
from cnnbench.campaigns.tune.bench import SearchSettings, race_groups
from cnnbench.campaigns.tune.race import (
    BEHIND,
    FINALISTS,
    MOST_ROUNDS,
    RACED_SLOWER,
    CandidateRace,
    RaceRound,
    SearchOutcome,
)
from cnnbench.campaigns.tune.space import Candidate, SearchSpace, candidate_name
from cnnbench.errors import UsageError
from cnnbench.flags import ParsedArgs
from cnnbench.judge.compare import Policy, Samples, Verdict, judge
from cnnbench.records.campaigns import AS_GIVEN

THRESHOLD = 0.01
POLICY = Policy(threshold=THRESHOLD)


class MadeUp(SearchSpace):
    """Candidates whose flags mean nothing."""

    def make_candidate(self, settings: Mapping[str, str]) -> Candidate:
        if settings.get("c") == "bad":
            raise UsageError("cannot be")
        name = candidate_name(settings)
        return Candidate(name=name, settings=dict(settings), flags=settings, key=name)


class Sampler:
    """Draws speeds: those of candidates, times one per round, times noise.

    Args:
      speed: of a candidate.
      processes: that there is time for.
      saved: further processes that there is time for if nothing is to be proven.
    """

    def __init__(
        self,
        speed: Callable[[Candidate], float],
        *,
        processes: int = 10**6,
        saved: int = 0,
        seed: int = 0,
        noise: float = 0.015,
    ) -> None:
        self._speed = speed
        self._left = processes
        self._saved = saved
        self.needs_proof = True
        self.races: list[CandidateRace] = []
        self._draw = random.Random(seed)
        self._noise = noise
        self.campaign = Campaign(ChildProcessReporter(io.StringIO()))
        self.settings: SearchSettings
        self.rounds: list[tuple[str, int, list[str]]] = []

    @property
    def affordable_processes(self) -> int:
        return self._left + (0 if self.needs_proof else self._saved)

    def measure_round(
        self, group: str, number: int, candidates: Sequence[Candidate], reserved_processes: int
    ) -> ProcessRequests[RaceRound]:
        yield from ()
        fitting = max(0, self.affordable_processes - reserved_processes)
        candidates, late = candidates[:fitting], candidates[fitting:]
        assert number == 1 or not late  # the race has asked how many there is time for
        self._left -= len(candidates)
        self.rounds.append((group, number, [one.name for one in candidates]))
        factor = 1 + self._draw.gauss(0, 0.05)
        speeds = {one.key: factor * self.draw(one) for one in candidates}
        return RaceRound([speeds], late=[one.key for one in late])

    def draw(self, one: Candidate) -> float:
        return self._speed(one) * (1 + self._draw.gauss(0, self._noise))


SPACE = MadeUp(args=ParsedArgs({}))


def each(name: str, *values: str) -> list[dict[str, str]]:
    return [{name: value} for value in values]


def searched(bench: Sampler, *groups: Sequence[Mapping[str, str]]) -> SearchOutcome:
    bench.settings = SearchSettings(
        space=SPACE,
        as_given=SPACE.make_candidate({}),
        groups={f"g{at}": ({}, *choices) for at, choices in enumerate(groups, start=1)},
        policy=POLICY,
        seconds=60.0,
        command=(),
        timeout=60.0,
        memory=None,
        seed=0,
        turn_seconds=0.0,
    )
    return bench.campaign.run_requests(race_groups(bench))


def is_proven(bench: Sampler, leader: Candidate, pairs: int = 16) -> bool:
    """What the proof does with pairs of these speeds: `ab` at its interim analyses."""
    if leader.name == AS_GIVEN:
        return False
    as_given = SPACE.make_candidate({})
    base, new = ([bench.draw(one) for _ in range(pairs)] for one in (as_given, leader))
    plan = interim_analyses(pairs, POLICY.alpha)
    for index, look in enumerate(plan, start=1):
        sides = (base[: look.pairs], new[: look.pairs])
        samples = Samples(*sides, paired=True, looks=plan[:index])
        found = judge(samples, POLICY.replace(questions=("faster",)))
        if found.verdict is not Verdict.INCONCLUSIVE:
            return found.verdict is Verdict.FASTER
    return False


@pytest.mark.slow
@pytest.mark.parametrize("processes", [40, 10**6])
def test_of_equal_candidates_none_is_declared_the_winner(processes: int) -> None:
    # At most 2 % are wrong in the long run: more than 2 of 15 would be one chance in 300.
    winners = 0
    for seed in range(15):
        bench = Sampler(lambda one: 100.0, processes=processes, seed=seed)
        found = searched(bench, each("a", *"12345678"), each("b", *"123"))
        winners += is_proven(bench, found.leader)
    assert winners <= 2


def test_the_fastest_is_found_and_proven() -> None:
    def speed(one: Candidate) -> float:
        return 100.0 * {"1": 0.8, "2": 1.05, "3": 1.15, None: 1.0}.get(one.settings.get("a"), 0.9)

    # At least 95 % are right in the long run: fewer than 8 of 10 would be one chance in a hundred.
    right = 0
    for seed in range(10):
        bench = Sampler(speed, processes=60, seed=seed)
        found = searched(bench, each("a", *"12345678"))
        right += found.leader.name == "a=3" and is_proven(bench, found.leader)
    assert right >= 8


def test_a_group_is_searched_with_the_best_of_those_before() -> None:
    def speed(one: Candidate) -> float:
        # b=2 is good with a=2 alone.
        a, b = one.settings.get("a"), one.settings.get("b")
        return 100.0 * (1.3 if a == "2" else 1.0) * ({"2": 1.2 if a == "2" else 0.5}.get(b, 1.0))

    bench = Sampler(speed)
    found = searched(bench, each("a", "1", "2"), each("b", "1", "2"))
    assert found.leader.name == "a=2 b=2"
    assert found.races[1].candidates[0].name == "a=2"
    assert bench.rounds[0] == ("g1", 1, [AS_GIVEN, "a=1", "a=2"])
    assert ("g2", 1, ["a=2", "a=2 b=1", "a=2 b=2"]) in bench.rounds
    names = [one.name for one in found.candidates]
    assert names == [AS_GIVEN, "a=1", "a=2", "a=2 b=1", "a=2 b=2"]
    assert {key: row.left for key, row in found.eliminated.items()} == {
        AS_GIVEN: RACED_SLOWER,
        "a=1": RACED_SLOWER,
        "a=2": RACED_SLOWER,
        "a=2 b=1": RACED_SLOWER,
    }


def test_what_cannot_run_is_dropped_and_never_measured() -> None:
    bench = Sampler(lambda one: 100.0)
    found = searched(bench, [{"c": "bad"}, {"c": "good"}], [{"c": "bad"}])
    assert [(one.name, one.reason) for one in found.races[0].dropped] == [("c=bad", "cannot be")]
    assert all("bad" not in name for _, _, names in bench.rounds for name in names)
    assert [len(race.candidates) for race in found.races] == [2, 1]


def test_time_is_kept_and_what_was_not_tried_is_named() -> None:
    bench = Sampler(lambda one: 100.0, processes=21)  # which asserts that it has the time
    found = searched(bench, each("a", *map(str, range(30))), each("b", "1", "2"))
    first, second = found.races
    assert len(first.candidates) + len(first.untried) == 31
    assert 2 <= len(first.candidates) <= 18
    assert {row.left for row in first.eliminated.values()} <= {BEHIND, RACED_SLOWER}
    assert second.candidates[1:]  # there was time left for it
    # Time for one candidate is spent on it, and what there was none for is named.
    bench = Sampler(lambda one: 100.0, processes=3)
    (race,) = searched(bench, each("a", "1", "2", "3")).races
    assert bench.rounds[0][2] == [AS_GIVEN, "a=1"]
    assert [one.name for one in race.untried] == ["a=2", "a=3"]
    none = searched(Sampler(lambda one: 100.0, processes=1), each("a", "1", "2"))
    assert none.leader.name == AS_GIVEN
    assert [one.name for one in none.races[0].untried] == ["a=1", "a=2"]
    assert none.rounds == []


@pytest.mark.parametrize("seed", range(5))
def test_a_group_without_a_winner_leaves_the_time_of_later_groups(seed: int) -> None:
    # The time for a proof may be used if no group is left, not while another one waits.
    bench = Sampler(lambda one: 100.0, processes=40, saved=30, seed=seed)
    found = searched(bench, each("a", *"123"), each("b", *"12345678"), each("c", *"12345"))
    assert not any(race.untried for race in found.races)
    assert len(found.races[-1].rounds) > 1


def test_in_short_time_all_run_once_and_the_best_of_them_again() -> None:
    def speed(one: Candidate) -> float:
        return 150.0 if one.settings.get("a") == "19" else 100.0

    bench = Sampler(speed, processes=25)
    found = searched(bench, each("a", *map(str, range(20))))
    assert found.leader.name == "a=19"
    assert [len(names) for _, _, names in bench.rounds] == [21, 3]
    assert not found.races[0].untried


PLENTY = 10**6


def race_of(names: Sequence[str], threshold: float = THRESHOLD) -> CandidateRace:
    return CandidateRace("g", [Candidate(one, {}, {}, one) for one in names], threshold)


def add(race: CandidateRace, speeds: Mapping[str, float], affordable: int = PLENTY) -> None:
    race.add_round(RaceRound([speeds]))
    race.eliminate_after_round(affordable)


def test_where_time_is_short_the_lowest_estimates_leave_and_nothing_is_claimed() -> None:
    race = race_of("0123456789")
    add(race, {str(number): 100.0 + number for number in range(10)}, affordable=12)
    assert race.remaining == ["4", "5", "6", "7", "8", "9"]
    assert {row.left for row in race.eliminated.values()} == {BEHIND}
    assert race.eliminated["3"].reason == "no time for more measurements; 7th place so far"
    noisy = dict(zip("456789", (107.0, 102.0, 109.0, 104.0, 111.0, 106.0), strict=True))
    add(race, noisy, affordable=2)
    assert race.remaining == ["6", "8", "9"]
    assert len(race.remaining) == FINALISTS
    assert race.is_over  # a third round of three is more than two


def test_a_race_has_an_end() -> None:
    race = race_of("ab")
    for _ in range(MOST_ROUNDS):
        assert not race.is_over
        odd = len(race.rounds) % 2
        add(race, {"a": 100.0 + 3 * odd, "b": 103.0 - 3 * odd})
    assert race.is_over
    assert race.remaining == ["a", "b"]


def test_a_race_ends_when_none_can_be_worth_more_than_the_best() -> None:
    race = race_of("abc")
    add(race, {"a": 100.0, "b": 100.1, "c": 99.9})
    assert not race.is_over
    add(race, {"a": 90.0, "b": 90.0, "c": 90.0})
    add(race, {"a": 95.0, "b": 95.1, "c": 95.0})
    assert race.is_over
    assert race.remaining == ["a", "b", "c"]


def test_the_incumbent_stays_unless_another_is_clearly_above() -> None:
    race = race_of("ab")
    add(race, {"a": 100.0, "b": 100.5})
    assert race.leader.name == "a"
    race = race_of("ab", threshold=0.001)
    add(race, {"a": 100.0, "b": 100.5})
    assert race.leader.name == "b"
    assert race_of("ab").leader.name == "a"


@pytest.mark.parametrize(
    "speeds",
    slow_if(
        lambda speeds: speeds[1] != 97.0, [[100.0] * 8, [100.0, *[99.0] * 7], [100.0, *[97.0] * 7]]
    ),
)
def test_the_fastest_leaves_as_slower_in_few_races(speeds: list[float]) -> None:
    # In the long run at most 5 %: more than 6 of 50 would be one chance in a hundred.
    draw, lost = random.Random(5), 0
    names = [str(number) for number in range(len(speeds))]
    for _ in range(50):
        race = race_of(names)
        while not race.is_over and len(race.rounds) < 5:
            round_factor = 1 + draw.gauss(0, 0.05)
            found = {
                name: speeds[int(name)] * round_factor * (1 + draw.gauss(0, 0.015))
                for name in race.remaining
            }
            add(race, found)
        lost += "0" not in race.remaining
    assert lost <= 6
