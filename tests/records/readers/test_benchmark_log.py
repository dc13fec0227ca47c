"""Logs of TensorFlow's official models in --benchmark_log_dir."""

from __future__ import annotations

import json

from cnnbench.judge.compare.configuration import Configuration
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


def test_both_files_of_a_folder_are_one_run_and_killed_ones_stand_before_it(tmp_path):
    # Written from the logger's source (tensorflow/models, official/utils/logs/logger.py).
    parameters = {
        **{"batch_size": {"long_value": 16}, "batch_size_per_device": {"float_value": 8.0}},
        **{"dataset": {"string_value": "imagenet (synthetic)"}, "model": {"string_value": "vgg11"}},
        "devices": {"string_value": "['/gpu:0', '/gpu:1']"},
    }
    gpu = {"count": 2, "model": "Tesla P100"}
    cpu = {"cpu_info": "Xeon", "num_cores": 8}
    machine = {"gpu_info": gpu, "cpu_info": cpu, "memory_total": 2**34}
    about = {
        **{"model_name": "vgg11", "machine_config": machine},
        "tensorflow_version": {"version": "1.9.0", "git_hash": "b'v1.9-0'"},
        "tensorflow_environment_variables": [{"name": "TF_ENABLE_X", "value": "1"}],
        "run_parameters": [{"name": name, **one} for name, one in parameters.items()],
    }
    speeds = [("current_examples_per_sec", 90.0, 1), ("current_examples_per_sec", 95.0, 10)]
    # The first run was killed. The file is appended to, the other one is replaced.
    lines = [*speeds, *speeds, ("average_examples_per_sec", 94.5, 10), ("loss", 1.0, 10)]
    (tmp_path / "metric.log").write_text("".join(line(*one) for one in lines))
    (tmp_path / "benchmark_run.log").write_text(json.dumps(about) + "\n")
    found, other = (
        read_results(str(tmp_path / f"{name}.log")) for name in ("metric", "benchmark_run")
    )
    assert [one.run_id for one in found[0]] == [one.run_id for one in other[0]]
    killed, record = found[0]
    assert (killed.status, killed.config["model"], killed.environment) == ("interrupted", None, {})
    assert record.status == "ok"
    assert record.started_at == "2018-06-01T10:00:00.500000+00:00"
    assert (record.config["model"], record.batch.global_, throughput(record)) == ("vgg11", 16, 94.5)
    assert [one.images_per_sec for one in record.imported.printed] == [90.0, 95.0]
    assert record.environment == {
        **{"tensorflow_version": "1.9.0", "tensorflow_git_version": "v1.9-0"},
        **{"env_TF_ENABLE_X": "1", "gpu_names": ["Tesla P100"] * 2},
        **{"memory_bytes": 2**34, "cpu_model": "Xeon", "logical_cpus": 8},
    }


def read_lines(folder, *lines):
    (folder / "metric.log").write_text("".join(lines))
    return read_results(str(folder / "metric.log"))


def test_a_folder_without_a_description_has_runs_of_an_unknown_network(tmp_path):
    (record,), _ = read_lines(
        tmp_path,
        line("current_examples_per_sec", 91.0, 100),
        line("train_accuracy", 0.5, 100),
        line("average_examples_per_sec", 100.0, 1000),
    )
    assert (record.status, throughput(record), record.config["model"]) == ("ok", 100.0, None)
    assert len(record.imported.printed) == 1


def test_lines_of_two_processes_are_refused(tmp_path):
    lines = [line("current_examples_per_sec", 90.0, step) for step in (1, 10, 20)]
    lines.append(line("average_examples_per_sec", 80.0, 20))
    records, (skipped,) = read_lines(tmp_path, *(one for text in lines for one in (text, text)))
    assert not records
    assert "mpirun --tag-output" in skipped.reason


