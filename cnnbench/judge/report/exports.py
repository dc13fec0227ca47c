"""Exports results as tables (CSV, pandas), and in the formats of other programs such as MLflow or
Prometheus.

The names of columns contain the unit: seconds, bytes, images per second. Shares are numbers from 0
to 1. Unknown values are empty cells. If a spreadsheet would interpret a text as a formula, the text
begins with an apostrophe.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cnnbench.base.inference import mean_interval
from cnnbench.base.stats import CONFIDENCE, ValuesByProcess, group_by
from cnnbench.base.terminal import csv_cell, csv_text
from cnnbench.base.text import (
    boolean_text,
    count_text,
    format_interval,
    labels_from_config,
    to_plain_line,
    to_terminal_line,
)
from cnnbench.flags.params import changed_identity
from cnnbench.judge.compare import ComparedConfiguration, Comparison
from cnnbench.judge.compare.comparability import MeasurementGroup
from cnnbench.judge.compare.configuration import Configuration, configuration_name
from cnnbench.judge.compare.estimate import usable_values
from cnnbench.judge.compare.judgement import Judgement
from cnnbench.judge.metrics import Measurement, Origin, fact_text, origin_part_text
from cnnbench.judge.report.results import ReportSubject, RunGroup
from cnnbench.records.codec import parse_start_time
from cnnbench.records.exports import Exported, register_export
from cnnbench.records.metric import BOUNDS, HISTORY, Metric
from cnnbench.records.result_files import RUNS, all_reduce_row, run_row
from cnnbench.records.run import find_steady_state_of_run

if TYPE_CHECKING:
    from pandas import DataFrame


# Exports the numbers of a report as tables.

_FLAGS = (
    *("model", "data_name", "device", "num_gpus", "variable_update", "all_reduce_spec"),
    *("precision", "batch_size", "forward_only", "eval"),
)
_MEDIANS = {
    "throughput_images_per_sec": "throughput",
    "median_step_seconds": "step_seconds",
    "scaling_efficiency": None,
    "mfu": "mfu",
    "peak_memory_bytes": "peak_memory_bytes",
    "startup_seconds": "startup_seconds",
    "top_1": "top_1",
    "joules_per_image": "joules_per_image",
    "cpu_seconds_per_step": "cpu_time",
    "images_per_cpu_second": "images_per_cpu_second",
    "input_wait_fraction": "input_wait_fraction",
}
"""Maps the names of columns to the metrics whose medians they contain. None means that the column
is computed in a different way. The columns of all other metrics follow, by name.
"""

_MEAN = "mean_throughput_images_per_sec"
"""Column with the mean over the processes; columns with its 95 % interval follow."""

_SPREADING = ("throughput_images_per_sec", "peak_memory_bytes")
"""Columns that are followed by columns with the interval and the range."""

_STARTED = "started_at"
"""Column with the time when a process started. CSV files contain the text of the record."""


def configuration_rows(results: ReportSubject) -> list[dict[str, Any]]:
    """Returns the rows of the table `configurations`: one for each configuration, with medians,
    intervals and ranges over its processes.
    """
    # The module is imported here, because the formats of `cnnbench compare` do not need it.
    from cnnbench.judge.report.sections.scaling import scaling_curves

    efficiencies = {
        member.name: curve.efficiency(member)
        for curve in scaling_curves(results.configured)
        for member in curve.members
    }
    return [
        {
            **_configuration_facts(group),
            **_configuration_statistics(group),
            "scaling_efficiency": efficiencies.get(group.name),
        }
        for group in results.configured
    ]


def _configuration_statistics(group: RunGroup) -> dict[str, float | None]:
    statistics: dict[str, float | None] = {}
    others = {name: name for name in BOUNDS if name not in _MEDIANS.values()}
    for name, metric in {**_MEDIANS, **others}.items():
        values = None if metric is None else group.process_values(metric)
        statistics[name] = None if values is None else values.median
        if values is not None and name in _SPREADING:
            low, high = values.interval or (None, None)
            statistics |= {f"{name}_low": low, f"{name}_high": high}
            statistics[f"{name}_min"] = min(values.values, default=None)
            statistics[f"{name}_max"] = max(values.values, default=None)
    speeds = group.own_speeds
    low, high = mean_interval(speeds, CONFIDENCE) or (None, None)
    mean = fmean(speeds) if speeds else None
    return {**statistics, _MEAN: mean, f"{_MEAN}_low": low, f"{_MEAN}_high": high}


def _configuration_facts(group: RunGroup) -> dict[str, Any]:
    batch = next((r.batch for r in group.records if r.batch is not None), None)
    model = next((r.model for r in group.records if r.model is not None), None)
    statuses = [record.status for record in group.records]
    return {
        "configuration": group.name,
        "key": group.configuration.key,
        "side": group.origin.side,
        "repository": group.origin.repository,
        "revision": group.origin.revision,
        "dirty": group.origin.dirty,
        "tensorflow_version": group.origin.tensorflow,
        **{name: group.flag(name) for name in _FLAGS},
        "devices": group.device_count,
        "images_per_step": None if batch is None else batch.global_,
        "parameters": None if model is None else model.parameters,
        "processes": len(group.successful),
        "failed": statuses.count("failed"),
        "interrupted": statuses.count("interrupted"),
    }


def run_rows(results: ReportSubject) -> list[dict[str, Any]]:
    """Returns the rows of the table `runs`: one for each run, with the columns of --result_csv and
    further columns of the report.
    """
    names = {record.run_id: group.name for group in results.configured for record in group.records}
    speed, step = HISTORY["throughput"].value, HISTORY["step_seconds"].value
    rows = []
    for record in sorted(results.records, key=lambda record: parse_start_time(record.started_at)):
        steady = find_steady_state_of_run(record)
        rows.append(
            {
                "configuration": names[record.run_id],
                **RUNS.cells(run_row(record, changed_identity(record.config))),
                "throughput_images_per_sec": speed(record),
                "median_step_seconds": step(record),
                "steady_state": steady.shape.value,
                "unsteady_timed_steps": steady.unsteady_timed_steps,
                "command": shlex.join(record.command),
            }
        )
    return rows


def all_reduce_rows(results: ReportSubject) -> list[dict[str, Any]]:
    """Returns the rows of the table `allreduce`: one for each measured reduction, with the columns
    of `cnnbench allreduce --result_csv`.
    """
    return [all_reduce_row(record, point) for record in results.allreduces for point in record.rows]


def comparison_rows(results: ReportSubject) -> list[dict[str, Any]]:
    """Returns the rows of the table `comparison`: one for each configuration and metric that was
    compared with the baseline.
    """
    entries = () if results.comparison is None else results.comparison.entries
    names = ("base_median", "new_median", "change", "low", "high", "p", "p_adjusted", "floor")
    return [
        {
            "configuration": entry.name,
            "key": entry.configuration.key,
            "metric": result.metric.name,
            "unit": result.metric.unit,
            "verdict": result.verdict.value,
            "word": result.word,
            **{name: getattr(result.judgement, name) for name in names},
            "base_processes": len(entry.base),
            "new_processes": len(entry.new),
            "reason": result.judgement.reason,
        }
        for entry in entries
        for result in entry.results
    ]


TABLES: Mapping[str, Callable[[ReportSubject], list[dict[str, Any]]]] = {
    "configurations": configuration_rows,
    "runs": run_rows,
    "allreduce": all_reduce_rows,
    "comparison": comparison_rows,
}
"""Maps the name of a table to the function that returns its rows."""


def frame(results: ReportSubject, table: str) -> DataFrame:
    """Returns the table `table` (a name in `TABLES`) as a pandas DataFrame, as `data_frame` does.
    Raises KeyError for other names.
    """
    return data_frame(TABLES[table](results))


def data_frame(rows: Iterable[Mapping[str, object]]) -> DataFrame:
    """Returns rows of a table as a pandas DataFrame: start times are times in UTC, and lists are
    texts with semicolons. Missing values are NaN in columns of numbers, and in columns without any
    value.
    """
    import pandas

    values = [{name: _frame_value(name, value) for name, value in row.items()} for row in rows]
    found = pandas.DataFrame(values)
    unknown = [name for name in found if found[name].isna().all()]
    return found.astype(dict.fromkeys(unknown, float))


def _frame_value(column: str, value: object) -> object:
    if column == _STARTED and isinstance(value, str):
        return parse_start_time(value)
    is_single = value is None or isinstance(value, (bool, int, float, str, datetime))
    return value if is_single else csv_cell(value)


def to_csv(results: ReportSubject, table: str) -> str:
    """Returns the table `table` (a name in `TABLES`) as CSV with a header. Cells that would be
    formulas in a spreadsheet are escaped.
    """
    rows = TABLES[table](results)
    header = list(dict.fromkeys(name for row in rows for name in row)) or [""]
    return csv_text(header, (map(row.get, header) for row in rows))


# Converts results to `ExportedMetric` objects, and exports the objects in the formats of other
# programs.

BASE, NEW = "base", "new"

_OF_SUBJECT = ("commit", "repository")
"""Labels that are part of the origin of a measurement. Users can set them."""


@dataclass(frozen=True, kw_only=True)
class ExportedMetric:
    """One metric of one configuration, as exported to other programs: the values of all processes
    that measured the same code on the same machine.

    Attributes:
      sample: one value per process; at least one.
      started: start of the first process, in UTC.
      role: BASE or NEW if the value is from a comparison; otherwise "".
      point: if the value is from a history, the name of its point: a commit, day, run or label;
        otherwise "".
      current: whether the newest code was measured: NEW, or the last revision of a history.
    """

    metric: Metric
    sample: ValuesByProcess
    configuration: Configuration
    origin: Origin
    started: datetime
    role: str = ""
    point: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    current: bool = True
    judgement: Judgement | None = None

    @property
    def value(self) -> float:
        """Median of the metric over the processes, in the unit of the metric."""
        assert self.sample.median is not None
        return self.sample.median

    @property
    def series_name(self) -> str:
        """The name of the data series to which other programs add this metric. The name is the same
        for every commit.

        It contains the configuration's name, side A or B of an experiment, the TensorFlow version,
        the machine, and a hash that also covers all flags and the repository. It does not depend on
        the revision, the size of the network, or other metrics.
        """
        origin, parts = self.origin, self.origin.part_texts()
        shown = (
            origin_part_text(name, parts[name]) for name in ("side", "TensorFlow") if parts[name]
        )
        words = ", ".join((configuration_name(self.configuration), *shown))
        subject = (origin.side, origin.repository, origin.tensorflow, origin.machine)
        return to_plain_line(
            f"{words} on {parts['machine']} [{_short_digest(self.configuration.key, *subject)}]"
        )

    def statistics(self) -> dict[str, float]:
        """Returns the known statistics of the metric by name: the median (name ""), its interval,
        the number of processes, and the change with its interval.
        """
        low, high = self.sample.interval or (None, None)
        values = {
            "": self.value,
            "lower": low,
            "upper": high,
            "processes": float(len(self.sample.values)),
            "change": getattr(self.judgement, "change", None),
            "change_lower": getattr(self.judgement, "low", None),
            "change_upper": getattr(self.judgement, "high", None),
        }
        return {name: value for name, value in values.items() if value is not None}

    def code_and_machine_texts(self) -> dict[str, str]:
        """Returns the description of the measured code and machine, as texts by name:
        configuration, revision, TensorFlow version, machine and so on. Unknown values are left out.
        """
        origin = self.origin
        values = {
            "configuration": configuration_name(self.configuration),
            "configuration_key": self.configuration.key,
            "role": self.role,
            "point": "" if self.point == origin.revision else self.point,
            "repository": origin.repository,
            "revision": origin.revision,
            "dirty": "" if origin.dirty is None else boolean_text(origin.dirty),
            "changes": origin.changes,
            "side": origin.side,
            "tensorflow_version": origin.tensorflow,
            "machine": origin.part_texts()["machine"],
            "machine_key": _short_digest(origin.machine),
        }
        return {name: text for name, value in values.items() if (text := to_plain_line(value))}


def _short_digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def shared_labels(labels: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Returns the labels that all processes have in common. Labels such as `commit`, which are part
    of the origin, are left out.
    """
    first, *others = labels
    return {
        name: value
        for name, value in first.items()
        if name not in _OF_SUBJECT and all(other.get(name) == value for other in others)
    }


