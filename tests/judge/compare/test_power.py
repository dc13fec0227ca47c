"""Numbers of processes: what they promise holds when suites of that size are judged.

Tests cnnbench/judge/compare/judgement.py and cnnbench/judge/compare/power.py.
"""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest

from cnnbench.base.inference import AnalysisSchedule, interim_analyses, paired_shift_intervals
from cnnbench.judge.compare import (
    METRICS,
    Case,
    Policy,
    Samples,
    Verdict,
    judge_all,
    processes_needed,
)
from cnnbench.judge.compare.estimate import statistics_of
from cnnbench.judge.compare.power import (
    detectable_change,
    least_runs,
    processes_to_decide,
    processes_to_detect,
    runs_for_verdict,
    too_many_further,
)

SMOKE = 10
BOTH = (0.04, 0.04)
"""Levels of the interval and of the test."""


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


def test_numbers_of_processes_by_hand():
    found = {
        # By SciPy's quantiles, 2 pi / 3 (0.1 (2.0537 + 1.2816) / (0.2231 - 0.0296))^2 = 6.22 with
        # one configuration, whose test against 0 takes only 4.68; and one more than that.
        (-0.2, 0.1, 1): 8,
        (-0.05, 0.02, 1): 21,
        (0.04, 0.02, 1): 101,
        # With several, the test takes more: 11.3 against 10.6, 45.3 against 42.5, 8.6 against 7.2.
        (-0.2, 0.1, 10): 13,
        (0.25, 0.2, 10): 47,
        (-0.5, 0.3, 5): 10,
        # If nothing scatters, as many as a verdict needs.
        (-0.2, 0.0, 10): 6,
    }
    assert {given: processes_to_detect(*given) for given in found} == found
    for change in (0.03, 0.0):
        with pytest.raises(ValueError, match=f"{change}.* 0\\.03"):
            processes_to_detect(change, 0.1, 1)


def test_the_fewest_processes_that_can_prove_a_change():
    # Unpaired 2/C(2n, n) = .029 .0079 .0022 .00058 for 4 to 7; paired 2/2^n = .031 for 6.
    found = [processes_needed(Policy(), number) for number in (1, 2, 5, 6, 18, 19)]
    assert found == [4, 5, 5, 6, 6, 7]
    assert processes_needed(Policy(), paired=True) == 6
    assert processes_needed(Policy(alpha=0.002)) == 7
    assert processes_needed(Policy(), share=0.5) == 5
    assert processes_needed(Policy(), metric=METRICS["memory"]) == 5  # of which alpha is 0.01
    assert processes_needed(Policy(), metric=METRICS["memory"], share=0.5) == 6
    assert processes_needed(Policy(min_processes=9)) == 9


def test_more_than_a_hundred_processes_or_two_hundred_pairs_are_too_many():
    assert [too_many_further(more, False) for more in (100, 101)] == [False, True]
    assert [too_many_further(more, True) for more in (200, 201)] == [False, True]


