"""The benchmark log, as TensorFlow's official models and tf_cnn_benchmarks write it.

`benchmark_run.log` is one JSON object about the run, which is replaced atomically. `metric.log` has
one JSON object per line; lines are appended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.records.files import collecting_write_errors, write_text
from cnnbench.records.run import Evaluation
from cnnbench.run.driver.observers.observer import Observer

_RUN, _METRICS = "benchmark_run.log", "metric.log"
_RATE = "examples per second"
_KINDS = {bool: "bool_value", int: "long_value", float: "float_value"}
_ACCURACIES = {"top_1": "top_1_accuracy", "top_5": "top_5_accuracy"}
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class BenchmarkLog(Observer):
    """Creates a folder, and writes `benchmark_run.log` and `metric.log` into it.

    `about` is the content of `benchmark_run.log`, see `describe_run`.
    """

    def __init__(self, folder: str, about: Mapping[str, Any]) -> None:
        self._folder, self._last_row = Path(folder), 0
        with collecting_write_errors("benchmark_log_dir", folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        write_text("benchmark_log_dir", str(self._folder / _RUN), json.dumps(about) + "\n")

    def table_row_printed(
        self, step: int, images_per_sec: float, metrics: Mapping[str, float]
    ) -> None:
        """Logs the values of a row of the table, with the row's step number."""
        self._last_row = step
        self._log_metric("current_examples_per_sec", images_per_sec, step, _RATE)
        for name, value in metrics.items():
            self._log_metric(_ACCURACIES.get(name, name), value, step)

    def evaluation_completed(self, evaluation: Evaluation) -> None:
        """Logs the accuracies and the rate of an evaluation."""
        step = evaluation.global_step
        accuracies = {"top_1": evaluation.top_1, "top_5": evaluation.top_5}
        for name, value in {**accuracies, **evaluation.metrics}.items():
            if value is not None:
                self._log_metric(f"eval_{_ACCURACIES.get(name, name)}", value, step)
        rate = evaluation.images_per_sec
        self._log_metric("eval_average_examples_per_sec", rate, step, _RATE)

    def training_ended(self, global_step: int, steps: int, total: float, mean: float) -> None:
        """Logs the speed over all timed steps (unless the last row of the table contains it) and of
        the whole timed loop.
        """
        if self._last_row < steps:
            self._log_metric("current_examples_per_sec", mean, steps, _RATE)
        self._log_metric("average_examples_per_sec", total, steps, _RATE)

    def _log_metric(self, name: str, value: float, step: int, unit: str | None = None) -> None:
        line: dict[str, Any] = {
            "name": name,
            # JSON has no numbers for NaN and infinity, so they are written as text.
            "value": value if math.isfinite(value) else str(value),
            "unit": unit,
            "global_step": step,
            "timestamp": datetime.now(timezone.utc).strftime(_TIME),
            "extras": [],
        }
        with collecting_write_errors("benchmark_log_dir", str(self._folder)):
            with (self._folder / _METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def describe_run(
    parameters: Mapping[str, Any],
    facts: Mapping[str, Any],
    test_id: str | None,
    record: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the content of benchmark_run.log.

    Args:
      parameters: resolved values of all flags of the run, as plain JSON values, and the
        `cnnbench.run.driver.describe.benchmark_log_parameters`.
      facts: recorded properties of machine and software, without unknown properties.
      record: the record of the run before its first step, as JSON. It describes the run exactly,
        so that `cnnbench import` can create the record of the run from the two files.
    """
    gpus = facts.get("gpu_names") or []
    cpu = {"num_cores": facts.get("logical_cpus"), "cpu_info": facts.get("cpu_model")}
    return {
        "model_name": parameters["model"],
        "dataset": {"name": parameters["dataset"]},
        "test_id": test_id,
        "run_date": datetime.now(timezone.utc).strftime(_TIME),
        "tensorflow_version": {
            "version": facts.get("tensorflow_version"),
            "git_hash": facts.get("tensorflow_git_version"),
        },
        "machine_config": {
            "cpu_info": {**cpu, "mhz_per_cpu": facts.get("cpu_max_mhz")},
            "gpu_info": {"count": len(gpus), "model": gpus[0] if gpus else None},
            "memory_total": facts.get("memory_bytes"),
        },
        "run_parameters": [_entry(name, parameters[name]) for name in sorted(parameters)],
        "record": record,
    }


def _entry(name: str, value: Any) -> dict[str, Any]:
    key = _KINDS.get(type(value))
    return {"name": name, "string_value": str(value)} if key is None else {"name": name, key: value}
