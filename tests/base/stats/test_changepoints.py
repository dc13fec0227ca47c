"""Cuts of series whose levels are known.

Tests cnnbench/base/time_series.py.
"""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest
from covering import slow_if

from cnnbench.base.stats import median
from cnnbench.base.time_series import (
    MIN_SEGMENT,
    Segment,
    change_points,
    find_segments,
    optimal_segmentation,
    prefix_deviation_sums,
)


def noisy(levels, sigma, seed=0):
    rng = random.Random(seed)
    return [level + rng.gauss(0, sigma) for level in levels]


def correlated(count, correlation, seed):
    """Gaussian noise of variance 1."""
    rng = random.Random(seed)
    values = [rng.gauss(0, 1)]
    while len(values) < count:
        fresh = rng.gauss(0, math.sqrt(1 - correlation**2))
        values.append(correlation * values[-1] + fresh)
    return values


OUTLIERS = [10.0, 10.1] * 20
OUTLIERS[13:15] = [500.0, 400.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (noisy([10.0] * 20 + [12.0] * 30, 0.2), (20,)),
        (noisy([10.0] * 20 + [15.0] * 12 + [10.0] * 20, 0.3), (20, 32)),
        (noisy([10.0] * 100, 1.0), ()),
        ([3.0] * 40, ()),
        ([3.0] * 10 + [4.0] * 10, (10,)),
        (OUTLIERS, ()),
        ([1.0] * (MIN_SEGMENT - 1) + [9.0] * MIN_SEGMENT, ()),
    ],
    ids=["step", "two steps", "noise", "constant", "no noise", "outliers", "too short"],
)
def test_changes(values, expected):
    assert change_points(values) == expected


def test_changes_below_the_least_noise_are_none():
    values = [100.0] * 20 + [100.3] * 20
    assert change_points(values) == (20,)
    assert change_points(values, min_spread=1.0) == ()


def found_in(values, least_trend=0.03):
    return find_segments(values, lambda _: 0.002, 2, least_trend)


def draws(shape, correlation, scatter=0.015):
    """60 series of a shape with noise, each the same in every call."""
    for seed in range(60):
        noise = correlated(len(shape), correlation, seed)
        yield [level + scatter * value for level, value in zip(shape, noise, strict=True)]


@pytest.mark.parametrize(
    ("correlation", "at_most"), slow_if([(0.0, 1), (0.3, 2)], [(0.0, 1), (0.3, 2), (0.6, 5)])
)
def test_correlated_noise_is_no_change(correlation, at_most):
    assert sum(len(found_in(one)) > 1 for one in draws([0.0] * 40, correlation)) <= at_most


UNDONE = [0.0] * 15 + [-0.1] * 11 + [0.0] * 14
TREND = [0.0] * 10 + [-0.01 * (i + 1) for i in range(20)] + [-0.2] * 10


@pytest.mark.parametrize(
    ("shape", "correlation", "places", "at_least"),
    slow_if(
        lambda case: case[1] == 0.0,
        [
            ([0.0] * 30 + [-0.051] * 10, 0.0, (30,), 56),
            (UNDONE, 0.0, (15, 26), 57),
            (UNDONE, 0.3, (15, 26), 54),
            ([-0.6 * level for level in UNDONE], 0.0, (15, 26), 40),
            ([0.0] * 15 + [-0.1] * 10 + [-0.2] * 15, 0.0, (15, 25), 57),
        ],
    ),
)
def test_a_step_is_not_taken_for_correlation(shape, correlation, places, at_least):
    right = 0
    for values in draws(shape, correlation):
        found = found_in(values)
        starts = [one.start for one in found[1:]]
        right += (
            len(starts) == len(places)
            and all(one.trend is None for one in found)
            and all(abs(a - b) <= 2 for a, b in zip(starts, places, strict=True))
        )
    assert right >= at_least


