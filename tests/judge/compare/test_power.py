"""Numbers of processes: what they promise holds when suites of that size are judged.

Tests cnnbench/judge/compare/judgement.py.
"""

from __future__ import annotations

import math
import random

import pytest

from cnnbench.judge.compare import Case, Policy, Samples, Verdict, judge_all, processes_needed
from cnnbench.judge.compare.power import processes_to_decide, processes_to_detect

SMOKE = 10


def suite(draw, processes, scatter, change=0.8, configurations=SMOKE):
    """Cases of as many configurations, each as much faster or slower; logarithms are normal."""

    def side(level):
        return [level * math.exp(draw.gauss(0, scatter)) for _ in range(processes)]

    return [Case(Samples(side(100.0), side(100.0 * change))) for _ in range(configurations)]


def verdicts(cases):
    return {judgement.verdict for judgement in judge_all(cases)}


@pytest.mark.parametrize(("configurations", "processes"), [(1, 7), (10, 7), (68, 7), (69, 8)])
def test_as_many_as_a_verdict_on_every_configuration_takes(configurations, processes):
    found = processes_to_decide(configurations)
    assert found == processes
    assert found >= processes_needed(Policy(), configurations)
    cases = suite(random.Random(1), found, 0.03, configurations=configurations)
    assert verdicts(cases) == {Verdict.SLOWER}


def test_one_process_that_met_a_neighbour_leaves_its_configuration_decided():
    cases = suite(random.Random(1), processes_to_decide(SMOKE), 0.02)
    first = cases[0].samples
    slow = Case(Samples([50.0, *first.base[1:]], first.new))
    assert verdicts([slow, *cases[1:]]) == {Verdict.SLOWER}


def test_a_quiet_suite_finds_a_fifth_in_every_configuration():
    draw = random.Random(2)
    count = processes_to_decide(SMOKE)
    found = [verdicts(suite(draw, count, 0.05)) == {Verdict.SLOWER} for _ in range(8)]
    assert all(found)


def test_about_so_many_find_it_on_a_noisy_machine():
    # So many find it in nine suites of ten, and the fewest that a verdict takes in hardly any:
    # fewer than 6 of 10, or more, would be one chance in a hundred.
    draw, scatter = random.Random(3), 0.1
    count = processes_to_detect(-0.2, scatter, SMOKE)
    enough = [verdicts(suite(draw, count, scatter)) == {Verdict.SLOWER} for _ in range(10)]
    assert sum(enough) >= 6
    few = processes_needed(Policy(), SMOKE)
    assert count > few + 2
    less = [verdicts(suite(draw, few, scatter)) == {Verdict.SLOWER} for _ in range(10)]
    assert sum(less) <= 5


def test_more_scatter_and_smaller_changes_take_more():
    counts = [processes_to_detect(-0.2, scatter, SMOKE) for scatter in (0.0, 0.05, 0.1, 0.2)]
    assert counts == sorted(counts)
    assert counts[0] == processes_needed(Policy(), SMOKE)
    assert processes_to_detect(-0.1, 0.1, SMOKE) > processes_to_detect(-0.2, 0.1, SMOKE)
    with pytest.raises(ValueError, match=r"-0\.01.* 0\.03"):
        processes_to_detect(-0.01, 0.1, SMOKE)
