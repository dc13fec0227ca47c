"""Levels of a series: known steps are found where they are, noise is not taken for one."""

import math
import random
import statistics
import time

import numpy as np
import pytest
from covering import slow_if

from cnnbench.base.levels import (
    TWO_MACHINES,
    CommitTimeSeries,
    SeriesLevel,
    TwoStates,
    detect_host_groups,
    detect_two_states,
    find_levels,
    level_start_interval,
    variance_inflation,
)


def draws(kind, count, seed):
    """Noise of standard deviation 1."""
    rng = random.Random(f"{kind} {count} {seed}")
    values, last = [], rng.gauss(0, 1)
    for _ in range(count):
        if kind.startswith("correlated"):
            correlation = float(kind.split()[1])
            last = correlation * last + math.sqrt(1 - correlation**2) * rng.gauss(0, 1)
            values.append(last)
        elif kind == "two states":  # of 5 %: 30 % of the runs at 0.7 of the speed
            values.append(rng.gauss(0, 0.2) - 7.1 * (rng.random() < 0.3))
        elif kind == "Laplace":
            values.append(rng.choice((1, -1)) * rng.expovariate(math.sqrt(2)))
        elif kind == "heavy tails":
            chi = sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3
            values.append(rng.gauss(0, 1) / math.sqrt(chi) / math.sqrt(3))
        elif kind == "outliers":
            values.append(rng.gauss(0, 1) + (8 if rng.random() < 0.05 else 0))
        else:
            values.append(rng.gauss(0, 1))
    return values


def levels_of(values, relative, threshold):
    return find_levels([[value] for value in values], relative, threshold)


def levels_at(values, cut):
    parts = (0, cut), (cut, len(values))
    return [SeriesLevel(a, b, statistics.median(values[a:b])) for a, b in parts if b > a]


def starts_of(values, cut):
    noisy = CommitTimeSeries([[value] for value in values], relative=False)
    return level_start_interval(noisy, levels_at(values, cut), 1)


def series(values, scatter):
    return [100 * math.exp(scatter * value) for value in values]


def test_many_changes_below_the_threshold_are_together_above_it():
    stairs = [100.0 * 0.98**step for step in range(6) for _ in range(8)]
    levels = levels_of(stairs, True, 0.03)
    assert len(levels) >= 2
    assert levels[0].value / levels[-1].value > 1.05


NOISY = [100.0, 101.0, 99.0] * 8


@pytest.mark.parametrize(
    ("values", "relative", "threshold", "starts"),
    [
        ([0.75] * 6 + [0.74] * 6, False, 0.005, [0, 6]),
        ([0.75] * 6 + [0.74] * 6, False, 0.02, [0]),
        ([0.0] * 6 + [-1.0] * 6, False, 0.5, [0, 6]),
        ([0.0] * 6 + [1e9] * 6, False, 0.5, [0, 6]),
        ([], True, 0.03, []),
        ([1.0], True, 0.03, [0]),
        ([1.0, 2.0, 2.0, 2.0, 2.0], True, 0.03, [0]),
        ([1.0] * 50, True, 0.0, [0]),
        ([1.0] * 3 + [2.0] * 3, True, 0.03, [0, 3]),
        # A change must be larger than the threshold, and the most similar levels are joined first.
        ([0.0] * 6 + [1.0] * 6, False, 1.0, [0]),
        ([0.0] * 6 + [1.0] * 6, False, 0.99, [0, 6]),
        ([100.0] * 10 + [102.98] * 10, True, 0.03, [0]),
        ([100.0] * 10 + [103.02] * 10, True, 0.03, [0, 10]),
        ([0.0] * 6 + [1.0] * 6 + [1.5] * 6, False, 0.7, [0, 6]),
        ([0.0] * 6 + [0.5] * 6 + [1.5] * 6, False, 0.7, [0, 12]),
        # An outlier is no level; two in a row are one, undone afterwards.
        ([*NOISY[:10], 50.0, *NOISY[11:]], True, 0.03, [0]),
        ([*NOISY[:20], 60.0], True, 0.03, [0]),
        ([*NOISY[:10], 50.0, 51.0, *NOISY[12:]], True, 0.03, [0, 10, 12]),
    ],
)
def test_levels(values, relative, threshold, starts):
    assert [level.start for level in levels_of(values, relative, threshold)] == starts