def exported_metrics_of_comparison(comparison: Comparison) -> list[ExportedMetric]:
    """Returns an `ExportedMetric` for each metric, configuration and origin in BASE and in NEW.
    Those of NEW contain verdicts.
    """
    return [
        figure
        for entry in comparison.entries
        for role, records in ((BASE, entry.base), (NEW, entry.new))
        for figure in _side_figures(entry, role, records)
    ]


def _side_figures(
    entry: ComparedConfiguration, role: str, records: tuple[Measurement, ...]
) -> Iterable[ExportedMetric]:
    origins = MeasurementGroup(entry.configuration, records).by_origin()
    for origin, members in origins.items():
        good = [record for record in members if record.status == "ok"]
        for result in entry.results:
            values = usable_values(good, result.metric)
            if not values:
                continue
            yield ExportedMetric(
                metric=result.metric,
                sample=ValuesByProcess(values),
                configuration=entry.configuration,
                origin=origin,
                started=min(parse_start_time(record.started_at) for record in good),
                role=role,
                labels=shared_labels(labels_from_config(record.config) for record in good),
                current=role == NEW,
                judgement=result.judgement if role == NEW and len(origins) == 1 else None,
            )


def newest_exported_metrics(figures: Sequence[ExportedMetric]) -> tuple[list[ExportedMetric], str]:
    """Returns the exported metrics of the newest code, and a sentence about omitted values, or ""
    if none are omitted.

    If a measurement was repeated, only the last one is used. The sentence does not count values of
    the base of a comparison.
    """
    last = {
        _figure_key(figure): figure
        for figure in sorted(figures, key=lambda figure: figure.started)
        if figure.current
    }
    wanted = [figure for figure in figures if last.get(_figure_key(figure)) is figure]
    others = sum(figure.role != BASE for figure in figures) - len(wanted)
    if not others:
        return wanted, ""
    values = count_text(others, "other value", "other values")
    if not wanted:
        return wanted, f"the newest commit has no value; {values} left out"
    revision = wanted[0].origin.short_revision or "an unknown revision"
    return wanted, f"the format holds one commit, here {revision}; {values} left out"


