"""When a process has stalled: time limits of steps and of what is between them."""

from __future__ import annotations

import math

import pytest

from cnnbench.run.runtime.progress import (
    ProcessActivity,
    ProcessProgress,
    StallDetector,
    stall_time_limit,
)

START, STEP = ProcessActivity.START, ProcessActivity.STEP
PAUSE, END = ProcessActivity.PAUSE, ProcessActivity.END


@pytest.mark.parametrize(
    ("limit", "longest", "is_step", "expected"),
    [
        (0, 5, True, math.inf),
        (0, 5, False, math.inf),
        (10, 3, True, 10),
        (10, 4, True, 12),
        (10, 400, False, 100),
    ],
)
def test_limits_of_steps_and_of_what_is_between_them(limit, longest, is_step, expected):
    assert stall_time_limit(limit, longest, is_step) == expected


class Reported:
    """The progress that a process reports, which a test changes."""

    def __init__(self, steps=0, doing=STEP, batches=0):
        self.now = ProcessProgress("worker:0", steps, f"step {steps}", doing, batches)

    def change(self, **fields):
        self.now = self.now._replace(**fields)

    def __call__(self):
        return self.now


def found(detector, *times):
    """Seconds without progress and whether it has stalled, at these times."""
    return [(p.idle, p.stalled) for p in map(detector.progress_at, times)]


def test_a_step_has_the_limit_or_three_times_the_longest():
    reported = Reported(steps=1)
    detector = StallDetector(reported, 10)
    assert found(detector, 100, 110, 110.5) == [(0, False), (10, False), (10.5, True)]
    reported.change(steps=2)  # after 20 s
    assert found(detector, 120, 180, 181) == [(0, False), (60, False), (61, True)]
    reported.change(batches=1)
    assert found(detector, 190, 190 + 210, 190 + 211) == [(0, False), (210, False), (211, True)]


@pytest.mark.parametrize(
    ("steps", "doing"),
    [(0, STEP), (0, START), (3, PAUSE), (3, END)],
)
def test_the_first_step_and_pauses_have_ten_times_the_limit(steps, doing):
    detector = StallDetector(Reported(steps, doing), 10)
    assert found(detector, 0, 100, 100.5) == [(0, False), (100, False), (100.5, True)]


def test_what_is_no_step_makes_no_step_longest():
    reported = Reported(steps=1, doing=PAUSE)
    detector = StallDetector(reported, 10)
    assert found(detector, 0) == [(0, False)]
    reported.change(doing=ProcessActivity.INPUT)
    assert found(detector, 90, 100, 101) == [(0, False), (10, False), (11, True)]


def test_waits_for_others_have_no_limit():
    detector = StallDetector(Reported(3, ProcessActivity.OTHERS), 10)
    assert found(detector, 0, 1e9) == [(0, False), (1e9, False)]


def test_progress_travels_as_a_list():
    progress = ProcessProgress("worker:1", 12, "step 12", STEP, 40, 2.5, True)
    assert ProcessProgress.from_json(list(progress)) == progress
    assert ProcessProgress("worker:1", 0, "no step", START)[4:] == (0, 0.0, False)
    assert str(progress) == "no progress for 2 s after step 12, waits for the end of a step"
    for wrong in ([], ["worker:1", 1], ["worker:1", 1, "", "sleeps", 0, 0, 0], [None] * 8):
        with pytest.raises((TypeError, ValueError)):
            ProcessProgress.from_json(wrong)
