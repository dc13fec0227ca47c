"""Logs of MLPerf Training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from imports import benchmark_rows, read

GOLDEN = Path(__file__).parents[2] / "golden"


def event(key, value=None, seconds=0.0, **metadata):
    time = {"time_ms": 1_700_000_000_000 + int(1000 * seconds), "event_type": "POINT_IN_TIME"}
    content = {"namespace": "", **time, "key": key, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps(content)}\n"


def log(status="success", *, lr=10.0, seed=1):
    return "".join(
        [
            event("submission_benchmark", "resnet"),
            event("submission_platform", "8x Fast"),
            *(event("global_batch_size", 4096), event("opt_base_learning_rate", lr)),
            *(event("seed", seed), event("run_start", seconds=10.0)),
            "Epoch 1, some other line\n",
            *(event("tracked_stats", {"throughput": one}, 20.0, step=1) for one in (900.0, 1100.0)),
            *(event("eval_accuracy", 0.759, 70.0), event("run_stop", seconds=71.5, status=status)),
        ]
    )


def test_time_to_train_and_throughput(tmp_path):
    records, reasons = read(tmp_path, log())
    assert reasons == []
    assert benchmark_rows(records) == [
        ("resnet time to train 4096", 61.5, None),
        ("resnet throughput 4096", 1000.0, None),
    ]
    assert [one.imported.kind for one in records] == ["benchmark_seconds", "benchmark_score"]
    assert records[0].environment == {
        **{"environment_name": "8x Fast", "context_opt_base_learning_rate": 10.0}
    }
    assert records[0].started_at == "2023-11-14T22:13:30+00:00"


def test_runs_without_success_have_no_value(tmp_path):
    start = event("init_start")
    killed = start + log().partition("Epoch")[0]
    text = start + log("aborted") + killed + start + log(seed=2)
    records, reasons = read(tmp_path, text)
    assert len(records) == 2
    assert reasons == [
        "'resnet' ended with the status aborted",
        "'resnet' has no end (run_stop)",
    ]


@pytest.mark.parametrize("time", ["", '"time_ms": "late", ', '"time_ms": -1, '])
def test_a_line_without_a_time_is_named(tmp_path, time):
    wrong = f':::MLLOG {{{time}"key": "seed", "value": 2}}'
    cut = ':::MLLOG {"time_ms": 17000'
    records, reasons = read(tmp_path, f"{wrong}\n{cut}\n{log()}")
    assert len(records) == 2
    assert [line in reason for line, reason in zip((wrong, cut), reasons, strict=True)] == [
        True
    ] * 2


def test_values_after_the_end_belong_to_the_run(tmp_path):
    late = event("tracked_stats", {"throughput": 1600.0}, 80.0) + event("train_samples", 1, 80.0)
    cleared = ':::MLLOG {"namespace": "", "time_ms": 0, "key": "cache_clear", "value": true}\n'
    records, reasons = read(tmp_path, cleared + log() + late + cleared + log(lr=20.0))
    throughputs = [
        one.imported.values["benchmark_score"]
        for one in records
        if "throughput" in one.config["benchmark"]
    ]
    assert throughputs == [1200.0, 1000.0]
    rates = [one.environment["context_opt_base_learning_rate"] for one in records]
    assert rates == [10.0, 10.0, 20.0, 20.0]
    assert reasons == []


@pytest.mark.parametrize("block", [1, 3, 100])
def test_a_log_of_several_processes_without_tags_is_refused(tmp_path, block):
    lines = log().splitlines(keepends=True)
    parts = [lines[at : at + block] for at in range(0, len(lines), block)]
    records, reasons = read(tmp_path, "".join(line for part in parts for line in part * 2))
    if block < len(lines):
        assert not records
        assert ["mpirun --tag-output" in reason for reason in reasons] == [True]
    else:  # They are two runs one after the other.
        assert len(records) == 4
        assert reasons == []


def test_lists_of_hyperparameters_separate_and_seeds_do_not(tmp_path):
    texts = [
        event("opt_learning_rate_decay_boundary_epochs", epochs)
        + event("run_set_random_seed", seed)
        + log()
        for seed, epochs in enumerate(([30, 60], [30, 60], [40, 60]))
    ]
    same, again, other = (read(tmp_path, text)[0][0].environment for text in texts)
    assert same == again
    assert other == {**same, "context_opt_learning_rate_decay_boundary_epochs": "[40, 60]"}


def test_the_first_rounds(tmp_path):
    lines = [
        ":::MLPv0.5.0 resnet 1541000000.500000000 (a.py:1) run_start",
        ':::MLPv0.5.0 resnet 1541000100.500000000 (a.py:9) run_stop: {"success": true}',
    ]
    records, reasons = read(tmp_path, "\n".join(lines))
    assert benchmark_rows(records) == [("resnet time to train", 100.0, None)]
    assert reasons == []


@pytest.mark.parametrize("name", ["training", "evaluation"])
def test_a_log_of_tf_cnn_benchmarks_with_such_lines_is_its_own(tmp_path, name):
    text = (
        ":::MLPv0.5.0 resnet 1541000000.5 (a.py:1) run_start\n"
        + (GOLDEN / f"{name}.txt").read_text()
    )
    (record,), _ = read(tmp_path, text)
    assert record.imported.program == "tf_cnn_benchmarks"