def _figure_key(figure: ExportedMetric) -> tuple[str, str]:
    return figure.series_name, figure.metric.name


_LONGEST_NAME = 1024
"""Maximum number of bytes in the name of a Bencher benchmark."""

_PARAMS, _LONGEST = 100, 6000
"""Maximum number of parameters in a request to MLflow, and of characters in each parameter."""

_UNITS: dict[str, tuple[str, float]] = {
    "images/sec": ("images_per_second", 1.0),
    "images/CPU second": ("images_per_second", 1.0),
    "GB/s": ("bytes_per_second", 1e9),
    "FLOP/s": ("flops_per_second", 1.0),
    "bytes": ("bytes", 1.0),
    "seconds": ("seconds", 1.0),
    "s": ("seconds", 1.0),
    "J": ("joules", 1.0),
    "share": ("ratio", 1.0),
    "share of the peak": ("ratio", 1.0),
    "top-1": ("ratio", 1.0),
    "number": ("", 1.0),
    "loss": ("", 1.0),
    "CPUs": ("", 1.0),
}
"""Maps the unit of a metric to the base unit of OpenMetrics, and the factor for the conversion.
Other units have no base unit.
"""


@register_export("bencher", rb'\{(\s*"[^\n]*": \{\s*"[^\n]*": \{\s*"value": |\}\s*$)')
def bencher(figures: Sequence[ExportedMetric]) -> Exported:
    """Writes metrics in the Bencher Metric Format (Bencher 0.6.12), for ``bencher run --adapter
    json``.

    Source: https://bencher.dev/docs/reference/bencher-metric-format/ and
    https://bencher.dev/bmf.json. The document maps each benchmark to its measures, and each measure
    to ``value`` and, if known, ``lower_value`` and ``upper_value``. Branch, commit and testbed are
    flags of `bencher`, so only metrics of the newest code are written. The names of measures
    contain the unit, because Bencher has its own measure "throughput", in operations per second.
    """
    wanted, left_out = newest_exported_metrics(figures)
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for figure in wanted:
        name = figure.series_name.encode()[:_LONGEST_NAME].decode(errors="ignore")
        measure = f"{figure.metric.name} ({figure.metric.unit})"
        ends = zip(("lower_value", "upper_value"), figure.sample.interval or (), strict=False)
        benchmarks.setdefault(name, {})[measure] = {"value": figure.value, **dict(ends)}
    return _to_json(benchmarks), left_out