@pytest.mark.parametrize("correlation", slow_if([0.0], [0.0, 0.6]))
def test_a_trend_is_one_change_with_its_first_and_last_value(correlation):
    right = 0
    for values in draws(TREND, correlation):
        found = found_in(values)
        if len(found) == 1 and found[0].trend is not None:
            first, last = found[0].trend
            right += abs(first - 9) <= 4 and abs(last - 29) <= 4
    assert right >= 54


def test_a_trend_is_told_as_levels_where_levels_are_sought():
    (values, *_) = draws(TREND, 0.0)
    assert len(change_points(values, 0.002)) >= 2
    assert all(one.trend is None for one in found_in(values, math.inf))
    assert found_in([math.log(1.02) * i for i in range(20)]) == [Segment(0, 20, (0, 19))]


def test_outliers_hide_no_step_and_are_none():
    values = noisy([0.0] * 20 + [-0.06] * 20, 0.015)
    values[7], values[30] = 0.9, -1.3
    assert [one.start for one in found_in(values)] == [0, 20]


def test_many_values_take_little_time():
    values = correlated(2000, 0.6, 1)
    start = time.process_time()
    assert len(found_in(values)) <= 2
    assert time.process_time() - start < 5


def by_all_segments(values, price, least):
    """The cheapest cuts, from the costs of all segments."""
    best, cuts = [0.0] + [math.inf] * len(values), [()] * (len(values) + 1)
    for start in range(len(values)):
        for size, cost in enumerate(prefix_deviation_sums(values[start:]), start=1):
            total = best[start] + cost + price
            if size >= least and total < best[start + size]:
                best[start + size] = total
                cuts[start + size] = (*cuts[start], start) if start else ()
    return cuts[-1]


