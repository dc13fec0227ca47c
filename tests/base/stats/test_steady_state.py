"""Series whose steady state is known, and series that have none.

Tests cnnbench/base/time_series.py and cnnbench/base/steady_state.py.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.base.steady_state import MIN_STEPS, SeriesShape, find_steady_state


def noisy(levels, cv=0.02, seed=0, correlation=0.0):
    """Times around levels, with noise in proportion to them."""
    rng = random.Random(seed)
    state, times = 0.0, []
    for level in levels:
        state = correlation * state + rng.gauss(0, math.sqrt(1 - correlation**2))
        times.append(level * (1 + cv * state))
    return times


COMPILING = [0.48, 0.126]
OUTLIERS = noisy([0.02] * 60)
OUTLIERS[30:32] = [0.3, 0.2]


@pytest.mark.parametrize(
    ("times", "start", "shape"),
    [
        (noisy([0.02] * 100), 0, SeriesShape.FLAT),
        ([0.5] * MIN_STEPS, 0, SeriesShape.FLAT),
        (OUTLIERS, 0, SeriesShape.FLAT),
        ([*COMPILING[:1], *noisy([0.02] * 60)], 1, SeriesShape.WARM_UP),
        ([*COMPILING, *noisy([0.02] * 60)], 2, SeriesShape.WARM_UP),
        (noisy([0.02] * 30 + [0.026] * 70), 30, SeriesShape.SLOWDOWN),
        (noisy([0.04] * 20 + [0.02] * 20 + [0.03] * 60), 40, SeriesShape.SLOWDOWN),
        (noisy([0.02] * 70 + [0.03] * 30), 70, SeriesShape.SLOWDOWN),
        (noisy([0.02] * 80 + [0.03] * 20), None, SeriesShape.NOT_STEADY),
        (noisy(([0.0195] * 20 + [0.033] * 20) * 3, cv=0.05), None, SeriesShape.NOT_STEADY),
        ([0.02] * (MIN_STEPS - 1), None, SeriesShape.TOO_SHORT),
        ([], None, SeriesShape.TOO_SHORT),
    ],
)
def test_shapes(times, start, shape):
    found = find_steady_state(times)
    assert (found.start, found.shape, found.steps) == (start, shape, len(times))
    assert found.reached == (start is not None)
    if shape is SeriesShape.TOO_SHORT:
        assert found.levels == ()


def test_levels_of_a_warm_up():
    found = find_steady_state(noisy([0.03] * 25 + [0.02] * 75))
    assert (found.start, found.shape) == (25, SeriesShape.WARM_UP)
    assert [(one.start, one.stop) for one in found.levels] == [(0, 25), (25, 100)]
    assert found.levels[1].seconds == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(("steps", "growth"), [(100, 1.01), (100, 0.99), (40, 1.02), (20, 1.05)])
def test_endless_drift_is_not_steady(steps, growth):
    times = noisy([0.02 * growth**i for i in range(steps)], cv=0.01)
    assert not find_steady_state(times).reached


@pytest.mark.parametrize("unknown", [math.nan, math.inf, 0.0, -1.0])
def test_unknown_times_keep_their_place_and_say_nothing(unknown):
    times = noisy([0.03] * 25 + [0.02] * 75)
    times[3] = times[24] = times[60] = unknown
    assert find_steady_state(times).start == 25
    assert find_steady_state([unknown] * 500).shape is SeriesShape.TOO_SHORT
    assert find_steady_state([unknown, *noisy([0.02] * 30)]).start == 1


def test_beginning_is_found_to_the_step_in_long_series():
    times = noisy([0.03] * 103 + [0.02] * 20_000, cv=0.03)
    assert find_steady_state(times).start == pytest.approx(103, abs=2)
    late = noisy([0.03] * 5_511 + [0.02] * 10_000, cv=0.03)
    assert find_steady_state(late).start == pytest.approx(5_511, abs=5)


def test_few_false_alarms_on_noise_as_found_on_shared_machines():
    series = [noisy([0.02] * 60, cv=0.08, seed=i, correlation=0.3) for i in range(100)]
    found = [find_steady_state(times) for times in series]
    assert sum(not one.reached for one in found) <= 3
    assert sum(one.reached and one.start > 3 for one in found) <= 5


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(st.floats(1e-6, 1e3), st.sampled_from([math.nan, math.inf, 0.0])), max_size=60
    )
)
def test_any_series_has_an_answer(times):
    found = find_steady_state(times)
    assert found.steps == len(times)
    if found.start is None:
        assert found.shape in (SeriesShape.TOO_SHORT, SeriesShape.NOT_STEADY)
    else:
        assert 0 <= found.start < len(times)
        assert math.isfinite(times[found.start])
    edges = [(one.start, one.stop) for one in found.levels]
    assert all(a < b for a, b in edges)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=20, max_size=50),
    # Powers of two, so that scaling rounds nothing.
    st.sampled_from([2.0**-10, 2.0, 1024.0]),
)
def test_the_unit_of_time_does_not_matter(times, factor):
    one, other = (
        find_steady_state([float(t) for t in times]),
        find_steady_state([t * factor for t in times]),
    )
    assert (one.start, one.shape) == (other.start, other.shape)


@pytest.mark.parametrize(
    ("times", "start", "shape"),
    [
        # A quarter of the steps, and at least ten of them, must be steady.
        ([30.0] * 75 + [20.0] * 25, 75, SeriesShape.WARM_UP),
        ([30.0] * 76 + [20.0] * 24, None, SeriesShape.NOT_STEADY),
        ([30.0] * 10 + [20.0] * 10, 10, SeriesShape.WARM_UP),
        ([30.0] * 11 + [20.0] * 9, None, SeriesShape.NOT_STEADY),
        # Levels that differ by 5 % of the last one are alike.
        ([21.0] * 50 + [20.0] * 50, 0, SeriesShape.FLAT),
        ([21.1] * 50 + [20.0] * 50, 50, SeriesShape.WARM_UP),
        ([19.0] * 50 + [20.0] * 50, 0, SeriesShape.FLAT),
        ([18.9] * 50 + [20.0] * 50, 50, SeriesShape.SLOWDOWN),
        ([19.0] * 20 + [30.0] * 20 + [20.0] * 60, 40, SeriesShape.WARM_UP),
        ([18.0] * 20 + [30.0] * 20 + [20.0] * 60, 40, SeriesShape.SLOWDOWN),
        ([30.0] * 20 + [20.5] * 20 + [20.0] * 60, 20, SeriesShape.WARM_UP),
        # Single steps at the beginning that are more than 5 % away.
        ([25.0] + [20.0] * 50, 1, SeriesShape.WARM_UP),
        ([40.0, 21.1] + [20.0] * 50, 2, SeriesShape.WARM_UP),
        ([21.0] + [20.0] * 50, 0, SeriesShape.FLAT),
    ],
)
def test_steady_states_without_noise(times, start, shape):
    found = find_steady_state(times, 30)
    assert (found.start, found.shape, found.warmup_steps) == (start, shape, 30)
    late = None if start is None else max(0, start - 30)
    assert found.unsteady_timed_steps == late
    assert found.levels[-1].stop == len(times)
    assert found.levels[-1].seconds == 20.0
