"""One value per process, and intervals that hold for any distribution.

Tests cnnbench/base/stats.py.
"""

import math
import statistics

import pytest
import scipy  # which loads scipy.stats when it is used

from cnnbench.base.stats import (
    FEWEST_FOR_P99,
    ValuesByProcess,
    faster_half,
    mean_interval,
    nearest_rank_percentile,
    p99,
    quantile_by_bisection,
)


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        ((), None),
        ((1.0, 2.0, 3.0, 4.0, 5.0), None),
        ((3.0, 1.0, 2.0, 6.0, 5.0, 4.0), (1.0, 6.0)),
        (tuple(range(1, 10)), (2.0, 8.0)),
        ((7.0,) * 8, (7.0, 7.0)),
    ],
)
def test_interval_of_the_median_by_hand(values, interval):
    # 6 values: 2 / 2^6 = 3.1 % outside. 9: 2 (1 + 9) / 2^9 = 3.9 %.
    assert ValuesByProcess(values).interval == interval


@pytest.mark.parametrize("count", [6, 8, 12, 25, 60, 1023, 1024, 2000])
def test_interval_is_that_of_the_sign_test(count):
    values = [float(i) for i in range(count)]
    low, high = ValuesByProcess(tuple(values)).interval
    # As many values below the interval as the sign test would still take for chance.
    rank = int(low)
    assert high == count - 1 - rank
    below = scipy.stats.binom(count, 0.5).cdf
    assert below(rank - 1) <= 0.025 if rank else True
    assert below(rank) <= 0.025 < below(rank + 1)


@pytest.mark.parametrize(
    ("values", "median", "ends", "relative"),
    [
        ((), None, None, None),
        ((7.0,), 7.0, None, None),
        ((7.0, 7.0), 7.0, None, 0.0),
        ((3.0, 1.0), 2.0, (1.0, 3.0), 1.0),
        ((4.0, 1.0, 2.0), 2.0, (1.0, 4.0), 1.5),
        ((-1.0, 1.0), 0.0, (-1.0, 1.0), None),
    ],
)
def test_summaries_by_hand(values, median, ends, relative):
    found = ValuesByProcess(values)
    assert (found.median, found.range, found.relative_range) == (median, ends, relative)


@pytest.mark.parametrize("confidence", [0.9, 0.95])
@pytest.mark.parametrize("count", [3, 4, 31])
def test_intervals_of_means_are_those_of_students_distribution(count, confidence):
    values = [float(index * index % 7) for index in range(count)]
    error = scipy.stats.sem(values)
    expected = scipy.stats.t.interval(confidence, count - 1, statistics.mean(values), error)
    assert mean_interval(values, confidence) == pytest.approx(expected, rel=1e-6)
    assert mean_interval(values[:2], confidence) is None


def test_quantiles_are_searched_up_to_a_billion():
    assert quantile_by_bisection(lambda t: 1 / (1 + t), 0.5) == pytest.approx(1.0)
    assert quantile_by_bisection(lambda t: 1 / (1 + t), 1e-6) == pytest.approx(999_999)
    assert quantile_by_bisection(lambda t: 1.0, 0.5) == 2**30  # the first power beyond
    assert quantile_by_bisection(lambda t: 0.0, 0.5) == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.1, 1), (0.11, 2), (0.5, 5), (0.9, 9), (0.91, 10), (1, 10)]
)
def test_percentiles_are_values_of_the_nearest_rank(share, expected):
    assert nearest_rank_percentile([10, 3, 5, 1, 2, 4, 9, 8, 7, 6], share) == expected


def test_the_99th_percentile_needs_enough_values():
    values = [*range(FEWEST_FOR_P99)]
    assert p99(values) == math.ceil(0.99 * FEWEST_FOR_P99) - 1
    assert p99(values[1:]) is None


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [((), []), ((3.0,), [0]), ((3.0, 1.0), [1]), ((3.0, 1.0, 2.0), [1, 2]), ((1.0, 1.0), [0])],
)
def test_the_faster_half_of_the_steps_includes_the_middle(seconds, steps):
    assert faster_half(seconds) == steps
