"""Where the steady state of a run begins, warm-up and timed steps together."""

from __future__ import annotations

from cnnbench.records.measurements import Measurements
from cnnbench.records.steady_state import run_steady_state
from cnnbench.stats.steady_state import steady_state


def record(warmup, timed):
    run = Measurements(command=[], config={})
    for seconds in warmup:
        run.add_warmup_step(seconds)
    for seconds in timed:
        run.add_step(seconds)
    return run.record()


def test_warm_up_and_timed_steps_are_one_series():
    times = (0.03,) * 25 + (0.02,) * 85
    found = run_steady_state(record(times[:10], times[10:]))
    assert found.series == steady_state(times)
    assert (found.warmup_steps, found.timed_steps) == (10, 100)
    assert found.unsteady_timed_steps == 15


def test_steady_before_the_first_timed_step():
    assert run_steady_state(record([0.5, 0.3, 0.02], [0.02] * 40)).unsteady_timed_steps == 0


def test_runs_without_an_answer():
    assert run_steady_state(record([], [])).unsteady_timed_steps is None
    assert run_steady_state(record([], [0.02] * 45 + [0.03] * 5)).unsteady_timed_steps is None