def around(level, deviation, count=8):
    """Values whose logarithms have the given standard deviation."""
    own = deviation * math.sqrt((count - 1) / count)
    return [level * math.exp(own * sign) for sign in (1, -1) * (count // 2)]


def statistics(base, new, **more):
    return statistics_of(Samples(base, new, **more), Policy(), 1)


@pytest.mark.parametrize("metric", ["throughput", "accuracy"])
@pytest.mark.parametrize(("paired", "sides"), [(True, 1), (False, 2)])
def test_the_detectable_change_is_the_floor_and_the_quantiles_of_the_error(paired, sides, metric):
    if metric == "throughput":
        base, new = [100.0] * 8 if paired else around(100.0, 0.05), around(100.0, 0.05)
        floor, back = math.log(1.03), math.expm1
    else:
        new = [0.5 + 0.05 * math.sqrt(7 / 8) * sign for sign in (1, -1) * 4]
        base, floor, back = [0.5] * 8 if paired else new, 0.005, float
    found = statistics(base, new, metric=METRICS[metric], paired=paired)
    assert found.scatter == pytest.approx(0.05)
    # The quantiles of the normal distribution for 0.98 and 0.8.
    expected = floor + (2.05375 + 0.84162) * 0.05 * math.sqrt(sides * math.pi / 3 / 12)
    assert detectable_change(found, 12, 0.04) == pytest.approx(back(expected), rel=1e-4)
    still = statistics(base, base, metric=METRICS[metric], paired=True)
    assert detectable_change(still, 12, 0.04) is None
    assert runs_for_verdict(still, BOTH) is None


def test_a_new_experiment_of_pairs_takes_as_many_whatever_measured_the_same_scatter():
    # The difference of two values of deviation s has the deviation sqrt(2) s.
    plan, needed = AnalysisSchedule(0.04), []
    for change, scatter in ((0.0, 0.03), (0.02, 0.03), (0.1, 0.02)):
        level = 100 * (1 + change)
        single = statistics(around(100.0, scatter), around(level, scatter), plan=plan)
        new = around(level, scatter * math.sqrt(2))
        pairs = statistics([100.0] * 8, new, plan=plan, paired=True)
        needed.append([runs_for_verdict(one, BOTH) for one in (single, pairs)])
    assert [single for single, _ in needed] == [pairs for _, pairs in needed]


def intervals_of_more_pairs(found, number, truth):
    """Intervals of the measured pairs with as many further pairs as there are in `number`.

    The deviation of each draw is what the measured pairs leave open, at twice their freedom.
    """
    generator, measured = np.random.default_rng(7), np.log(np.divide(found.new, found.base))
    freedom, draws = 2 * (len(measured) - 1), 400
    sigma = found.scatter * np.sqrt(freedom / generator.chisquare(freedom, (draws, 1)))
    further = generator.normal(truth, sigma, (draws, number - len(measured)))
    every = np.concatenate([np.tile(measured, (draws, 1)), further], axis=1)
    return paired_shift_intervals(every, 0.96)


def pairs_around(centre, scatter):
    return statistics([100.0] * 8, around(100.0 * math.exp(centre), scatter), paired=True)


def test_so_many_pairs_show_that_nothing_changed_in_four_of_five_experiments():
    found = pairs_around(0.001, 0.05)
    needed = runs_for_verdict(found, BOTH)
    shares = []
    for number in (needed, needed * 2 // 3):
        low, _, _ = intervals_of_more_pairs(found, number, 0.0)
        shares.append(np.mean(-low <= math.log(1.03)))
    assert 0.75 < shares[0] < 0.92
    assert shares[1] < 0.75


def test_so_many_pairs_find_twice_the_threshold_in_most_experiments():
    found = pairs_around(0.08, 0.1)
    needed = runs_for_verdict(found, BOTH)
    shares = []
    for number in (needed, needed * 2 // 3):
        low, centre, _ = intervals_of_more_pairs(found, number, 2 * math.log(1.03))
        shares.append(np.mean((centre >= math.log(1.03)) & (low > 0)))
    # Eight pairs of two values each are no sample of a normal distribution.
    assert 0.65 < shares[0] < 0.92
    assert shares[1] < shares[0] - 0.05


def test_runs_that_can_prove_a_change_at_all():
    samples = Samples([100.0] * 8, [100.0] * 8, paired=True)
    assert least_runs(samples, Policy(), 1.0) == 6
    assert least_runs(samples, Policy(), 0.1) == 9  # 2 / 2^9 = 0.0039
    # In a new experiment, the first analysis is after eight pairs; ten pairs reach 0.8 * 0.004.
    planned = dataclasses.replace(samples, plan=AnalysisSchedule(0.04))
    assert least_runs(planned, Policy(), 1.0) == 8
    assert least_runs(planned, Policy(), 0.1) == 12


# Numbers of pairs that were computed once from the fixed random numbers; the tests above check some
# by simulation.


def test_numbers_of_pairs():
    found = {
        # Change, scatter, and the levels of the interval and of the test.
        (0.0, 0.05, BOTH): 30,
        (0.0, 0.1, BOTH): 138,
        (0.01, 0.05, BOTH): 25,
        (0.02, 0.05, BOTH): 19,
        # A change for the worse is in doubt for longer.
        (-0.02, 0.05, BOTH): 41,
        (0.03, 0.05, BOTH): 14,
        # Hardly more than the threshold, and certainly less than twice.
        (0.0296, 0.03, BOTH): 10,
        (0.035, 0.1, BOTH): 109,
        (0.05, 0.05, BOTH): 9,
        (-0.05, 0.1, BOTH): 173,
        (0.06, 0.1, BOTH): 95,
        (0.07, 0.1, BOTH): 90,
        (0.06, 0.1, (0.04, 0.01)): 95,
        (0.06, 0.1, (0.01, 0.04)): 173,
        (0.06, 0.1, (0.2, 0.2)): 13,
    }
    assert {
        (change, scatter, alphas): runs_for_verdict(pairs_around(change, scatter), alphas)
        for change, scatter, alphas in found
    } == found


def test_numbers_of_pairs_by_metric():
    found = {
        # Less is better.
        ("cpu_time", 0.02): 55,
        ("cpu_time", -0.02): 33,
        ("cpu_time", 0.06): 9,
        ("memory", 0.02): 22,
    }

    def needed(metric, base, new):
        pairs = statistics([base] * 8, new, metric=METRICS[metric], paired=True)
        return runs_for_verdict(pairs, BOTH)

    assert {
        (metric, change): needed(metric, 1e10, around(1e10 * math.exp(change), 0.06))
        for metric, change in found
    } == found
    differences = [0.5 + 0.01 * math.sqrt(7 / 8) * sign for sign in (1, -1) * 4]
    assert needed("accuracy", 0.5, differences) == 44


def test_numbers_of_processes_without_pairs():
    found = {
        ((8, 8), 0.0): 37,
        ((8, 8), 0.05): 41,
        ((6, 12), 0.05): 39,
        ((4, 16), 0.0): 32,
    }

    def needed(counts, change):
        base = around(100.0, 0.04, counts[0])
        new = around(100.0 * math.exp(change), 0.04, counts[1])
        return runs_for_verdict(statistics(base, new), BOTH)

    assert {given: needed(*given) for given in found} == found


def test_numbers_of_pairs_with_interim_analyses():
    found = {
        # Planned pairs, None for a new experiment; change and scatter.
        (8, 0.0, 0.05): 64,
        (8, 0.06, 0.06): 16,
        (16, 0.0, 0.05): 56,
        (16, 0.06, 0.06): 20,
        (None, 0.0, 0.05): 44,
        (None, 0.06, 0.06): 16,
    }
    made = interim_analyses(8, 0.04)

    def needed(planned, change, scatter):
        plan = AnalysisSchedule(0.04) if planned is None else AnalysisSchedule(0.04, planned, made)
        new = around(100.0 * math.exp(change), scatter)
        looks = made if planned else ()
        return runs_for_verdict(
            statistics([100.0] * 8, new, paired=True, plan=plan, looks=looks), BOTH
        )

    assert {given: needed(*given) for given in found} == found


def test_numbers_of_pairs_of_a_new_experiment_by_single_values():
    new = around(100.0 * math.exp(0.06), 0.06)
    found = statistics(around(100.0, 0.05), new, plan=AnalysisSchedule(0.04))
    assert runs_for_verdict(found, BOTH) == 100
    still = dataclasses.replace(found, floor=0.0)
    assert runs_for_verdict(still, BOTH) is None
    assert runs_for_verdict(dataclasses.replace(found, scatter=None), BOTH) is None
    gone = dataclasses.replace(found, change=-1.0)
    assert runs_for_verdict(gone, BOTH) is None