@pytest.mark.parametrize(
    ("kind", "count", "at_most"),
    slow_if(
        lambda case: case[:2] != ("normal", 6),
        [
            # Of 75 draws each; what docs/history.md says, with room for chance.
            ("normal", 6, 4),
            ("normal", 60, 2),
            ("heavy tails", 12, 4),
            ("outliers", 60, 5),
            ("correlated 0.6", 12, 9),
            ("correlated 0.6", 60, 6),
            ("two states", 6, 12),
            ("two states", 60, 6),
        ],
    ),
)
def test_false_alarms_of_noise_alone(kind, count, at_most):
    alarms = 0
    for seed in range(75):
        values = series(draws(kind, count, seed), 0.05)
        alarms += len(levels_of(values, True, 0.03)) > 1
    assert alarms <= at_most


@pytest.mark.slow
@pytest.mark.parametrize(("size", "points", "at_least"), [(8, 2, 58), (5, 3, 50), (3, 10, 67)])
def test_power_for_steps_of_some_standard_deviations_after_some_points(size, points, at_least):
    # Of 100 draws of 60 points each; more than asv's, whose method sees a fifth at (5, 3).
    found = 0
    for seed in range(100):
        values = draws("normal", 60, seed)
        values = [v - size * (i >= 60 - points) for i, v in enumerate(values)]
        starts = [level.start for level in levels_of(series(values, 0.02), True, 0.03)]
        found += any(abs(start - (60 - points)) <= 2 for start in starts[1:])
    assert found >= at_least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size"), [("normal", 2), ("Laplace", 2), ("correlated 0.5", 2.5), ("two states", 3)]
)
def test_the_likely_places_of_a_step_hold_its_true_one_often_enough(kind, size):
    hits = found = 0
    for seed in range(125):
        values = [v - size * (i >= 20) for i, v in enumerate(draws(kind, 40, seed))]
        levels = levels_of(values, False, 0.0)
        if len(levels) == 2:
            found += 1
            low, high = starts_of(values, levels[1].start)
            assert low <= levels[1].start <= high
            hits += low <= 20 <= high
    assert found > (15 if kind == "two states" else 40)
    assert hits / found >= 0.93


def test_runs_of_one_commit_tell_states_from_a_step():
    # The medians are those of a step by 6 %, the runs of the last points are of two states.
    medians = [100.0, 101.0, 99.5, 100.5, 94.0, 94.5, 93.5, 94.2]
    steady = [[value, 1.01 * value, 0.99 * value] for value in medians]
    mixed = [[v, 1.02 * v, 0.7 * v, 0.71 * v, 1.4 * v] for v in medians]
    assert len(find_levels(steady, True, 0.03)) == 2
    assert len(find_levels(mixed, True, 0.03)) == 1


def test_the_place_of_a_step_without_noise_is_certain():
    assert starts_of([1.0] * 5 + [9.0] * 5, 5) == (5, 5)


@pytest.mark.parametrize(
    ("kind", "sizes", "intervals"),
    [
        (
            "normal",
            (0.98, 1.05, 1.2, 1.4, 1.6, 1.8, 2.0, 2.1, 2.3, 3.4, 3.5, 4.5, 4.6),
            "6-33 10-33 12-26 13-22 15-22 16-22 18-22 18-21 19-21 19-21 19-20 19-20 20-20",
        ),
        (
            "correlated 0.5",
            (0.7, 1.3, 1.5, 1.7, 1.9, 2.1, 2.3, 2.5, 2.7, 2.9, 3.1, 3.3, 3.5, 3.8, 4.1, 4.9),
            "4-39 5-38 5-37 5-35 6-35 7-33 8-32 9-31 11-30 12-29 12-27 13-27 13-26 14-26 14-25"
            " 15-23",
        ),
    ],
)
def test_the_start_of_a_level_by_the_size_of_its_step(kind, sizes, intervals):
    """In 40 values with noise of variance 1; the step is in the middle."""
    noise = draws(kind, 40, 3)
    found = []
    for size in sizes:
        values = [value - size * (place >= 20) for place, value in enumerate(noise)]
        found.append("{}-{}".format(*starts_of(values, 20)))
    assert " ".join(found) == intervals