@register_export("github-action-benchmark", rb'\[(\s*\{\s*"name": |\]\s*$)')
def github_action_benchmark(figures: Sequence[ExportedMetric]) -> Exported:
    """Writes metrics as custom JSON for the action benchmark-action/github-action-benchmark
    (v1.22).

    Source: https://github.com/benchmark-action/github-action-benchmark, README and
    ``src/extract.ts``. The document is a list of objects with ``name``, ``unit``, ``value`` and,
    optionally, ``range`` and ``extra``, which charts show unchanged. A file contains one commit and
    one direction (``tool: customBiggerIsBetter`` or ``customSmallerIsBetter``). The direction is
    that of the first metric; metrics with the opposite direction are left out.
    """
    wanted, left_out = newest_exported_metrics(figures)
    bigger = not wanted or wanted[0].metric.higher_is_better
    entries: list[dict[str, object]] = []
    others: dict[str, None] = {}
    for figure in wanted:
        metric = figure.metric
        if metric.higher_is_better is not bigger:
            others[metric.name] = None
            continue
        name = f"{figure.series_name}: {metric.name}"
        entry: dict[str, object] = {"name": name, "unit": metric.unit, "value": figure.value}
        if figure.sample.interval is not None:
            low, high = figure.sample.interval
            ends = format_interval(low, high, partial(metric.value_text, unit=False))
            entry["range"] = f"95 % interval {ends} {metric.unit_text}"
        lines = [
            f"{name}: {text}"
            for name, text in {**figure.code_and_machine_texts(), **figure.labels}.items()
        ]
        lines.append(f"median of {count_text(len(figure.sample.values), 'process', 'processes')}")
        judgement = figure.judgement
        if judgement is not None and judgement.change is not None:
            change = metric.change_text(judgement.change)
            lines.append(f"change from base: {change}, {judgement.verdict.word(metric)}")
        entries.append({**entry, "extra": "\n".join(lines)})
    remarks = [left_out] if left_out else []
    if others:
        remarks.append(
            f"one file supports one direction, here {'bigger' if bigger else 'smaller'} is better; "
            f"{', '.join(others)} omitted (--metrics={','.join(others)} writes them)"
        )
    return _to_json(entries), "; ".join(remarks)


