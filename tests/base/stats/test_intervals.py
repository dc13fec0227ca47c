"""One value per process, and intervals that hold for any distribution.

Tests cnnbench/base/stats.py.
"""

import random

import pytest
import scipy  # which loads scipy.stats when it is used

from cnnbench.base.stats import ValuesByProcess


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


def test_intervals_cover_the_median_of_a_skewed_distribution_often_enough():
    draw = random.Random(7)
    true = scipy.stats.lognorm(0.5).median()
    hits = 0
    for _ in range(500):
        low, high = ValuesByProcess(tuple(draw.lognormvariate(0, 0.5) for _ in range(8))).interval
        hits += low <= true <= high
    assert hits / 500 >= 0.98  # 99.2 % in truth, less three standard deviations of the draws
