"""Statistics against hand-worked numbers and against the definitions written out.

Tests cnnbench/base/stats.py.
"""

from __future__ import annotations

import math
import statistics as stdlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.base.stats import RunningSpeed, compute_speed, median, median_absolute_deviation

step_times = st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=60)


def by_definition(batch, times, alpha=0.0):
    speeds = [batch / t for t in times]
    weights = [(1 - alpha) ** (len(times) - 1 - i) for i in range(len(times))]
    mean_time = math.fsum(w * t for w, t in zip(weights, times, strict=True)) / math.fsum(weights)
    middle = stdlib.median(speeds)
    return (
        batch / mean_time,
        stdlib.pstdev(speeds) / math.sqrt(len(times)),
        1.4826 * stdlib.median(abs(s - middle) for s in speeds),
    )


def weighted(images, times, alpha):
    running = RunningSpeed(images, alpha)
    for seconds in times:
        running.add(seconds)
    return running.current()


def test_three_steps_worked_by_hand():
    # b = 8, t = 0.1, 0.2, 0.4 s, so s = 80, 40, 20 images/s.
    # M: mean(t) = 0.7/3, so 8 * 3 / 0.7 = 34.2857...; the mean of s would be 46.67.
    # U: deviations from 140/3 are 100/3, -20/3, -80/3; squares sum to
    #    (10000 + 400 + 6400)/9 = 16800/9; over n: 5600/9; sqrt / sqrt(3) = sqrt(5600/27).
    # J: median 40, |s - 40| = 40, 0, 20, median 20, times 1.4826 = 29.652.
    result = compute_speed(8, [0.1, 0.2, 0.4])
    assert result.mean == pytest.approx(24 / 0.7)
    assert result.uncertainty == pytest.approx(math.sqrt(5600 / 27))
    assert result.jitter == pytest.approx(29.652)


@pytest.mark.parametrize(
    ("images", "times", "alpha", "reason"),
    [
        *((1, [seconds], None, "must be positive") for seconds in (0.0, -1.0, math.nan)),
        *((1, [1.0], alpha, "must lie between") for alpha in (-0.1, 1.5, math.nan)),
        (0, [1.0], None, "at least 1"),
        (32, [], None, "no step"),
    ],
)
def test_impossible_values(images, times, alpha, reason):
    with pytest.raises(ValueError, match=reason):
        weighted(images, times, alpha)


@settings(max_examples=30, deadline=None)
@given(times=step_times, alpha=st.floats(0.0, 1.0), every=st.integers(1, 7))
def test_running_values_equal_the_definition_whenever_they_are_read(times, alpha, every):
    running = RunningSpeed(16, alpha)
    for done, seconds in enumerate(times, start=1):
        running.add(seconds)
        assert len(running) == done
        if done % every == 0:
            now = running.current()
            expected = by_definition(16, times[:done], alpha)
            assert (now.mean, now.uncertainty, now.jitter) == pytest.approx(
                expected, rel=1e-9, abs=1e-6
            )


@pytest.mark.parametrize("every", [1, 99, 100, 350])
def test_steps_may_come_one_by_one_or_in_bulk(every):
    times = [0.1 + (i * 7919 % 701) / 1000 for i in range(700)]
    running = RunningSpeed(16)
    for done, seconds in enumerate(times, start=1):
        running.add(seconds)
        if done % every == 0:
            running.current()
    now = running.current()
    assert (now.mean, now.uncertainty, now.jitter) == pytest.approx(by_definition(16, times))


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_medians_of_values_in_any_order(values):
    middle = stdlib.median(values)
    assert median(values) == middle
    assert median_absolute_deviation(values) == stdlib.median(abs(v - middle) for v in values)