@register_export("mlflow", rb'\{\s*"runs": \[')
def mlflow(figures: Sequence[ExportedMetric]) -> Exported:
    """Writes the bodies of requests to MLflow's REST API 2.0 (MLflow 3.17), which create one MLflow
    run for each configuration and revision.

    Source: https://mlflow.org/docs/latest/rest-api.html. ``create`` is the body of ``runs/create``
    without ``experiment_id``. Each item of ``log_batch`` is a body of ``runs/log-batch`` without
    the returned ``run_id``. ``update`` is the body of ``runs/update``. docs/integrations.md has a
    loop that sends the requests. MLflow has no units, so they are tags; ends of intervals are
    metrics.
    """
    runs = group_by(
        figures, lambda figure: (figure.configuration.key, figure.role, figure.point, figure.origin)
    )
    return _to_json({"runs": [_mlflow_run(members) for members in runs.values()]}), ""


def _mlflow_run(figures: Sequence[ExportedMetric]) -> dict[str, Any]:
    first = figures[0]
    time = round(first.started.timestamp() * 1000)
    tags = {f"cnnbench.{name}": text for name, text in first.code_and_machine_texts().items()}
    tags |= {f"cnnbench.label.{name}": text for name, text in first.labels.items()}
    if first.origin.revision:
        tags["mlflow.source.git.commit"] = first.origin.revision
    for figure in figures:
        tags[f"cnnbench.unit.{figure.metric.name}"] = figure.metric.unit
        if figure.judgement is not None:
            tags[f"cnnbench.verdict.{figure.metric.name}"] = figure.judgement.verdict.word(
                figure.metric
            )
    name = ", ".join(
        filter(None, (first.series_name, first.role, first.point or first.origin.short_revision))
    )
    metrics = [
        {
            "key": ".".join(filter(None, (figure.metric.name, *part.split("_")))),
            "value": value,
            "timestamp": round(figure.started.timestamp() * 1000),
            "step": 0,
        }
        for figure in figures
        for part, value in figure.statistics().items()
    ]
    flags = first.configuration.non_default_flags
    params = _mlflow_pairs(
        {name: to_terminal_line(fact_text(value)) for name, value in flags.items()}
    )
    further = range(_PARAMS, len(params), _PARAMS)
    return {
        "create": {"run_name": name, "start_time": time, "tags": _mlflow_pairs(tags)},
        "log_batch": [
            {"metrics": metrics, "params": params[:_PARAMS]},
            *({"params": params[start : start + _PARAMS]} for start in further),
        ],
        "update": {"status": "FINISHED", "end_time": time},
    }


