"""Which phrase fits a change and a number of runs; golden/sentences.txt has their wording."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cnnbench.judge.compare import METRICS, phrases
from cnnbench.judge.compare.estimate import Estimate

SPEED, MEMORY = METRICS["throughput"], METRICS["memory"]


def estimate(change, low=None, high=None):
    return Estimate(change=change, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "certain"),
    [
        (-0.2, -0.1, True),
        (0.1, 0.2, True),
        (-0.1, 0.1, False),
        (0.0, 0.1, False),
        (None, 0.1, False),
        (0.1, None, False),
        (None, None, False),
    ],
)
def test_the_size_of_a_change_is_told_if_its_direction_is_certain(low, high, certain):
    found = estimate(0.05 if low is None or low >= 0 else -0.05, low, high)
    text = phrases.known_change_text(SPEED, found)
    other = phrases.size_text if certain else phrases.change_text
    assert text == other(SPEED, found)
    assert ("faster" in text or "slower" in text) == certain


def test_changes_with_and_without_an_interval():
    whole = phrases.change_text(SPEED, estimate(0.05, 0.01, 0.1))
    assert [number in whole for number in ("5.0", "1.0", "10.0")] == [True] * 3
    for ends in ((None, 0.1), (0.01, None)):
        assert phrases.change_text(SPEED, estimate(0.05, *ends)) == SPEED.change_text(0.05)
    assert phrases.change_text(SPEED, estimate(None)) == "-"


def test_sizes_are_from_the_least_to_the_largest():
    worse = phrases.size_text(SPEED, estimate(-0.132, -0.16, -0.101))
    better = phrases.size_text(SPEED, estimate(0.132, 0.101, 0.16))
    assert worse.replace("slower", "faster") == better
    assert better.index("10.1") < better.index("16.0")
    assert "-" not in worse


@pytest.mark.parametrize(
    ("metric", "change", "word"),
    [
        (SPEED, 0.1, SPEED.better),
        (SPEED, -0.1, SPEED.worse),
        (SPEED, 0.0, SPEED.worse),
        (MEMORY, 0.1, MEMORY.worse),
        (MEMORY, -0.1, MEMORY.better),
    ],
)
def test_directions_of_metrics(metric, change, word):
    assert phrases.direction(metric, change) == word


def test_a_family_of_several_is_told():
    alone = phrases.chance(0.0123)
    assert "0.012" in alone
    assert phrases.chance(0.0123, 1) == alone
    assert phrases.chance(0.0123, 2).startswith(alone)
    assert "2" in phrases.chance(0.5, 2).removeprefix(phrases.chance(0.5))


def test_numbers_of_runs():
    kinds = {
        phrases.needed_runs_text(6, *kind) for kind in ((True, False), (False, False), (True, True))
    }
    assert len(kinds) == 3
    assert all("6" in text for text in kinds)
    assert phrases.needed_runs_text(6, False, True) == phrases.needed_runs_text(6, True, True)
    assert phrases.plural(True) != phrases.plural(False)
    more = {phrases.more_runs_text(number, paired) for number in (1, 2) for paired in (True, False)}
    assert len(more) == 4
    assert phrases.labelled("", "x") == "x"
    assert phrases.labelled("memory", "x") == "memory x"


def test_scatter_is_that_of_the_metric():
    # A deviation of logarithms of 0.1 is a change of 10.5 %.
    plain = phrases.scatter_text(0.1, SPEED, False)
    assert "10.5" in plain
    named = phrases.scatter_text(0.1, METRICS["cpu_time"], True)
    assert named.startswith(plain)
    assert named != plain
    assert phrases.metric_name(SPEED) == "throughput"
    assert phrases.metric_name(METRICS["cpu_time"]) != "cpu_time"


def test_too_few_values_of_pairs_and_of_processes():
    def text(base, new, paired, family=1, provable=None):
        sides = SimpleNamespace(base=base, new=new, paired=paired, family=family, metric=SPEED)
        return phrases.too_few_text(sides, "6 of them", provable)

    alone = text((1.0,), (2.0,), True)
    assert alone.startswith("1 pair is too few")
    assert alone.endswith("6 of them could prove one")
    assert text((1.0, 2.0), (2.0, 3.0), True).startswith("2 pairs are too few")
    assert text((1.0,), (2.0,), False).startswith("1 against 1 process are too few")
    assert text((1.0, 2.0), (1.0,) * 3, False).startswith("2 against 3 processes are too few")
    assert "configurations" not in alone
    assert "only one of 2 configurations" in text((1.0,), (2.0,), True, 2)
    assert text((1.0,), (2.0,), True, 1, 0.05).removeprefix(alone) == " of 5.0 %"
