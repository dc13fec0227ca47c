"""The table at the end, the bounds and the exit code.

Tests cnnbench/campaigns/sweep/phrases.py.
"""

from __future__ import annotations

import json
import math
import re

import pytest

from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import main_result_text
from cnnbench.campaigns.sweep.plan import SweepItem
from cnnbench.campaigns.sweep.run import SweepResult
from cnnbench.campaigns.sweep.summary import (
    detection_advice,
    exit_code,
    summary_rows,
    table_text,
)
from cnnbench.records.load import record_from_json
from cnnbench.records.run import Batch


def went_well(case, repeat, path):
    return SweepResult(SweepItem(case, repeat), path, ProcessResult(0, 1.0, status="ok"))


@pytest.fixture
def rows(plan, tmp_path, make_record):
    """Rows of a suite, given per configuration the step seconds of its processes, and the batch
    sizes of repeats that have another one than 10.
    """

    def rows(text, steps, sizes=(), **changes):
        made = plan(text)
        results = []
        for case in made.cases:
            for repeat, seconds in enumerate(steps[case.name], start=1):
                path = tmp_path / f"{case.key}-{repeat}.json"
                if seconds is None:
                    ended = ProcessResult(-9, 9.0, status="timed_out", message="killed after 9 s")
                    results.append(SweepResult(SweepItem(case, repeat), path, ended))
                    continue
                series = {"step_seconds": (63 / 64 * seconds, 66 / 64 * seconds, 63 / 64 * seconds)}
                size = dict(sizes).get(repeat, 10)
                record = make_record(
                    batch=Batch(per_device=size, global_=size), **{**series, **changes}
                )
                path.write_text(json.dumps(record.to_dict()))
                results.append(went_well(case, repeat, path))
        return summary_rows(made.cases, results)

    return rows


TWO = "entries: [{name: a, matrix: {num_gpus: [1, 2]}}]"
QUIET = [0.1 * factor for factor in (1, 1.01, 0.99, 1.02, 0.98, 1, 1.01)]
NOISY = [0.1 * factor for factor in (1, 1.2, 0.85, 1.3, 0.9, 1, 1.1)]


WILD = [0.1 * factor for factor in (1, 3, 0.4, 2, 0.5, 1, 1.1)]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (QUIET, r" \(a num_gpus=.\): 7 processes of BASE and of NEW find a change of -20 % in"),
        (NOISY, r" \(a num_gpus=2\): to find .* more in all; a quieter machine, or again with "),
        (WILD, r"-20 % .* is found on a quieter machine, not by more processes$"),
        ([0.1], r" \(a num_gpus=1\): 7 processes of BASE and of NEW find a change of -20 %"),
    ],
)
def test_advice_names_the_scatter_and_what_it_takes(rows, plan, second, words):
    made = rows(TWO, {"a num_gpus=1": QUIET, "a num_gpus=2": second})
    text = detection_advice(made, plan(TWO).cases, lambda repeats: f"again with {repeats}")
    assert re.search(words, text)
    if second is NOISY:
        needed = int(text.rpartition(" ")[2])
        more = 2 * (needed - 7)
        assert f" {needed} processes of BASE and of NEW, {more} processes more in all" in text


def test_no_advice_from_one_process_each(rows, plan):
    made = rows(TWO, {"a num_gpus=1": [0.1], "a num_gpus=2": [0.1]})
    assert detection_advice(made, plan(TWO).cases, str) == ""


ALTERNATIVES = """
entries:
  - {name: a, alternatives: true, matrix: {num_gpus: [1, 2, 3, 4]}}
  - {name: b, flags: {batch_size: 3}}
"""