def _mlflow_pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": text[:_LONGEST]} for name, text in values.items()]


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""Characters that must be escaped in the texts of OpenMetrics."""


@register_export("openmetrics", rb"# (TYPE cnnbench_|EOF)")
def openmetrics(figures: Sequence[ExportedMetric]) -> Exported:
    """Writes metrics as OpenMetrics 1.0 text for Prometheus, for ``promtool tsdb create-blocks-from
    openmetrics``.

    Source: https://prometheus.io/docs/specs/om/open_metrics_spec/. Each quantity is a family with
    TYPE, UNIT and HELP. Samples with the same labels are consecutive and ordered by time, and the
    text ends with ``# EOF``. Names end with the base unit. Timestamps are seconds since 1970, at
    the start of the first process. The families are gauges: median, interval, number of processes,
    and change.
    """
    metrics = {figure.metric.name: figure.metric for figure in figures}
    lines = [line for metric in metrics.values() for line in _metric_families(metric, figures)]
    return "\n".join([*lines, "# EOF"]) + "\n", ""


def _metric_families(metric: Metric, figures: Sequence[ExportedMetric]) -> Iterator[str]:
    own = [(figure, figure.statistics()) for figure in figures if figure.metric is metric]
    base, factor = _UNITS.get(metric.unit, ("", 1.0))
    name, better = metric.name, "higher" if metric.higher_is_better else "lower"
    kind = "as a share of the base" if metric.relative else "as a difference"
    for part, unit, about in (
        ("", base, f"{name}, median over processes; {better} is better"),
        ("lower", base, f"{name}, lower end of the 95 % interval of the median"),
        ("upper", base, f"{name}, upper end of the 95 % interval of the median"),
        ("processes", "", f"{name}, number of processes"),
        ("change", "ratio", f"change of {name} from base to new, {kind}"),
        ("change_lower", "ratio", f"lower end of the interval of the change of {name}"),
        ("change_upper", "ratio", f"upper end of the interval of the change of {name}"),
    ):
        scale = factor if unit == base else 1.0
        samples = [(figure, values[part] * scale) for figure, values in own if part in values]
        if not samples:
            continue
        full = "_".join(filter(None, ("cnnbench", name, part)))
        if unit and not full.endswith(f"_{unit}"):
            full += f"_{unit}"
        yield f"# TYPE {full} gauge"
        if unit:
            yield f"# UNIT {full} {unit}"
        yield f"# HELP {full} {about.translate(_ESCAPES)}"
        rows = (
            (_openmetrics_labels(figure), figure.started.timestamp(), value)
            for figure, value in samples
        )
        for labels, time, value in sorted(rows):
            yield f"{full}{{{labels}}} {value!r} {time:.3f}"


def _openmetrics_labels(figure: ExportedMetric) -> str:
    """Returns the OpenMetrics labels of an exported metric as text: NAME="TEXT", separated by
    commas. Labels that users set are named label_NAME.
    """
    labels = {
        f"label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": to_plain_line(text)
        for name, text in figure.labels.items()
    }
    judgement = figure.judgement
    if judgement is not None:
        labels["verdict"] = judgement.verdict.word(figure.metric)
    labels |= figure.code_and_machine_texts()
    return ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())


def _to_json(document: object) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
