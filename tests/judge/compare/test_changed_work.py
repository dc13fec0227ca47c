"""Runs with another amount of work: a verdict of its own, exit code 1 unless it is allowed.

Tests cnnbench/judge/compare/comparability.py.
"""

from __future__ import annotations

import pytest
from sides import network

from cnnbench.errors import ExitCode
from cnnbench.judge.compare import Criteria, Verdict, compare_records
from cnnbench.records.run import Imported

BASE = (100.0, 100.2, 99.8, 100.1, 99.9)
OTHER_CPU = {"environment": {"cpu_model": "another"}}


def only(comparison):
    (entry,) = comparison.entries
    return entry.main


def test_a_wider_model_is_an_answer_and_no_change_of_speed(runs):
    wider = runs.of(*[v * 4.32 for v in BASE], model=network(66, parameters=242_603))
    found = compare_records(runs.of(*BASE), wider)
    result = only(found)
    assert result.verdict is Verdict.CHANGED_WORK
    assert found.exit_code is ExitCode.REGRESSION
    assert (result.judgement.base_median, result.judgement.change) == (pytest.approx(100), None)
    # Only where both sides have timed steps, rates are compared.
    untimed = [runs(model=network(66), step_seconds=(), losses=())]
    reasons = [
        only(compare_records(runs.of(*BASE), new)).judgement.reason for new in (wider, untimed)
    ]
    assert ["GFLOP/s" in reason for reason in reasons] == [True, False]


@pytest.mark.parametrize(
    "new",
    [
        OTHER_CPU,
        # Another flag is another experiment, whatever follows from it.
        {"model": network(66), "flags": {"model": "alexnet"}},
        {"devices": 2},
    ],
)
def test_what_is_no_other_work(runs, new):
    found = only(compare_records(runs.of(*BASE), runs.of(*BASE, **new)))
    assert found.verdict is Verdict.NOT_COMPARABLE


def test_unknown_work_is_no_other_work(runs):
    """Imported runs of which neither the batch size nor the number of processes is known."""
    made = Imported(program="x", file="a.log", sha256="0" * 64, part=1, values={})
    config = {"imported_from": "x", "model": "lenet", "precision": "fp32"}
    unknown = runs.of(*BASE, imported=made, config=config, placement=None)
    known = runs.of(*BASE, imported=made, config={**config, "batch_size": 8}, placement=None)
    for base, new in ((unknown, unknown), (known, unknown)):
        found = compare_records(base, new)
        assert only(found).verdict is Verdict.NOT_COMPARABLE
        assert "batch_size is" in only(found).judgement.reason
        assert found.exit_code is ExitCode.INCONCLUSIVE


def test_a_flag_lets_it_pass_and_hides_nothing(runs):
    base = runs.of(*BASE)
    new = runs.of(*BASE, model=network(120))
    found = compare_records(base, new, Criteria(allow_changed_work=True))
    assert only(found).verdict is Verdict.CHANGED_WORK
    assert found.exit_code is ExitCode.OK
    # What else is wrong still is.
    slow = {"flags": {"model": "alexnet"}}
    worse = [*new, *runs.of(*[v / 2 for v in BASE], **slow)]
    criteria = Criteria(allow_changed_work=True)
    found = compare_records([*base, *runs.of(*BASE, **slow)], worse, criteria)
    assert found.exit_code is ExitCode.REGRESSION
    # Judged by throughput where the comparison is about it.
    found = compare_records(base, new, Criteria(allow_different=["model"]))
    assert only(found).verdict is Verdict.SAME


def test_a_side_of_two_networks_is_no_change(runs):
    mixed = [*runs.of(*BASE[:3]), *runs.of(*BASE[3:], model=network(66))]
    assert only(compare_records(runs.of(*BASE), mixed)).verdict is Verdict.NOT_COMPARABLE
