"""Slow steps of a process, and rare disturbances that are removed.

Tests cnnbench/base/slow_steps.py.
"""

import random
from pathlib import Path

import pytest
from golden import sentences

from cnnbench.base.slow_steps import (
    SlowSteps,
    excess_shares,
    find_slow_steps,
    largest_disturbance,
    median_slow_steps,
    slow_step_cost_increase,
    slower_step_indices,
    undisturbed_mean_seconds,
    undisturbed_step_weights,
    weighted_mean,
)


def steps(count=120, scatter=0.01, seed=1):
    draw = random.Random(seed)
    return [0.1 * draw.lognormvariate(0, scatter) for _ in range(count)]


def paused(every, extra=0.09, **more):
    return [
        one + (extra if index % every == every - 1 else 0)
        for index, one in enumerate(steps(**more))
    ]


@pytest.mark.parametrize("every", [2, 3, 5, 10, 30])
def test_steps_that_pause_are_found_with_their_distance_and_cost(every):
    found = find_slow_steps(paused(every))
    assert found.indices == tuple(range(every - 1, 120, every))
    assert found.steps_between == every
    assert found.share == pytest.approx(1 / every, abs=0.01)
    assert found.extra == pytest.approx(0.09, rel=0.05)
    assert found.cost == pytest.approx(0.09 / (0.1 * every + 0.09), rel=0.05)


def test_pauses_at_random_have_no_distance_and_one_group_is_one_occurrence():
    draw = random.Random(2)
    found = find_slow_steps([one + (0.05 if draw.random() < 0.1 else 0) for one in steps()])
    assert found.steps_between is None
    assert found.occurrences > 5
    burst = [one * (2 if 40 <= index < 60 else 1) for index, one in enumerate(steps())]
    found = find_slow_steps(burst)
    assert (found.occurrences, found.steps_between, len(found.indices)) == (1, None, 20)


@pytest.mark.parametrize("scatter", [0.0, 0.003, 0.03, 0.3])
def test_steps_of_one_kind_are_not_divided(scatter):
    assert sum(find_slow_steps(steps(120, scatter, seed)) is not None for seed in range(50)) <= 1
    assert find_slow_steps(paused(3, count=9)) is None


def test_slow_steps_are_a_minority():
    level = [0.07 + 0.0004 * (3 * step % 7) for step in range(19)]
    assert find_slow_steps([0.034, *level]) is None
    found = find_slow_steps(
        [0.034, *(one + 0.02 * (step % 4 == 0) for step, one in enumerate(level))]
    )
    assert found.indices == (1, 5, 9, 13, 17)
    phase = [one * (1 if step < 11 else 1.5) for step, one in enumerate(steps(24))]
    assert find_slow_steps(phase) is None
    assert len(find_slow_steps(phase[1:-1] + phase[:1]).indices) == 12


def stalled(where=50, seconds=10.0):
    found = steps(100)
    found[where] += seconds
    return found


def test_only_what_few_processes_have_is_left_out():
    plain = [steps(100, seed=seed) for seed in range(6)]
    assert undisturbed_mean_seconds([*plain, stalled()])[-1] == pytest.approx(0.1, rel=0.02)
    # Too few processes to tell, and a stall that each of one half has.
    assert undisturbed_mean_seconds([*plain[:2], stalled()])[-1] == pytest.approx(0.2, rel=0.02)
    both = undisturbed_mean_seconds([*plain, *(stalled(where) for where in range(6))])
    assert both[6:] == pytest.approx([0.2] * 6, rel=0.02)
    assert excess_shares([]) == []
    assert excess_shares([0.0, 0.1, 0.2, 0.5]) == pytest.approx([0, 0, 0, 0.3])


def test_weights_remove_the_same_from_every_part_of_a_step():
    processes = [*(steps(100, seed=seed) for seed in range(6)), stalled(), stalled(70, 0.2)]
    weights = undisturbed_step_weights(processes)
    assert [sum(one) / len(one) for one in weights] == pytest.approx([1.0] * 8)
    means = undisturbed_mean_seconds(processes)
    # As many seconds as the shares say, and all of them in the steps of the disturbance.
    rare = excess_shares([largest_disturbance(seconds)[0] for seconds in processes])
    plain = [sum(one) / len(one) for one in processes]
    assert means == pytest.approx([(1 - r) * one for r, one in zip(rare, plain, strict=True)])
    stall = [10.0 * (step == 50) for step in range(100)]
    assert weighted_mean(stall, weights[6]) < 0.003
    rest = [one - other for one, other in zip(processes[6], stall, strict=True)]
    assert weighted_mean(rest, weights[6]) + weighted_mean(stall, weights[6]) == pytest.approx(
        means[6]
    )