@pytest.mark.parametrize("count", [10, 61, 200])
@pytest.mark.parametrize("least", [2, 5])
def test_series_are_cut_at_the_optimum(count, least):
    draw = random.Random(count)  # without ties, which have several optima
    values = [draw.gauss(0, 1) + 3 * (index // 30 % 2) for index in range(count)]
    price = 8.0
    assert optimal_segmentation(values, price, least) == by_all_segments(values, price, least)
    assert optimal_segmentation([2.5] * count, 0.0, least) == ()
    assert optimal_segmentation([1e-320, *values[1:]], 1e300, least) == ()


@pytest.mark.parametrize(
    ("segment", "values", "limit", "fitted"),
    [
        (Segment(0, 4), [9.0, 1.0, 1.0, 1.0], None, [1.0] * 4),
        # The median is 2.5, and the median of the deviations 1.5: 97.5 becomes 4 * 1.4826 * 1.5.
        (Segment(0, 6), [0.0, 1, 2, 3, 4, 100], None, [2.5 + (-2.5 + 4 * 1.4826 * 1.5) / 6] * 6),
        (Segment(0, 3), [0.0, 1.0, 100.0], 6.0, [1 + 5 / 3] * 3),
        (Segment(1, 3), [50.0, 1.0, 3.0, 50.0], None, [2.0] * 2),
        (Segment(0, 5, (0, 4)), [0.0, 2.0, 4.0, 6.0, 8.0], 0.0, [0.0, 2.0, 4.0, 6.0, 8.0]),
        (Segment(1, 7, (2, 5)), [99.0, 1, 1, 3, 5, 7, 7, 99], None, [1.0, 1, 3, 5, 7, 7]),
    ],
)
def test_levels_and_trends_are_fitted_without_outliers(segment, values, limit, fitted):
    found = segment.fit(np.asarray(values), limit)
    assert found.tolist() == pytest.approx(fitted)


def test_sums_of_deviations_are_those_from_the_median():
    draw = random.Random(3)
    values = [draw.choice([draw.gauss(0, 5), 1.0]) for _ in range(30)]
    expected = []
    for size in range(1, 31):
        centre = median(values[:size])
        expected.append(sum(abs(value - centre) for value in values[:size]))
    assert [*prefix_deviation_sums(values)] == pytest.approx(expected)
    assert [*prefix_deviation_sums([])] == []


def ramp(first, last, count=40):
    return [min(max((i - first) / (last - first), 0.0), 1.0) for i in range(count)]


def raised(first, stop=40, count=40):
    return [float(first <= i < stop) for i in range(count)]


RAMP_AND_STEP = [a + 2 * b for a, b in zip(ramp(5, 20), raised(30), strict=True)]
TWO_RAMPS = [a - b for a, b in zip(ramp(4, 14), ramp(24, 34), strict=True)]


@pytest.mark.parametrize(
    ("shape", "correlation", "spread", "least", "segments"),
    [
        (raised(25), 0.0, 0.0, 1.60253, [(0, 25, None), (25, 40, None)]),
        (raised(25), 0.6, 0.0, 2.012, [(0, 25, None), (25, 40, None)]),
        (raised(25), 0.0, 1.5, 8.03434, [(0, 25, None), (25, 40, None)]),
        (raised(6, 12, 12), 0.0, 0.0, 4.52501, [(0, 6, None), (6, 12, None)]),
        (raised(3, 6, 6), 0.0, 0.0, 5.53914, [(0, 3, None), (3, 6, None)]),
        (raised(15, 22), 0.0, 0.0, 1.92921, [(0, 15, None), (15, 22, None), (22, 40, None)]),
        (raised(15, 22), 0.5, 0.0, 2.41512, [(0, 15, None), (15, 22, None), (22, 40, None)]),
        (raised(20, 22), 0.0, 0.0, 14.2686, [(0, 20, None), (20, 22, None), (22, 40, None)]),
        (raised(20, 23), 0.0, 0.0, 4.46175, [(0, 20, None), (20, 23, None), (23, 40, None)]),
        (raised(37), 0.0, 0.0, 3.82047, [(0, 37, None), (37, 40, None)]),
        (raised(38), 0.0, 0.0, 3.79392, [(0, 38, None), (38, 40, None)]),
        (raised(0, 3), 0.0, 0.0, 1.68044, [(0, 3, None), (3, 40, None)]),
        (raised(8, 10, 10), 0.0, 0.0, 3.54311, [(0, 8, None), (8, 10, None)]),
        (ramp(9, 29), 0.0, 0.0, 5.7694, [(0, 40, (9, 26))]),
        (ramp(9, 29), 0.5, 0.0, 6.13309, [(0, 40, (10, 25))]),
        (ramp(0, 39), 0.0, 0.0, 6.16782, [(0, 40, (5, 32))]),
        (ramp(15, 19), 0.0, 0.0, 8.42442, [(0, 40, (14, 19))]),
        (RAMP_AND_STEP, 0.0, 0.0, 6.18024, [(0, 30, (7, 19)), (30, 40, None)]),
        (TWO_RAMPS, 0.0, 0.0, 11.7735, [(0, 13, (5, 12)), (13, 40, (24, 34))]),
        (ramp(9, 29), 0.0, 1.5, 18.2532, [(0, 40, (9, 29))]),
        (raised(60, 120, 120), 0.3, 0.0, 1.44609, [(0, 60, None), (60, 120, None)]),
        (ramp(40, 90, 130), 0.2, 0.0, 3.11093, [(0, 130, (44, 100))]),
    ],
)
def test_the_smallest_change_that_is_found(shape, correlation, spread, least, segments):
    """In noise of variance 1. All parts of the likelihood and all penalties decide on it."""
    noise = correlated(len(shape), correlation, 1)

    def found(size):
        values = [value + size * level for value, level in zip(noise, shape, strict=True)]
        return find_segments(values, lambda _: spread, 2, 0.0)

    def shapes(parts):
        return [trend is not None for _, _, trend in parts]

    assert shapes(found(least * 1.0001)) == shapes(segments)
    assert [tuple(part) for part in found(least * 1.0001)] == segments
    assert shapes(found(least * 0.9999)) != shapes(segments)
