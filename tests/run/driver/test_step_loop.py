"""The clocks of a loop, and when a worker's update has taken too long."""

from __future__ import annotations

import pytest

from cnnbench.run.driver.step_loop import LoopTime, LoopTimer, StuckWorkerDetector
from cnnbench.run.runtime.progress import stall_time_limit


@pytest.fixture
def clock(limits):
    """The readings of the three clocks, which the test sets."""
    now = [100.0, 7.0, 3.0]
    limits(LoopTime, now=lambda: LoopTime(*now))
    return now


def test_the_time_of_a_loop_is_that_outside_excluded_blocks(clock):
    timer = LoopTimer()
    clock[:] = 110.0, 9.0, 4.0
    assert timer.elapsed() == LoopTime(10.0, 2.0, 1.0)
    with timer.excluded():
        clock[:] = 140.0, 19.0, 14.0
    assert timer.elapsed() == LoopTime(10.0, 2.0, 1.0)
    clock[:] = 141.0, 19.5, 14.25
    assert timer.elapsed() == LoopTime(11.0, 2.5, 1.25)
    assert timer.elapsed_seconds == 41.0
    assert timer.elapsed().record_fields() == {
        "loop_seconds": 11.0,
        "loop_user_seconds": 2.5,
        "loop_system_seconds": 1.25,
    }


def test_the_clocks_are_those_of_this_process():
    timer = LoopTimer()
    while (spent := timer.elapsed()).user + spent.system < 0.02:
        pass
    assert 0.0 < spent.wall <= timer.elapsed_seconds


def test_an_update_may_take_exactly_its_limit():
    detector = StuckWorkerDetector(16.0)
    first = stall_time_limit(16.0, 0.0, False)
    assert not detector.find_stuck_workers({"a": 1}, first)
    assert detector.find_stuck_workers({"a": 1}, 0.5) == {"a": first + 0.5}
    assert not detector.find_stuck_workers({"a": 2}, 16.0)
    assert detector.find_stuck_workers({"a": 2}, 0.5) == {"a": 16.5}
    # Three times the longest one, without the first.
    assert not detector.find_stuck_workers({"a": 3}, 3 * 16.5)
    assert detector.find_stuck_workers({"a": 3}, 0.5) == {"a": 50.0}
    assert not StuckWorkerDetector().find_stuck_workers({"a": 1}, 1e9)  # without a limit
