"""Logs of NVIDIA's DLLogger."""

from __future__ import annotations

import json

from imports import benchmark_rows, read

from cnnbench.records.readers import read_results

TIME = {"timestamp": "1700000000.5", "datetime": "2023-11-14 22:13:20.5", "elapsedtime": "1.0"}


def line(**content):
    return f"DLLL {json.dumps({**TIME, **content})}\n"


def log(data, step=(), parameters=None, metadata=None):
    parameters = {"arch": "resnet50", "batch_size": 64, "seed": 1, **(parameters or {})}
    lines = [line(type="LOG", step="PARAMETER", data={**parameters, "data": "/imagenet"})]
    metadata = {
        "train_throughput": {"unit": "images/s"},
        "latency": {"unit": "ms"},
        **(metadata or {}),
    }
    lines += [line(type="METADATA", metric=name, metadata=of) for name, of in metadata.items()]
    lines.append(line(type="LOG", step=[0, 10], data={"train_throughput": 1.0}))
    return "".join([*lines, line(type="LOG", step=[*step], data=data)])


def test_the_summary_becomes_records(tmp_path):
    text = log({"train_throughput": 812.5, "latency": 20.0, "loss": 1.5, "top1": 76.0})
    text = text.replace("DLLL", "Epoch 1\nDLLL", 1)
    records, reasons = read(tmp_path, text)
    assert benchmark_rows(records) == [("train_throughput", 812.5, None), ("latency", 0.02, None)]
    assert [one.imported.kind for one in records] == ["benchmark_score", "benchmark_seconds"]
    assert records[0].environment == {
        **{"context_arch": "resnet50", "context_batch_size": 64, "unit": "images/s"}
    }
    assert records[0].started_at == "2023-11-14T22:13:20.500000+00:00"
    assert [reason.partition(" ")[0] for reason in reasons] == ["'loss'", "'top1'"]
    assert "no GOAL; --higher_is_better=top1 says" in reasons[1]
    (tmp_path / "run.json").write_text(text)
    assert [one.line for one in read_results(str(tmp_path / "run.json"))[1]] == [0, 0]


def test_the_direction_is_in_the_file_or_said_by_the_user(tmp_path):
    metadata = {"loss": {"GOAL": "MINIMIZE"}, "f1": {"unit": None, "GOAL": "MAXIMIZE"}}
    text = log({"loss": 1.5, "f1": 0.9, "top1": 76.0}, metadata=metadata)
    records, reasons = read(tmp_path, text, higher_is_better=("top*",))
    kinds = {one.config["benchmark"]: one.imported.kind for one in records}
    assert kinds == {
        "loss": "benchmark_number",
        **{"f1": "benchmark_score", "top1": "benchmark_score"},
    }
    assert reasons == []


def test_runs_of_one_file_and_other_parameters(tmp_path):
    text = log({"train_throughput": 1.0}) + log(
        {"train_throughput": 2.0}, parameters={"batch_size": 128, "seed": 2}
    )
    records, _ = read(tmp_path, text)
    assert records[0].imported.part == 1
    assert [one.environment["context_batch_size"] for one in records] == [64, 128]
    assert all("context_seed" not in one.environment for one in records)


def test_a_metric_that_occurs_twice_in_a_run_is_not_averaged(tmp_path):
    again = line(type="LOG", step=[], data={"train_throughput": 9.0})
    records, _ = read(tmp_path, log({"train_throughput": 1.0}) + again + log({"latency": 20.0}))
    assert benchmark_rows(records) == [
        *(("train_throughput", 1.0, None), ("train_throughput 2", 9.0, None)),
        ("latency", 0.02, None),
    ]
    # A run after it with the same parameters is a repetition.
    both = log({"train_throughput": 1.0}) + log({"train_throughput": 2.0})
    first, second = read(tmp_path, both)[0]
    assert first.config == second.config


def test_several_lines_of_parameters_are_those_of_one_run(tmp_path):
    more = line(type="LOG", step="PARAMETER", data={"SEED": 7, "precision": "fp16"})
    killed = log({}, step=[1])  # It has no summary.
    text = more + killed + more + log({"latency": 20.0}) + more + log({"latency": 21.0})
    first, second = read(tmp_path, text)[0]
    assert first.config == second.config
    assert first.environment == second.environment
    assert first.environment == {
        **{"context_precision": "fp16", "context_arch": "resnet50", "context_batch_size": 64}
    }


def test_lists_of_parameters_separate(tmp_path):
    environments = [
        read(tmp_path, log({"train_throughput": 1.0}, parameters={"gpus": gpus}))[0][0].environment
        for gpus in ([0], [0, 1])
    ]
    assert [one["context_gpus"] for one in environments] == ["[0]", "[0, 1]"]


def test_a_log_without_a_summary_is_named(tmp_path):
    records, reasons = read(tmp_path, log({"train_throughput": 1.0}, step=[1]))
    assert not records
    assert reasons == ["'DLLL' no line is a summary (a line with an empty step)"]
