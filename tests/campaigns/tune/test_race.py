"""Who leaves a race, from made-up speeds."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from cnnbench.campaigns.tune.race import BEHIND, FAILED, FINALISTS, MOST_ROUNDS, SLOWER, Race

PLENTY = 10**6


def add(
    race: Race, speeds: Mapping[str, float], failed: Mapping[str, str], affordable: int = PLENTY
) -> None:
    race.add(speeds, failed)
    race.drop(affordable)


def hows(race: Race) -> dict[str, tuple[str, int]]:
    return {one.name: (one.how, one.after) for one in race.leavers}


def test_what_is_slower_beyond_doubt_leaves_after_two_rounds() -> None:
    race = Race("abcd")
    add(race, {"a": 100.0, "b": 99.0, "c": 100.5, "d": 60.0}, {})
    assert race.leavers == []  # one round tells nothing of the noise
    add(race, {"a": 90.5, "b": 91.0, "c": 90.0, "d": 54.5}, {})
    assert hows(race) == {"d": (SLOWER, 2)}
    assert race.leavers[0].reason.startswith("39.")
    assert "slower than the best, p = " in race.leavers[0].reason
    assert race.remaining == ["a", "b", "c"]


def test_a_candidate_that_fails_leaves_with_its_error() -> None:
    race = Race("ab")
    add(race, {"a": 100.0}, {"b": "out of memory"})
    assert hows(race) == {"b": (FAILED, 1)}
    assert race.leavers[0].reason == "out of memory"
    assert race.is_over
    assert race.leader("a") == "a"


def test_where_time_is_short_the_lowest_estimates_leave_and_nothing_is_claimed() -> None:
    race = Race([str(number) for number in range(10)])
    add(race, {str(number): 100.0 + number for number in range(10)}, {}, affordable=12)
    assert race.remaining == ["4", "5", "6", "7", "8", "9"]
    assert {one.how for one in race.leavers} == {BEHIND}
    assert race.leavers[0].reason == "no time for more of it; 7th so far"
    noisy = dict(zip("456789", (107.0, 102.0, 109.0, 104.0, 111.0, 106.0), strict=True))
    add(race, noisy, {}, affordable=2)
    assert race.remaining == ["6", "8", "9"]
    assert len(race.remaining) == FINALISTS
    assert race.is_over  # a third round of three is more than two


def test_a_race_has_an_end() -> None:
    race = Race("ab")
    for _ in range(MOST_ROUNDS):
        assert not race.is_over
        odd = len(race.rounds) % 2
        add(race, {"a": 100.0 + 3 * odd, "b": 103.0 - 3 * odd}, {})
    assert race.is_over
    assert race.remaining == ["a", "b"]


def test_a_race_ends_when_none_can_be_worth_more_than_the_best() -> None:
    race = Race("abc", threshold=0.01)
    add(race, {"a": 100.0, "b": 100.1, "c": 99.9}, {})
    assert not race.is_over
    add(race, {"a": 90.0, "b": 90.0, "c": 90.0}, {})
    add(race, {"a": 95.0, "b": 95.1, "c": 95.0}, {})
    assert race.is_over
    assert race.remaining == ["a", "b", "c"]


def test_the_incumbent_stays_unless_another_is_clearly_above() -> None:
    race = Race("ab")
    add(race, {"a": 100.0, "b": 100.5}, {})
    assert race.leader("a") == "a"
    race = Race("ab", threshold=0.001)
    add(race, {"a": 100.0, "b": 100.5}, {})
    assert race.leader("a") == "b"
    assert Race("ab").leader("a") == "a"


@pytest.mark.parametrize("speeds", [[100.0] * 8, [100.0, *[99.0] * 7], [100.0, *[97.0] * 7]])
def test_the_fastest_leaves_as_slower_in_few_races(speeds: list[float]) -> None:
    # In the long run at most 5 %: more than 6 of 50 would be one chance in a hundred.
    draw, lost = random.Random(5), 0
    names = [str(number) for number in range(len(speeds))]
    for _ in range(50):
        race = Race(names)
        while not race.is_over and len(race.rounds) < 5:
            round_factor = 1 + draw.gauss(0, 0.05)
            found = {
                name: speeds[int(name)] * round_factor * (1 + draw.gauss(0, 0.015))
                for name in race.remaining
            }
            add(race, found, {})
        lost += "0" not in race.remaining
    assert lost <= 6