def test_runs_that_were_killed_and_started_again_are_not_mixed(tmp_path):
    steps = (1, 1, 10, 1, 10, 20)
    lines = [line("current_examples_per_sec", 90.0, step) for step in steps]
    lines.append(line("average_examples_per_sec", 80.0, 20))
    records, skipped = read_lines(tmp_path, *lines)
    assert [one.status for one in records] == ["interrupted", "interrupted", "ok"]
    assert not skipped
    # Their networks are unknown, so that none is a repetition of another.
    assert len({Configuration.of(one).key for one in records}) == 3


def test_evaluations_have_the_speed_of_all_their_examples(tmp_path):
    speeds = [line("eval_average_examples_per_sec", speed, 1) for speed in (50.0, 100.0)]
    accuracies = [line(f"eval_top_{k}_accuracy", value, 1) for k, value in ((1, 0.5), (5, 0.75))]
    (record,), _ = read_lines(tmp_path, *speeds, *accuracies)
    assert record.status == "ok"
    assert throughput(record) == 2 / (1 / 50 + 1 / 100)
    assert record.imported.values["accuracy"] == record.imported.values["top_1"] == 0.5
    assert record.imported.values["top_5"] == 0.75
    # Behind rows of a training they are those of its evaluations.
    (record,), _ = read_lines(tmp_path, line("current_examples_per_sec", 9.0, 1), *speeds)
    assert (record.status, throughput(record)) == ("interrupted", None)


def test_lines_that_are_no_values_are_named(tmp_path):
    (record,), skipped = read_lines(
        tmp_path,
        line("current_examples_per_sec", 9.0, 1),
        line("current_examples_per_sec", -1.0, 2),
        line("loss", None, 2),
        line("x", 1.0, 1).replace("1", "true"),
        "not JSON\n",
        "\n",
    )
    assert [one.line for one in skipped] == [2, 4, 5]
    assert skipped[0].reason.endswith(" is not a speed")
    assert [one.step for one in record.imported.printed] == [1]


def test_a_run_of_cnnbench_is_described_by_its_own_record(tmp_path, runs):
    own = runs(None, started_at="2018-06-01T10:02:00Z")
    about = {"record": own.to_dict(), "run_date": "2018-06-01T10:02:00.5Z"}
    (tmp_path / "benchmark_run.log").write_text(json.dumps(about))
    earlier = line("current_examples_per_sec", 50.0, 100)
    rows = [
        line("current_examples_per_sec", speed, step) for speed, step in ((90.0, 200), (95, 210))
    ]
    # The average includes the time between the steps.
    total = line("average_examples_per_sec", 80.0, 210)
    records, skipped = read_lines(tmp_path, earlier, *rows, total)
    assert not skipped
    assert [one.status for one in records] == ["interrupted", "ok"]
    assert [throughput(one) for one in records] == [None, 95.0]
    assert [one.config == own.config for one in records] == [False, True]
    assert records[1].imported.values["total_images_per_sec"] == 80.0
    assert [one.step for one in records[1].imported.printed] == [200, 210]
    assert [one.imported.part for one in records] == [1, 2]
    # A run that ended before its first row has no line, and none of those of an earlier run.
    records, _ = read_lines(tmp_path, earlier)
    assert [(one.status, len(one.imported.printed)) for one in records] == [
        *(("interrupted", 1), ("interrupted", 0))
    ]
    assert records[1].config == own.config
    (record,), _ = read_lines(tmp_path, *rows)
    assert (record.status, throughput(record)) == ("interrupted", None)


def test_workers_of_a_job_have_no_batch_of_the_whole_job(tmp_path):
    for devices, whole in (("['/gpu:0']", 8), ("['/job:worker/task:0/gpu:0']", None)):
        parameters = {"model": "vgg11", "batch_size": 8, "batch_size_per_device": 8}
        about = {
            "run_parameters": [
                {"name": "devices", "string_value": devices},
                *({"name": name, "value_value": value} for name, value in parameters.items()),
            ]
        }
        (tmp_path / "benchmark_run.log").write_text(json.dumps(about))
        (record,), _ = read_lines(tmp_path, line("average_examples_per_sec", 80.0, 1))
        assert (record.config["model"], record.config["batch_size"]) == ("vgg11", 8)
        assert (record.batch and record.batch.global_) == whole
