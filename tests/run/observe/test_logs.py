"""--benchmark_log_dir, and the times of evaluations in records.

Tests cnnbench/run/driver/evaluation.py and
cnnbench/run/driver/observers/benchmark_log.py.
"""

import json
from types import SimpleNamespace

from cnnbench.records.run import RunRecord
from cnnbench.run.driver.evaluation import Evaluator
from cnnbench.run.driver.observers.benchmark_log import BenchmarkLog

DURING = ("--eval_during_training_every_n_steps=2", "--num_eval_batches=2")


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_of_official_models(run, tmp_path):
    folder = tmp_path / "logs"
    flags = [f"--benchmark_log_dir={folder}", "--benchmark_test_id=nightly", "--num_batches=4"]
    out, _ = run(*flags, "--num_gpus=2", "--display_every=2", "--print_training_accuracy", *DURING)
    (about,) = _lines(folder / "benchmark_run.log")
    assert (about["model_name"], about["dataset"]) == ("trivial", {"name": "cifar10 (synthetic)"})
    assert about["test_id"] == "nightly"
    parameters = {one.pop("name"): one for one in about["run_parameters"]}
    assert parameters["batch_size"] == {"long_value": 4}
    assert parameters["batch_size_per_device"] == {"long_value": 2}
    assert parameters["devices"] == {"string_value": "['/cpu:0', '/cpu:1']"}
    assert parameters["mode"] == {"string_value": "training + evaluation"}
    assert {"dataset", "single_sess", "rewrite_config", "session_config"} < parameters.keys()
    assert parameters["forward_only"] == {"bool_value": False}
    assert parameters["optimizer"] == {"string_value": "sgd"}
    rows = _lines(folder / "metric.log")
    rates = [row for row in rows if row["name"] == "current_examples_per_sec"]
    # A row for step 1 and for every second, as printed; two steps of warm-up come first.
    assert [row["global_step"] for row in rates] == [1, 2, 4]
    of_steps = [row for row in rows if row["name"] == "top_5_accuracy"]
    assert [row["global_step"] for row in of_steps] == [1, 2, 4]
    printed = [line.split()[2] for line in out.splitlines() if "images/sec: " in line]
    assert [f"{row['value']:.1f}" for row in rates] == printed
    accuracies = [row for row in rows if row["name"] == "eval_top_1_accuracy"]
    assert [row["global_step"] for row in accuracies] == [2, 6]
    (average,) = [row for row in rows if row["name"] == "average_examples_per_sec"]
    assert average["value"] > 0
    assert average["global_step"] == 4
    assert average["unit"] == "examples per second"
    # Another run adds its metrics and replaces what is known of the run.
    BenchmarkLog(str(folder), {"test_id": None}).table_row_printed(1, float("nan"), {})
    *before, row = _lines(folder / "metric.log")
    assert before == rows
    assert row["value"] == "nan"  # which is JSON
    assert _lines(folder / "benchmark_run.log") == [{"test_id": None}]


def test_an_evaluation_begins_with_an_untimed_step(run, tmp_path, monkeypatch):
    """The first call of the traced step is slow; no rate has it."""
    calls, clock = [], SimpleNamespace(now=0.0)
    original = Evaluator.__init__

    def slow(self, *arguments):
        original(self, *arguments)
        function = self._function

        def counted(*batches):
            calls.append(1)
            clock.now += 100.0 if len(calls) == 1 else 1.0
            return function(*batches)

        self._function = counted

    monkeypatch.setattr(Evaluator, "__init__", slow)
    scripted = SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr("cnnbench.run.driver.evaluation.time", scripted)
    path = tmp_path / "record.json"
    during = ["--eval_during_training_every_n_steps=2", "--num_eval_batches=3"]
    run(*during, "--num_batches=4", f"--result_json={path}")
    evaluations = RunRecord.from_json(path.read_text()).evaluations
    assert len(calls) == 1 + 2 * 3
    assert [(one.examples, one.images_per_sec) for one in evaluations] == [(6, 6 / 3.0)] * 2


def test_xla_has_no_folder_whose_name_tensorflow_would_split(tmp_path, call, monkeypatch):
    (tmp_path / "my runs").mkdir()
    monkeypatch.chdir(tmp_path / "my runs")
    refused = call("--model=trivial", "--xla", "--xla_cache_dir=cache", code=2).err
    assert "--xla_cache_dir=cache: must have no spaces or quotes" in refused
    assert not any((tmp_path / "my runs").iterdir())