def test_alternatives_have_an_interval_and_a_share_of_the_fastest(rows, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    steps = {"a num_gpus=1": QUIET, "a num_gpus=2": [0.2] * 6, "a num_gpus=3": [0.4]}
    made = rows(ALTERNATIVES, {**steps, "a num_gpus=4": [None], "b": [0.01]})
    cells = [re.split("  +", line) for line in table_text(made, ["c: left out: no"]).splitlines()]
    assert [line[:6] for line in cells[:-2]] == [
        [
            "configuration",
            "batch",
            "median images/sec",
            "95 % interval",
            "of the fastest",
            "spread",
        ],
        ["a num_gpus=1", "10", "100.0", "98.04 to 102.0", "100.0 %", "4.0 %"],
        ["a num_gpus=2", "10", "50.00", "50.00 to 50.00", "50.0 %", "0.0 %"],
        # Too few processes for an interval.
        ["a num_gpus=3", "10", "25.00", "-", "25.0 %", "-"],
        ["a num_gpus=4", "-", "-", "-", "-", "-"],
        # Not an alternative, although it is faster.
        ["b", "10", "1,000", "-", "-", "-"],
    ]
    assert cells[-1] == ["c: left out: no"]


MATRIX = "entries: [{name: a, repeats: 3, matrix: {num_gpus: [16, 2, 1]}}]"


def test_golden_table(rows, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    made = rows(
        MATRIX,
        {"a num_gpus=1": [0.1, 0.2, 0.4], "a num_gpus=2": [0.001, None], "a num_gpus=16": [None]},
    )
    text = table_text(made).replace(str(tmp_path), "DIR")
    keys = {row.name: row.problems for row in made}
    assert text.splitlines()[:4] == [
        "configuration  batch  median images/sec   spread  runs            in reports",
        "a num_gpus=1      10              50.00  150.0 %  3 ok            lenet, batch 8, 1 cpu",
        "a num_gpus=2      10             10,000        -  1 ok, 1 failed  lenet, batch 8, 1 cpu",
        "a num_gpus=16      -                  -        -  0 ok, 1 failed  -",
    ]
    assert len(text.splitlines()) == 6
    assert text.splitlines()[4].startswith("failed: a num_gpus=2 #2: killed after 9 s (DIR/")
    assert all(problem.endswith(".log)") for problem in keys["a num_gpus=16"])
    assert exit_code(made) == 4


def test_batch_sizes_that_differ_have_rows_of_their_own(rows, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    steps = {"a": [0.1, 0.2, 0.2, None]}
    text = "entries: [{name: a, repeats: 4, flags: {find_batch_size: true}, bounds: %s}]"
    text %= "{throughput: {min: 80}}"
    made = rows(text, steps, {1: 20, 3: 20})
    cells = [re.split("  +", line) for line in table_text(made).splitlines()[:4]]
    assert [line[:6] for line in cells] == [
        ["configuration", "batch", "median images/sec", "spread", "runs", "bounds"],
        ["a", "-", "-", "-", "0 ok, 1 failed", "throughput unknown"],
        ["a batch_size=10", "10", "50.00", "-", "1 ok", "throughput 50.00 below 80.00"],
        ["a batch_size=20", "20", "150.0", "66.7 %", "2 ok", "ok"],
    ]
    assert exit_code(made) == 1
    # One size: failed processes are in its row.
    (row,) = rows(text, steps)
    assert (row.name, row.batch_size, row.ok, row.failed) == ("a", 10, 3, 1)


BOUNDED = "entries: [{name: a, repeats: 3, flags: {model: lenet}, bounds: %s}]"


THREE = [0.1, 0.2, 0.4]


@pytest.mark.parametrize(
    ("bounds", "steps", "code", "cell"),
    [
        ("{throughput: {min: 50}}", THREE, 0, "ok"),
        ("{throughput: {min: 49.9, max: 50.1}, step_seconds: {max: 0.2}}", THREE, 0, "ok"),
        ("{throughput: {min: 50.1}}", THREE, 1, "throughput 50.00 below 50.10"),
        ("{throughput: {max: 49}}", THREE, 1, "throughput 50.00 above 49.00"),
        ("{mfu: {min: 0.1}}", THREE, 3, "mfu unknown"),
        (
            "{mfu: {min: 0.1}, throughput: {max: 1}}",
            THREE,
            1,
            "mfu unknown; throughput 50.00 above 1.000",
        ),
        ("{final_loss: {max: 10}}", THREE, 0, "ok"),
        # A violated bound counts before a failed run, and that before an unknown value.
        ("{throughput: {min: 99}}", [0.2, None], 1, "throughput 50.00 below 99.00"),
        ("{mfu: {min: 1}}", [0.2, None], 4, "mfu unknown"),
    ],
)
def test_bounds_are_of_the_median_over_the_processes(rows, bounds, steps, code, cell):
    made = rows(BOUNDED % bounds, {"a": steps})
    assert exit_code(made) == code
    (row,) = [line for line in table_text(made).splitlines() if line.startswith("a ")]
    assert f"  {cell}  " in f"{row}  "


def test_a_loss_that_is_no_number_is_within_no_bound(rows):
    made = rows(BOUNDED % "{final_loss: {max: 10}}", {"a": [0.2]}, losses=(1.0, 1.0, math.nan))
    assert exit_code(made) == 1


def test_pauses_that_the_median_step_hides_are_named(rows):
    pauses = (0.1, 0.1, 0.4) * 10
    made = rows("entries: [{name: a}]", {"a": [0.1]}, step_seconds=pauses, losses=())
    assert "a: every third step takes 300.0 ms more" in table_text(made)
    assert made[0].pauses.endswith("; 100.0 images/sec at the median step")
    assert made[0].throughputs.median == pytest.approx(50)


def test_a_record_that_has_gone_is_a_failure(rows, plan, tmp_path):
    case = plan("entries: [{name: a}]").cases[0]
    made = summary_rows([case], [went_well(case, 1, tmp_path / "gone.json")])
    assert (made[0].ok, made[0].failed) == (0, 1)
    assert exit_code(made) == 4


def test_headlines(make_record, measured):
    assert main_result_text(make_record()) == "ok 30.00 images/sec"
    assert main_result_text(make_record(step_seconds=(), losses=())) == "ok"
    assert main_result_text(measured(0.001, 0.0005)) == "ok up to 3.000 GB/s"
    assert main_result_text(measured()) == "ok"


@pytest.fixture
def measured(reductions):
    """Makes all-reduce measurements of 1 MB on four devices, one point per time."""

    def make(*seconds):
        points = (reductions.point(None, bytes=1_000_000, seconds=(one,)) for one in seconds)
        return reductions(*points)

    return make


def test_all_reduces_have_a_column_of_their_own(plan, tmp_path, make_record, measured):
    made = plan(
        """
        entries:
          - {name: b, flags: {model: lenet}}
          - {name: a, command: allreduce, repeats: 2, flags: {sizes: 4K}}
        """
    )
    run, reduce = made.cases
    files = []
    for number, record in enumerate((make_record(), measured(0.001), measured(0.002))):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(record.to_json())
    results = [went_well(run, 1, files[0])]
    results += [went_well(reduce, repeat, files[repeat]) for repeat in (1, 2)]
    assert table_text(summary_rows(made.cases, results)).splitlines() == [
        "configuration  batch  median images/sec  median bus GB/s  spread  runs  in reports",
        "a                  -                  -            1.125  66.7 %  2 ok  -",
        # As compare and report name it, by its flags.
        "b                  4              30.00                -       -  1 ok  "
        "lenet, batch 8, 1 cpu",
    ]
    assert table_text(summary_rows([reduce], results[1:])).splitlines() == [
        "configuration  median bus GB/s  spread  runs",
        "a                        1.125  66.7 %  2 ok",
    ]
    record = measured(0.1)
    assert record_from_json(record.to_dict()) == record
