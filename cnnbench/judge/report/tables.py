"""Writes the numbers of a report as tables: CSV files and pandas DataFrames.

The names of columns contain the unit: seconds, bytes, images per second. Shares are numbers from 0
to 1. Unknown values are empty cells. If a spreadsheet would interpret a text as a formula, the text
begins with an apostrophe.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cnnbench.base.stats import CONFIDENCE, mean_interval
from cnnbench.base.tables import csv_cell, csv_text
from cnnbench.flags import nondefault_identity
from cnnbench.judge.report.results import ReportSubject, RunGroup
from cnnbench.records.codec import parse_start_time
from cnnbench.records.metric import BOUNDS, HISTORY
from cnnbench.records.result_files import RUNS, all_reduce_row, run_row
from cnnbench.records.run import find_steady_state_of_run

if TYPE_CHECKING:
    from pandas import DataFrame

_FLAGS = (
    "model data_name device num_gpus variable_update all_reduce_spec precision batch_size "
    "forward_only eval"
)
_MEDIANS = {
    "throughput_images_per_sec": "throughput",
    "median_step_seconds": "step_seconds",
    "scaling_efficiency": None,
    "worker_scaling_efficiency": None,
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
    # Imported late, because the formats of `cnnbench compare` do not need this module.
    from cnnbench.judge.report.sections.scaling import DEVICES, WORKERS, scaling_curves

    over_devices, over_workers = (
        {
            member.name: curve.efficiency(member)
            for curve in scaling_curves(results.configured, scaled)
            for member in curve.members
        }
        for scaled in (DEVICES, WORKERS)
    )
    return [
        {
            **_group_facts(group),
            **_statistics(group),
            "scaling_efficiency": over_devices.get(group.name),
            "worker_scaling_efficiency": over_workers.get(group.name),
        }
        for group in results.configured
    ]


def _statistics(group: RunGroup) -> dict[str, float | None]:
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
    speeds = group.raw_speeds
    low, high = mean_interval(speeds, CONFIDENCE) or (None, None)
    mean = fmean(speeds) if speeds else None
    return {**statistics, _MEAN: mean, f"{_MEAN}_low": low, f"{_MEAN}_high": high}


def _group_facts(group: RunGroup) -> dict[str, Any]:
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
        **{name: group.flag(name) for name in _FLAGS.split()},
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
                **RUNS.cells(run_row(record, nondefault_identity(record.config))),
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
