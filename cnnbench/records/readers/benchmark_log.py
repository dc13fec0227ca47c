"""Reads the two files of --benchmark_log_dir: `metric.log` and `benchmark_run.log`.

tf_cnn_benchmarks, TensorFlow's official models and cnnbench write them. Runs append a line for each
value to metric.log, and benchmark_run.log describes the last run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cnnbench.base.files import read_file
from cnnbench.records.readers import (
    MIXED,
    ResultFile,
    is_amount,
    parse_json_object,
    register_reader,
)
from cnnbench.records.readers.tf_cnn_benchmarks import RunLog
from cnnbench.records.run import PrintedSpeed, RunRecord

_METRICS, _RUN = "metric.log", "benchmark_run.log"
_ROW, _TOTAL = "current_examples_per_sec", "average_examples_per_sec"
_EVALUATION = "eval_average_examples_per_sec"
_ACCURACIES = {
    "eval_top_1_accuracy": ("accuracy", "top_1"),
    "eval_top_5_accuracy": ("top_5",),
    # Names by which TensorFlow's official models write the accuracies of evaluations.
    "accuracy": ("accuracy", "top_1"),
    "accuracy_top_5": ("top_5",),
}
# Maps run parameters of tf_cnn_benchmarks to the labels of its printed header.
_PARAMETERS = {
    **{"model": "Model", "dataset": "Dataset", "mode": "Mode", "devices": "Devices"},
    **{"batch_size": "Batch size", "batch_size_per_device": "per device"},
    **{"num_batches": "Num batches", "data_format": "Data format", "optimizer": "Optimizer"},
    **{"variables": "Variables", "variable_update": "Variables", "all_reduce_spec": "AllReduce"},
}


class _Metric(NamedTuple):
    """A line of metric.log, with its number and its text."""

    number: int
    text: str
    name: str
    value: Any
    step: int
    time: str


@dataclass
class _Values:
    """The values of one run in metric.log.

    Attributes:
      started: time of the first line.
      described: whether benchmark_run.log describes the run.
      rows: rows of the table of speeds.
      values: values by name of the metric.
      evaluations: speeds of evaluations.
    """

    started: str
    described: bool
    rows: list[PrintedSpeed] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    evaluations: list[float] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the last values of the run are there."""
        return "total_images_per_sec" in self.values or bool(self.evaluations and not self.rows)

    def add(self, name: str, value: float, step: int) -> None:
        """Adds a value. Values of other metrics than those of cnnbench are ignored."""
        if name == _ROW:
            self.rows.append(PrintedSpeed(step=step, images_per_sec=value))
            self.values["images_per_sec"] = value
        elif name == _TOTAL:
            self.values["total_images_per_sec"] = value
            self.values["throughput"] = value
        elif name == _EVALUATION:
            self.evaluations.append(value)
            if not self.rows:  # All evaluations have the same number of examples.
                speeds = self.evaluations
                self.values["throughput"] = len(speeds) / sum(1 / speed for speed in speeds)
        else:
            self.values |= dict.fromkeys(_ACCURACIES.get(name, ()), value)


_LINE = rb'\{[^\n]{0,2000}?"(?:run_parameters|global_step)":'
_KEYS = (b'"run_parameters":', b'"global_step":')


def _is_anywhere(data: bytes) -> bool:
    """Whether a line of a file is a line of one of the two files."""
    # With "\\n", Python searches the beginnings of lines much faster than with "^".
    has_key = any(key in data for key in _KEYS)
    return has_key and re.search(rb"\n" + _LINE, data) is not None


