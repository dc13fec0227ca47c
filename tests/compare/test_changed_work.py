"""Runs with another amount of work: a verdict of its own, red unless it is allowed."""

from __future__ import annotations

import pytest

from cnnbench.compare import Verdict, compare_records
from cnnbench.errors import ExitCode
from cnnbench.records.run import ModelInfo
from cnnbench.report.renderers import render

BASE = (100.0, 100.2, 99.8, 100.1, 99.9)
OTHER_CPU = {"environment": {"cpu_model": "another"}}


def model(flops, parameters=10):
    return ModelInfo(
        name="lenet",
        parameters=parameters,
        trainable_parameters=parameters,
        forward_flops_per_image=flops // 3,
        training_flops_per_image=flops,
    )


def only(comparison):
    (entry,) = comparison.entries
    return entry.main


def test_a_wider_model_names_what_changed_and_both_speeds(runs):
    base = runs.of(*BASE, model=model(6_000_000_000))
    new = runs.of(*[v / 43 for v in BASE], model=model(240_000_000_000, parameters=500))
    found = compare_records(base, new)
    assert only(found).verdict is Verdict.CHANGED_WORK
    assert found.exit_code is ExitCode.REGRESSION
    reason = only(found).judgement.reason
    assert "model_parameters is 10 in BASE and 500 in NEW" in reason
    # 100 images/sec of 6 GFLOP are 600 GFLOP/s; 100 / 43 of 240 are 558, which is 7 % less.
    assert reason.endswith("throughput -97.7 %, FLOP/s -7.0 % (600.0 GFLOP/s to 558.1 GFLOP/s)")
    table = render(found, "table")
    assert "# changed work" in table
    assert "-97.7 %" in table
    assert render(found, "github").startswith("::error ")
    assert "<failure" in render(found, "junit")


def test_a_flag_lets_it_pass_and_hides_nothing(runs):
    base = runs.of(*BASE)
    new = runs.of(*BASE, model=model(120))
    found = compare_records(base, new, allow_changed_work=True)
    assert only(found).verdict is Verdict.CHANGED_WORK
    assert found.exit_code is ExitCode.OK
    assert "# changed work" in render(found, "table")
    assert "::error" not in render(found, "github")
    assert "<failure" not in render(found, "junit")
    # What else is wrong still is.
    slow = {"flags": {"model": "alexnet"}}
    worse = [*new, *runs.of(*[v / 2 for v in BASE], **slow)]
    found = compare_records([*base, *runs.of(*BASE, **slow)], worse, allow_changed_work=True)
    assert found.exit_code is ExitCode.REGRESSION
    # Judged by throughput where the comparison is about it.
    assert only(compare_records(base, new, allow_different=["model"])).verdict is Verdict.SAME


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        ({"flags": {"batch_size": 16}}, Verdict.CHANGED_WORK),
        ({"model": model(66)}, Verdict.CHANGED_WORK),
        # Other work is so on another machine too.
        ({"model": model(66), **OTHER_CPU}, Verdict.CHANGED_WORK),
        (OTHER_CPU, Verdict.NOT_COMPARABLE),
        # Another flag is another experiment, whatever follows from it.
        ({"model": model(66), "flags": {"model": "alexnet"}}, Verdict.NOT_COMPARABLE),
        ({"devices": 2}, Verdict.NOT_COMPARABLE),
    ],
)
def test_what_is_other_work(runs, new, verdict):
    base = runs.of(*BASE, environment={"cpu_model": "one"})
    new = {"environment": {"cpu_model": "one"}, **new}
    assert only(compare_records(base, runs.of(*BASE, **new))).verdict is verdict


def test_a_side_of_two_networks_is_no_change(runs):
    mixed = [*runs.of(*BASE[:3]), *runs.of(*BASE[3:], model=model(66))]
    assert only(compare_records(runs.of(*BASE), mixed)).verdict is Verdict.NOT_COMPARABLE