def test_machines_of_many_runs_are_compared_in_linear_time():
    """100,000 runs took minutes when each host was counted in the whole list."""
    rng, hosts = random.Random(1), [f"machine-{index % 4}" for index in range(60_000)]
    slow = np.array([rng.gauss(0.05 * (host == "machine-3"), 0.01) for host in hosts])
    began = time.process_time()
    states = detect_host_groups(slow, ["".join([*host]) for host in hosts], 0.03)
    assert time.process_time() - began < 2
    assert states is not None
    assert (states.hosts, states.runs) == (("machine-3",), 15_000)


def test_trends_by_hand():
    growth = [100.0] * 6 + [100 * 1.05**i for i in range(1, 9)] + [100 * 1.05**9] * 6
    first, middle, last = levels_of(growth, True, 0.03)
    assert (first, last) == (
        SeriesLevel(0, 6, pytest.approx(100.0)),
        SeriesLevel(15 - 1, 20, pytest.approx(100 * 1.05**9)),
    )
    assert (middle.start, middle.stop) == (6, 14)
    assert middle.value == pytest.approx(100 * 1.05**4.5)
    assert middle.slope == pytest.approx(0.05)
    assert [middle.at(place, True) for place in range(6, 14)] == pytest.approx(growth[6:14])
    line = [0.0] * 6 + [2.0 * i for i in range(1, 9)] + [18.0] * 6
    quiet = [value + 0.01 * (-1) ** place for place, value in enumerate(line)]
    first, middle, last = levels_of(quiet, False, 1.0)
    found = [first.value, middle.value, middle.slope, last.value]
    assert found == pytest.approx([0, 9, 2, 18], abs=0.01)
    places = [middle.at(place, False) for place in range(6, 14)]
    assert places == pytest.approx(line[6:14], abs=0.02)
    assert first.at(3, False) == first.value


STATES = [0.0, 0.0, 1.0] * 4


@pytest.mark.parametrize(
    ("deviations", "expected"),
    [
        (STATES, TwoStates(4, 12, 1.0)),
        ([1 - value for value in STATES], TwoStates(4, 12, -1.0)),
        ([0.0, 1.0] * 4, TwoStates(4, 8, 1.0)),
        ([0.0, 1.0] * 3 + [0.0], None),  # seven values
        # Two of 13 runs are 15.4 %, and two of 14 are 14.3 %.
        ([0.0] * 5 + [1.0] + [0.0] * 5 + [1.0, 0.0], TwoStates(2, 13, 1.0)),
        ([0.0] * 5 + [1.0] + [0.0] * 5 + [1.0, 0.0, 0.0], None),
        # Three switches are enough for eight runs: half of 2 * 4 * 4 / 8 is two. Two are not.
        ([0.0, 0, 1, 1, 0, 0, 1, 1], TwoStates(4, 8, 1.0)),
        ([0.0, 0, 1, 1, 1, 1, 0, 0], None),
        # Of 24 runs, half of 2 * 12 * 12 / 24 are six switches.
        (([0.0] * 3 + [1.0] * 3) * 4, TwoStates(12, 24, 1.0)),
        (([0.0] * 4 + [1.0] * 4) * 3, None),
    ],
)
def test_two_states_by_hand(deviations, expected):
    assert detect_two_states(np.array(deviations)) == expected


@pytest.mark.parametrize(("noise", "is_seen"), [(0.129, True), (0.132, False)])
def test_two_states_are_seven_standard_deviations_apart(noise, is_seen):
    # The standard deviation of 12 runs, each `noise` from its state: noise * sqrt(12 / 10).
    signs = [1, -1, 1, -1] * 3
    deviations = [value + noise * sign for value, sign in zip(STATES, signs, strict=True)]
    lower = [off for off, value in zip(deviations, STATES, strict=True) if not value]
    upper = [off for off, value in zip(deviations, STATES, strict=True) if value]
    assert (sum(lower), sum(upper)) == (pytest.approx(0), pytest.approx(4))
    assert (detect_two_states(np.array(deviations)) is not None) == is_seen


