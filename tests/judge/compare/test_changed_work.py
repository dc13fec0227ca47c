"""Runs with another amount of work: a verdict of its own, exit code 1 unless it is allowed.

Tests cnnbench/judge/compare/comparability.py.
"""

from __future__ import annotations

import pytest

from cnnbench.errors import ExitCode
from cnnbench.judge.compare import Criteria, Verdict, compare_records
from cnnbench.judge.report.renderers import FORMATS, render, terminal_text
from cnnbench.records.run import ModelInfo

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


@pytest.fixture
def wider(runs):
    """Sides of which the second has a wider network, and four times the speed."""
    base = runs.of(*BASE, model=model(3_000_000, parameters=94_891))
    return base, runs.of(*[v * 4.32 for v in BASE], model=model(3_687_000, parameters=242_603))


def test_a_wider_model_is_an_answer_and_no_change_of_speed(wider):
    found = compare_records(*wider)
    result = only(found)
    assert result.verdict is Verdict.CHANGED_WORK
    assert found.exit_code is ExitCode.REGRESSION
    assert found.answer == result.judgement.reason
    assert (result.judgement.base_median, result.judgement.change) == (pytest.approx(100), None)


def test_nothing_is_red_and_no_change_is_told(wider):
    found = compare_records(*wider)
    comment = render(found, "markdown")
    head, _, _ = comment.partition("<details>")
    assert head.startswith("### cnnbench: changed work\n")
    assert found.answer in head
    assert "🔴" not in comment
    table = terminal_text(found, colour=True)
    assert table.endswith(" 1: changed work\n")
    assert "\x1b[31" not in table
    assert "::error" in render(found, "github")
    assert not any("332 %" in render(found, format) for format in FORMATS)


@pytest.mark.parametrize(
    "new",
    [
        OTHER_CPU,
        # Another flag is another experiment, whatever follows from it.
        {"model": model(66), "flags": {"model": "alexnet"}},
        {"devices": 2},
    ],
)
def test_what_is_no_other_work(runs, new):
    found = only(compare_records(runs.of(*BASE), runs.of(*BASE, **new)))
    assert found.verdict is Verdict.NOT_COMPARABLE


def test_a_flag_lets_it_pass_and_hides_nothing(runs):
    base = runs.of(*BASE)
    new = runs.of(*BASE, model=model(120))
    found = compare_records(base, new, Criteria(allow_changed_work=True))
    assert only(found).verdict is Verdict.CHANGED_WORK
    assert found.exit_code is ExitCode.OK
    assert "# changed work" in render(found, "table")
    assert render(found, "github").startswith("::warning ")
    assert "::error" not in render(found, "github")
    assert "<failure" not in render(found, "junit")
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
    mixed = [*runs.of(*BASE[:3]), *runs.of(*BASE[3:], model=model(66))]
    assert only(compare_records(runs.of(*BASE), mixed)).verdict is Verdict.NOT_COMPARABLE


@pytest.mark.parametrize(
    ("flops", "words"),
    [
        (3_300_000, "+10.0 %"),
        (3_003_000, "+0.1 %"),
        (3_001_000, "3,000,000 → 3,001,000"),  # which would be +0.0 %
    ],
)
def test_small_changes_of_flops_are_told_by_both_numbers(runs, flops, words):
    base, new = (runs.of(*BASE, model=model(n)) for n in (3_000_000, flops))
    reason = only(compare_records(base, new)).judgement.reason
    assert words in reason
    assert f" 0.3000 → {flops / 1e7:.4f} " in reason  # GFLOP/s at 100 images/sec


def test_what_else_differs_and_rates_that_are_unknown(runs):
    slow = {"step_seconds": (), "losses": ()}
    base = runs.of(*BASE, model=model(3_000_000))
    new = runs.of(*BASE, model=model(3_300_000), **OTHER_CPU)
    reason = only(compare_records(base, new)).judgement.reason
    assert "Also different: cpu_model is " in reason
    assert "GFLOP/s" in reason
    new = [runs(100.0, model=model(3_300_000), **slow)]
    reason = only(compare_records(base, new)).judgement.reason
    assert reason.startswith("Different network: ")
    assert "GFLOP/s" not in reason
    # Evaluations and forward passes are told by the FLOPs of a forward pass.
    both = (runs.of(*BASE, model=model(n), flags={"forward_only": True}) for n in (3_000, 6_000))
    assert "+100.0 % FLOPs per image" in only(compare_records(*both)).judgement.reason
    wider = runs.of(*BASE, model=model(3_000_000, parameters=11))
    reason = only(compare_records(base, wider)).judgement.reason
    assert "10 → 11 parameters, the same FLOPs per image" in reason


@pytest.mark.parametrize(("metric", "name"), [("throughput", "Speed"), ("startup", "Startup")])
def test_the_metric_that_is_not_judged_is_named(runs, metric, name):
    base, new = (runs.of(*BASE, model=model(n)) for n in (33, 66))
    reason = only(compare_records(base, new, Criteria(metrics=[metric]))).judgement.reason
    assert f" {name} not judged." in reason
