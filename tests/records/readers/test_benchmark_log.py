"""Logs of TensorFlow's official models in --benchmark_log_dir."""

from __future__ import annotations

import json

from cnnbench.records.metrics.figures import throughput
from cnnbench.records.readers import read_results


def line(name, value, step):
    time = f"2018-06-01T10:{step // 100:02}:00.5Z"
    of = {"name": name, "value": value, "unit": None, "global_step": step}
    return json.dumps({**of, "timestamp": time, "extras": []}) + "\n"


def test_a_run_of_an_official_model_is_one_record(tmp_path):
    # The hook of the official models writes both speeds at each step.
    lines = [
        line(name, speed + step / 100, step)
        for step in range(100, 1200, 100)
        for name, speed in (
            ("average_examples_per_sec", 800.0),
            ("current_examples_per_sec", 900.0),
        )
    ]
    lines += [line("accuracy", 0.76, 1100), line("accuracy_top_5", 0.93, 1100)]
    lines.append(line("loss", 1.5, 1100))
    about = {
        **{"model_name": "resnet", "dataset": {"name": "imagenet"}},
        **{"run_date": "2018-06-01T10:00:00.0Z", "tensorflow_version": {"version": "1.9.0"}},
        "run_parameters": [
            {"name": "resnet_size", "string_value": "50"},
            {"name": "batch_size", "long_value": 256},
            {"name": "dtype", "string_value": "<dtype: 'float16'>"},
        ],
    }
    (tmp_path / "metric.log").write_text("".join(lines))
    (tmp_path / "benchmark_run.log").write_text(json.dumps(about) + "\n")
    (record,), skipped = read_results(str(tmp_path / "metric.log"))
    assert not skipped
    assert (record.status, throughput(record)) == ("ok", 811.0)
    assert record.imported.values["top_1"] == 0.76
    assert record.imported.values["top_5"] == 0.93
    assert len(record.imported.printed) == 11
    known = {name: value for name, value in record.config.items() if value is not None}
    assert known == {
        **{"model": "resnet", "data_name": "imagenet", "data_dir": "unknown"},
        **{"precision": "fp16", "eval": False, "forward_only": False, "cross_replica_sync": True},
        **{"parameter_resnet_size": "50", "parameter_batch_size": "256"},
        **{"parameter_dtype": "<dtype: 'float16'>", "imported_from": "tf_cnn_benchmarks"},
    }