@register_reader("benchmark_log_dir", b"^" + _LINE, _is_anywhere)
def read(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each run in a folder of --benchmark_log_dir. Reading either of the two
    files results in the same records.
    """
    folder, name = os.path.split(file.path)
    other = os.path.join(folder, _METRICS if name == _RUN else _RUN)
    about: dict[str, Any] = {}
    if name in (_METRICS, _RUN):
        both = [file.data, read_file(other) if os.path.exists(other) else b""]
        metrics, described = both if name == _METRICS else reversed(both)
        about = parse_json_object(described.decode("utf-8", "replace")) or {}
        # The records depend on both files, so the digest that names them includes both.
        path = os.path.join(folder, _METRICS)
        own = ResultFile(path, metrics, file.labels, file.skipped)
        own.sha256 = hashlib.sha256(metrics + described).hexdigest()
        file = own
    started = str(about.get("run_date") or "")
    lines = [*_metrics(file)]
    if mixed := _mixed_line(lines):
        return file.skip(mixed.number, mixed.text, MIXED)
    runs = _runs(file, lines, started)
    if "record" in about and not (runs and runs[-1].described):
        runs.append(_Values(started, described=True))  # Ended before its first row.
    for part, run in enumerate(runs, start=1):
        yield _record(file, part, run, about if run.described else {})
    return None


def _metrics(file: ResultFile) -> Iterator[_Metric]:
    """Yields the lines of metric.log. Lines that are not understood are named."""
    for number, text in file.lines:
        line = parse_json_object(text) or {}
        name, step = line.get("name"), line.get("global_step") or 0
        if isinstance(name, str) and type(step) is int:
            time = str(line.get("timestamp") or "")
            yield _Metric(number, text, name, line.get("value"), step, time)
        elif text.strip() and "run_parameters" not in line:
            file.skip(number, text)


def _mixed_line(metrics: Iterable[_Metric]) -> _Metric | None:
    """Returns a line that shows that several processes wrote into the file at the same time: two
    steps in a row are logged twice each. A run that is killed repeats at most one step.
    """
    rows = [metric for metric in metrics if metric.name == _ROW]
    for first, second, third, fourth in zip(rows, rows[1:], rows[2:], rows[3:], strict=False):
        if first.step == second.step < third.step == fourth.step:
            return fourth
    return None


def _runs(file: ResultFile, metrics: Sequence[_Metric], last_run_started: str) -> list[_Values]:
    """Returns the runs of metric.log. The numbers of steps increase within a run."""
    runs: list[_Values] = []
    for number, text, name, value, step, time in metrics:
        if (
            not runs
            or (runs[-1].started < last_run_started <= time)
            or (name == _ROW and runs[-1].rows and step <= runs[-1].rows[-1].step)
        ):
            runs.append(_Values(time, described=False))
        if is_amount(value):
            runs[-1].add(name, float(value), step)
        elif name in (_ROW, _TOTAL, _EVALUATION):
            file.skip(number, text, "is not a speed")
    if runs:
        runs[-1].described = runs[-1].started >= last_run_started
    return runs


def _record(file: ResultFile, part: int, run: _Values, about: Mapping[str, Any]) -> RunRecord:
    status = "ok" if run.is_complete else "interrupted"
    if "record" in about:
        started = replace(RunRecord.from_dict(about["record"]), status=status)
        values = dict(run.values)
        if run.rows and "throughput" in values:
            # The last row of cnnbench is the speed of all timed steps, without the time between
            # them.
            values["throughput"] = run.rows[-1].images_per_sec
        return file.own_run(started, part, values=values, printed=tuple(run.rows))
    log = RunLog(file)
    log.rows, log.values, log.is_complete = run.rows, run.values, run.is_complete
    parameters = _parameters(about)
    if "model" not in parameters and "model_name" in about:
        _add_official(log, about, parameters)
    else:
        log.header |= {
            label: str(parameters[name])
            for name, label in _PARAMETERS.items()
            if name in parameters
        }
    # The log contains the batch size of one process; that of a whole job is unknown.
    if "job:" in log.header.get("Devices", ""):
        log.header.pop("Batch size", None)
    if version := (about.get("tensorflow_version") or {}).get("version"):
        log.header["TensorFlow"] = str(version)
    log.software = _tf_facts(about)
    return log.make_record(part, run.started, {}, _machine_facts(about.get("machine_config") or {}))


def _parameters(about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the run parameters in benchmark_run.log, by name."""
    parameters = {}
    for parameter in about.get("run_parameters") or ():
        value = next((parameter[key] for key in parameter if key.endswith("_value")), None)
        if value is not None:
            parameters[str(parameter.get("name"))] = value
    return parameters


def _add_official(log: RunLog, about: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Adds what TensorFlow's official models log about a run. Their parameters, such as
    resnet_size, have other names than those of tf_cnn_benchmarks.
    """
    log.header["Model"] = str(about["model_name"])
    log.header["Dataset"] = str((about.get("dataset") or {}).get("name") or "")
    if dtype := re.search("float(?:16|32)", str(parameters.get("dtype"))):
        log.header["Data type"] = dtype[0]
    log.parameters = {f"parameter_{name}": str(value) for name, value in parameters.items()}


def _tf_facts(about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the commit of TensorFlow and the environment variables in benchmark_run.log, by name
    in records.
    """
    variables = about.get("tensorflow_environment_variables") or ()
    known = {f"env_{variable.get('name')}": variable.get("value") for variable in variables}
    if commit := (about.get("tensorflow_version") or {}).get("git_hash"):
        # With Python 3, the logger wrote the text of a bytes object: b'v1.9.0'.
        known["tensorflow_git_version"] = str(commit).removeprefix("b'").removesuffix("'")
    return {name: value for name, value in known.items() if value is not None}


def _machine_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of the machine in benchmark_run.log, by name in records."""
    cpu, gpu = (config.get(name) or {} for name in ("cpu_info", "gpu_info"))
    known = {
        "cpu_model": cpu.get("cpu_info"),
        "logical_cpus": cpu.get("num_cores"),
        "memory_bytes": config.get("memory_total"),
        "gpu_names": [gpu.get("model")] * (gpu.get("count") or 0) or None,
    }
    return {name: value for name, value in known.items() if value is not None}