def test_two_machines_by_hand():
    hosts = ["a", "b", "c"] * 4
    offs = [0.0, 0.0, 0.1] * 4
    expected = TwoStates(4, 12, pytest.approx(0.1), TWO_MACHINES, ("c",))
    assert detect_host_groups(np.array(offs), hosts, 0.03) == expected
    fast = TwoStates(4, 12, pytest.approx(-0.1), TWO_MACHINES, ("c",))
    assert detect_host_groups(-np.array(offs), hosts, 0.03) == fast
    first = TwoStates(4, 12, pytest.approx(-0.1), TWO_MACHINES, ("a",))
    assert detect_host_groups(np.array([-0.1, 0.0, 0.0] * 4), hosts, 0.03) == first
    assert detect_host_groups(np.array(offs), hosts, 0.1) is None
    assert detect_host_groups(np.array(offs), hosts[:-1], 0.03) is None
    # Three switches between the machines are needed, and two runs of each.
    for order, is_seen in (("aabb", False), ("abba", False), ("abab", True), ("abaa", False)):
        slow = np.array([0.1 * (host == "b") for host in order])
        assert (detect_host_groups(slow, [*order], 0.03) is not None) == is_seen, order


@pytest.mark.parametrize(("noise", "is_seen"), [(0.233, True), (0.234, False)])
def test_two_machines_are_five_standard_errors_apart(noise, is_seen):
    # The limit is 1 / (5 * 1.4826 * sqrt(1 / 6 + 1 / 6)), which is 0.2336.
    offs = [place % 2 + noise * (1 - place // 2 % 2 * 2) for place in range(12)]
    assert (detect_host_groups(np.array(offs), ["a", "b"] * 6, 0.03) is not None) == is_seen


@pytest.mark.parametrize(("count", "is_seen"), [(9, False), (10, True)])
def test_a_correlation_must_be_certain(count, is_seen):
    # The largest correlation, 0.8, is above 2.5 / sqrt(10) and below 2.5 / sqrt(9).
    series = CommitTimeSeries([[float(place > 4)] for place in range(count)], relative=False)
    found = series.recognize_noise([SeriesLevel(0, count, 0.5)], [()] * count, 0.03)
    assert found.correlation == (0.8 if is_seen else None)


def test_noise_of_runs_of_the_same_commit():
    series = CommitTimeSeries([[1.0, 3.0], [5.0], [2.0, 2.0, 8.0]], relative=False)
    assert series.values.tolist() == [2.0, 5.0, 2.0]
    # Differences 2 / sqrt(2), 0 and 6 / sqrt(3): the variance of each is twice that of a value.
    assert series.noise_lower_bound(math.inf) == pytest.approx(math.sqrt((2 + 0 + 12) / 3 / 2))
    assert series.noise_lower_bound(3.0) == pytest.approx(math.sqrt((2 + 0 + 9) / 3 / 2))
    assert CommitTimeSeries([[1.0], [2.0]], relative=False).noise_lower_bound(9.0) == 0.0
    assert CommitTimeSeries([[1.0], [2.0]], relative=True).noise_lower_bound(9.0) == 0.002
    assert CommitTimeSeries([[7.0, 7.0]], relative=True).noise_lower_bound(9.0) == 0.002


def test_noise_around_two_levels():
    series = CommitTimeSeries([[v] for v in (1.0, -1, 1, -1, 11, 9, 11, 9)], relative=False)
    levels = [SeriesLevel(0, 4, 0.0), SeriesLevel(4, 8, 10.0)]
    assert series.deviations(levels).tolist() == [1, -1] * 4
    found = series.estimate_noise(levels, math.inf)
    # Eight squares of 1, two levels and the noise, and 30 % for few values.
    assert found == (pytest.approx(math.sqrt(8 / 5) * (1 + 1.5 / 5)), 0.0)
    clipped = series.estimate_noise(levels, 0.5)
    assert clipped.spread == pytest.approx(math.sqrt(2 / 5) * (1 + 1.5 / 5))


def test_correlation_of_neighbours_by_hand():
    offs = [1.0, 1, 1, 1, -1, -1, -1, -1] * 5
    series = CommitTimeSeries([[value] for value in offs], relative=False)
    found = series.estimate_noise([SeriesLevel(0, 40, 0.0)], math.inf)
    # Nine of 39 products are -1: 21 / 39, and the correction 2 (1 + 3 r) / 40.
    seen = 21 / 39
    assert found.correlation == pytest.approx(seen + 2 * (1 + 3 * seen) / 40)
    # Products of two levels do not count. Of 19 in each, 16 and 9 are positive.
    other = [1.0] * 5 + [-1.0] * 5
    values = [*other, *other, *[11.0, 9.0, 9.0, 11.0] * 5]
    series = CommitTimeSeries([[value] for value in values], relative=False)
    found = series.estimate_noise([SeriesLevel(0, 20, 0.0), SeriesLevel(20, 40, 10.0)], math.inf)
    seen = (13 - 1) / 38
    assert found.correlation == pytest.approx(seen + 3 * (1 + 3 * seen) / 40)
    assert variance_inflation(0.5) == pytest.approx(3.0)
    assert variance_inflation(0.99) == variance_inflation(0.8) == pytest.approx(9.0)


def test_outliers_differ_by_more_than_the_threshold_and_the_noise():
    values = [100.0, 101.0, 99.0, 100.0, 101.0, 99.0, 120.0, 100.0]
    series = CommitTimeSeries([[value] for value in values], relative=False)
    levels = [SeriesLevel(0, 8, 100.0)]
    assert series.find_outliers(levels, 5.0) == [(6, 20.0)]
    assert series.find_outliers(levels, 20.0) == []
    # The noise is 1.4826 * (1 + 5 / 5): 4.5 times this are 13.34.
    for value, found in ((113.2, []), (113.5, [(6, pytest.approx(13.5))])):
        series = CommitTimeSeries([[v] for v in [*values[:6], value, 100.0]], relative=False)
        assert series.find_outliers(levels, 5.0) == found
    relative = CommitTimeSeries([[value] for value in values], relative=True)
    assert relative.find_outliers(levels, 0.05) == [(6, pytest.approx(0.2))]
    short = CommitTimeSeries([[1.0]] * 4 + [[2.0]], relative=False)
    assert short.find_outliers([SeriesLevel(0, 5, 1.0)], 0.1) == []
    six = CommitTimeSeries([[1.0]] * 5 + [[2.0]], relative=False)
    assert six.find_outliers([SeriesLevel(0, 6, 1.0)], 0.1) == [(5, 1.0)]


@pytest.mark.parametrize(("relative", "change"), [(False, 0.5), (True, math.expm1(0.5))])
def test_states_are_recognized_by_the_host_or_by_the_speed(relative, change):
    scale = math.exp if relative else float
    points = [[scale(0.5 * (place % 2))] for place in range(8)]
    series = CommitTimeSeries(points, relative)
    levels = [SeriesLevel(0, 8, scale(0.0))]
    states = series.recognize_noise(levels, [()] * 8, 0.03).states
    assert states == TwoStates(4, 8, pytest.approx(change))
    hosts = [["ab"[place % 2]] for place in range(8)]
    states = series.recognize_noise(levels, hosts, 0.03).states
    assert states == TwoStates(4, 8, pytest.approx(change), TWO_MACHINES, ("b",))


def test_noise_of_few_commits():
    def spread(*values):
        series = CommitTimeSeries([[value] for value in values], relative=False)
        return series.estimate_noise([SeriesLevel(0, len(values), 0.0)], math.inf).spread

    # Squares by what is left of the values, and 1.5 by the number of values less three.
    assert spread(1.0, -1.0, 1.0, -1.0) == pytest.approx(math.sqrt(4 / 2) * (1 + 1.5))
    assert spread(1.0, -2.0, 1.0) == pytest.approx(math.sqrt(6 / 1) * (1 + 1.5))
    assert spread(1.0, -1.0) == pytest.approx(math.sqrt(2 / 1) * (1 + 1.5))
    assert spread(1.0, -1.0, 2.0, -2.0, 0.0) == pytest.approx(math.sqrt(10 / 3) * (1 + 1.5 / 2))