def test_equal_steps_are_not_rounded():
    assert undisturbed_mean_seconds([[0.05] * 3, [0.07] * 7]) == [0.05, 0.07]


GOLDEN = Path(__file__).parent / "golden" / "slow_steps.txt"
STEPS = [
    *((20, (1, 3, 5, 7)), (40, (9, 19, 29)), (44, (10, 21, 32))),
    # Three of five distances are enough, two are not, and there must be two distances.
    *((30, (2, 5, 8, 11, 13, 17)), (20, (2, 5, 8)), (30, (2, 5, 8, 10, 14, 19)), (20, (2, 5))),
    *((20, (7,)), (20, (7, 8, 9)), (10, (1, 2, 5, 9)), (10, (1, 2, 9))),
]


@pytest.mark.parametrize(("steps", "indices"), STEPS)
def test_slow_steps_in_words(steps, indices):
    seconds = [0.03 if step in indices else 0.01 for step in range(steps)]
    ordinary = [step for step in range(steps) if step not in indices]
    found = SlowSteps.from_groups(seconds, iter(indices), ordinary)
    sentences(GOLDEN, {f"{indices} of {steps}": found.text}, [f"{i} of {n}" for n, i in STEPS])
    total = 0.01 * steps + 0.02 * len(indices)
    assert (found.steps, found.indices, found.share) == (steps, indices, len(indices) / steps)
    assert (found.extra, found.cost) == pytest.approx((0.02, 0.02 * len(indices) / total))
    assert slow_step_cost_increase(found, None) == -found.cost
    assert slow_step_cost_increase(None, found) == found.cost
    assert slow_step_cost_increase(found, found) == slow_step_cost_increase(None, None) == 0.0
    assert SlowSteps.from_groups(seconds, (), ordinary) is None
    assert SlowSteps.from_groups(seconds, indices, ()) is None


def test_steps_are_divided_by_hand():
    assert slower_step_indices([1.0] * 5 + [2.0] * 5) == [5, 6, 7, 8, 9]
    assert slower_step_indices([2.0, 1.0] * 5) == [0, 2, 4, 6, 8]
    assert slower_step_indices([1.0] * 5 + [2.0] * 4) == []  # nine
    assert slower_step_indices([1.0] * 10) == []
    assert find_slow_steps([2.0, 1.0] * 5 + [2.0]).indices == (0, 2, 4, 6, 8, 10)
    assert find_slow_steps([2.0, 1.0] * 5 + [2.0, 2.0]) is None  # seven of twelve


def test_disturbances_by_hand():
    assert largest_disturbance([0.1])[0] == largest_disturbance([0.1, 0.1])[0] == 0.0
    # Of pauses that recur it is not their sum.
    assert largest_disturbance(paused(5, 0.1))[0] < 0.03
    # Two steps of 3 and of 5 among six of 1: 8 - 2 of 14 seconds.
    found, where = largest_disturbance([1.0, 1, 3, 5, 1, 1, 1, 1])
    assert (found, where) == (pytest.approx(6 / 14), range(2, 4))
    assert largest_disturbance([5.0, 1, 1, 1]) == (pytest.approx(4 / 8), range(1))
    assert largest_disturbance([1.0, 1, 1, 5]) == (pytest.approx(4 / 8), range(3, 4))
    processes = [[1.0] * 4, [1.0] * 4, [1.0] * 4, [1.0, 5, 1, 1]]
    assert undisturbed_step_weights(processes) == [[1.0] * 4] * 3 + [
        pytest.approx([4 / 3, 0, 4 / 3, 4 / 3])
    ]
    assert undisturbed_step_weights(processes[1:]) == [[1.0] * 4] * 3  # too few to tell


def test_slow_steps_of_the_median_process():
    def of(cost):
        return SlowSteps(steps=10, indices=(1,), extra=1.0, cost=cost)

    low, middle, high = map(of, (0.1, 0.2, 0.3))
    assert median_slow_steps([high, low, middle]) is middle
    assert median_slow_steps([high, low, middle, None]) is low
    assert median_slow_steps([high, None, None]) is None
    assert median_slow_steps([high, None]) is median_slow_steps([]) is None
