"""Cuts of series whose levels are known."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.base.stats import changepoints
from cnnbench.base.stats.changepoints import (
    MIN_SEGMENT,
    change_points,
    growing_deviations,
    noise,
    partition,
)
from cnnbench.base.stats.descriptive import median


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


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_is_that_of_the_values_and_not_of_the_levels(correlation):
    first, last = (correlated(3000, correlation, seed) for seed in (3, 4))
    values = [*first, *(100 + value for value in last)]
    assert noise(values) == (pytest.approx(1.0, rel=0.1), pytest.approx(correlation, abs=0.1))


@pytest.mark.parametrize(
    ("correlation", "low", "high"), [(0.0, 0.0, 0.08), (0.3, 0.2, 0.38), (0.6, 0.52, 0.68)]
)
def test_of_few_values_the_median_of_the_correlation_is_right(correlation, low, high):
    series = [correlated(60, correlation, seed) for seed in range(300)]
    found = [noise(values)[1] for values in series]
    assert low <= median(found) <= high


def test_a_trend_is_no_noise():
    spread, correlation = noise([float(i) for i in range(50)])
    assert (spread, correlation) == (0.0, 0.0)
    assert len(change_points([1.1**i for i in range(20)])) >= 2


def test_correlation_raises_the_penalty():
    independent, walk = (correlated(3000, correlation, 5) for correlation in (0.0, 0.6))
    assert changepoints.penalty(walk) > 1.8 * changepoints.penalty(independent)


def brute_force(values, price):
    """The cheapest of all cuts into segments of at least five."""

    def cost(cuts):
        edges = [0, *cuts, len(values)]
        total = 0.0
        for a, b in itertools.pairwise(edges):
            centre = median(values[a:b])
            total += sum(abs(v - centre) for v in values[a:b]) + price
        return total

    places = range(MIN_SEGMENT, len(values) - MIN_SEGMENT + 1)
    cuts = [
        chosen
        for count in range(len(values) // MIN_SEGMENT)
        for chosen in itertools.combinations(places, count)
        if all(b - a >= MIN_SEGMENT for a, b in itertools.pairwise([0, *chosen, len(values)]))
    ]
    return min(map(cost, cuts)), cost


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12).map(float), min_size=10, max_size=18))
def test_no_cut_is_cheaper_than_the_one_found(values):
    least, cost = brute_force(values, changepoints.penalty(values, 0.1))
    assert cost(change_points(values, 0.1)) == pytest.approx(least)


def by_all_segments(values, price, least):
    """The cheapest cuts, from the costs of all segments."""
    best, cuts = [0.0] + [math.inf] * len(values), [()] * (len(values) + 1)
    for start in range(len(values)):
        for size, cost in enumerate(growing_deviations(values[start:]), start=1):
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
    price = changepoints.penalty(values)
    assert partition(values, price, least) == by_all_segments(values, price, least)
    assert partition([2.5] * count, 0.0, least) == ()
    assert partition([1e-320, *values[1:]], 1e300, least) == ()
