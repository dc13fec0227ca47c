"""The benchmark log of TensorFlow's official models, which tf_cnn_benchmarks wrote too.

`benchmark_run.log` is one JSON object about the run, replaced atomically; `metric.log` has a JSON
object per line, and new lines are appended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cnnbench.records.files import write_text, writing_output
from cnnbench.records.parts import Evaluation
from cnnbench.run.driver.observer import Observer

_RUN, _METRICS = "benchmark_run.log", "metric.log"
_RATE = "examples per second"
_KINDS = {bool: "bool_value", int: "long_value", float: "float_value"}
_ACCURACIES = {"top_1": "top_1_accuracy", "top_5": "top_5_accuracy"}
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class BenchmarkLog(Observer):
    """Writes `benchmark_run.log` and `metric.log` into a folder, which it makes.

    Args:
      config: every parameter of the run, resolved, as plain JSON values.
      parameters: `cnnbench.run.driver.describe.log_parameters`.
      facts: facts about machine and software, as in records; unknown ones are absent.
    """

    def __init__(
        self,
        folder: str,
        config: Mapping[str, Any],
        parameters: Mapping[str, Any],
        facts: Mapping[str, Any],
        test_id: str | None,
    ) -> None:
        self._folder = Path(folder)
        about = run_info(config, parameters, facts, test_id)
        with writing_output("benchmark_log_dir", folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        write_text("benchmark_log_dir", str(self._folder / _RUN), json.dumps(about) + "\n")

    def displayed(self, step: int, images_per_sec: float, metrics: Mapping[str, float]) -> None:
        """A row of the table; steps are numbered as there."""
        self._metric("current_examples_per_sec", images_per_sec, step, _RATE)
        for name, value in metrics.items():
            self._metric(_ACCURACIES.get(name, name), value, step)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Accuracies and rate of an evaluation."""
        step = evaluation.global_step
        found = {"top_1": evaluation.top_1, "top_5": evaluation.top_5}
        for name, value in {**found, **evaluation.metrics}.items():
            if value is not None:
                self._metric(f"eval_{_ACCURACIES.get(name, name)}", value, step)
        rate = evaluation.images_per_sec
        self._metric("eval_average_examples_per_sec", rate, step, _RATE)

    def ended(self, global_step: int, steps: int, images_per_sec: float) -> None:
        """The average of the timed loop."""
        self._metric("average_examples_per_sec", images_per_sec, steps, _RATE)

    def _metric(self, name: str, value: float, step: int, unit: str | None = None) -> None:
        line: dict[str, Any] = {
            "name": name,
            # JSON has no NaN and no infinities.
            "value": value if math.isfinite(value) else str(value),
            "unit": unit,
            "global_step": step,
            "timestamp": datetime.now(timezone.utc).strftime(_TIME),
            "extras": [],
        }
        with writing_output("benchmark_log_dir", str(self._folder)):
            with (self._folder / _METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def run_info(
    config: Mapping[str, Any],
    parameters: Mapping[str, Any],
    facts: Mapping[str, Any],
    test_id: str | None,
) -> dict[str, Any]:
    """Content of benchmark_run.log; arguments as for `BenchmarkLog`."""
    gpus = facts.get("gpu_names") or []
    cpu = {"num_cores": facts.get("logical_cpus"), "cpu_info": facts.get("cpu_model")}
    parameters = {**config, **parameters}
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
        "run_parameters": [_parameter(name, parameters[name]) for name in sorted(parameters)],
    }


def _parameter(name: str, value: Any) -> dict[str, Any]:
    key = _KINDS.get(type(value))
    return {"name": name, "string_value": str(value)} if key is None else {"name": name, key: value}
