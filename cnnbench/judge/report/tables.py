"""Numbers of a report as tables for other programs.

Column names have the unit: seconds, bytes, images per second; shares are not scaled. Unknown values
are empty cells. Text that a spreadsheet would take for a formula begins with an apostrophe.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cnnbench.base.text.table import csv_text
from cnnbench.judge.metrics.registry import BOUNDS, HISTORY
from cnnbench.judge.report.results import Configured, ReportSubject
from cnnbench.judge.report.sections.scaling import curves
from cnnbench.records.codec import started
from cnnbench.records.result_files import RUNS, all_reduce_row, run_row
from cnnbench.records.run import run_steady_state

if TYPE_CHECKING:
    from pandas import DataFrame

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
"""Metrics whose medians are columns; None: computed otherwise. All others follow by their names."""

_SPREADING = ("throughput_images_per_sec", "peak_memory_bytes")
"""Columns with interval and range."""


def configurations(results: ReportSubject) -> list[dict[str, Any]]:
    """A row per configuration: medians over processes with their intervals and ranges."""
    efficiencies = {
        one.name: curve.efficiency(one)
        for curve in curves(results.configured)
        for one in curve.members
    }
    return [
        {**_facts(one), **_statistics(one), "scaling_efficiency": efficiencies.get(one.name)}
        for one in results.configured
    ]


def _statistics(one: Configured) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    others = {name: name for name in BOUNDS if name not in _MEDIANS.values()}
    for name, metric in {**_MEDIANS, **others}.items():
        values = None if metric is None else one.sample(metric)
        found[name] = None if values is None else values.median
        if values is not None and name in _SPREADING:
            low, high = values.interval or (None, None)
            found |= {f"{name}_low": low, f"{name}_high": high}
            found[f"{name}_min"] = min(values.values, default=None)
            found[f"{name}_max"] = max(values.values, default=None)
    return found


def _facts(one: Configured) -> dict[str, Any]:
    batch = next((r.batch for r in one.records if r.batch is not None), None)
    model = next((r.model for r in one.records if r.model is not None), None)
    statuses = [record.status for record in one.records]
    return {
        "configuration": one.name,
        "key": one.configuration.key,
        "side": one.origin.side,
        "repository": one.origin.repository,
        "revision": one.origin.revision,
        "dirty": one.origin.dirty,
        "tensorflow_version": one.origin.tensorflow,
        **{name: one.flag(name) for name in _FLAGS},
        "devices": one.devices,
        "images_per_step": None if batch is None else batch.global_,
        "parameters": None if model is None else model.parameters,
        "processes": len(one.good),
        "failed": statuses.count("failed"),
        "interrupted": statuses.count("interrupted"),
    }


def runs(results: ReportSubject) -> list[dict[str, Any]]:
    """A row per process: the columns of --result_csv and those of the report."""
    names = {record.run_id: one.name for one in results.configured for record in one.records}
    speed, step = HISTORY["throughput"].value, HISTORY["step_seconds"].value
    rows = []
    for record in sorted(results.records, key=lambda one: started(one.started_at)):
        steady = run_steady_state(record)
        rows.append(
            {
                "configuration": names[record.run_id],
                **RUNS.cells(run_row(record)),
                "throughput_images_per_sec": speed(record),
                "median_step_seconds": step(record),
                "steady_state": steady.shape.value,
                "unsteady_timed_steps": steady.unsteady_timed_steps,
                "command": shlex.join(record.command),
            }
        )
    return rows


def all_reduce(results: ReportSubject) -> list[dict[str, Any]]:
    """A row per reduction, with the columns of `cnnbench allreduce --result_csv`."""
    return [all_reduce_row(record, point) for record in results.allreduces for point in record.rows]


def comparison(results: ReportSubject) -> list[dict[str, Any]]:
    """A row per configuration and metric judged against the baseline."""
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
    "configurations": configurations,
    "runs": runs,
    "allreduce": all_reduce,
    "comparison": comparison,
}
"""Rows of tables by name."""


def frame(results: ReportSubject, table: str) -> DataFrame:
    """A table of `TABLES` as a pandas DataFrame; raises a KeyError for another name."""
    import pandas

    return pandas.DataFrame(TABLES[table](results))


def csv(results: ReportSubject, table: str) -> str:
    """A table of `TABLES` as CSV with a header, in which no cell is a formula."""
    rows = TABLES[table](results)
    header = list(dict.fromkeys(name for row in rows for name in row)) or [""]
    return csv_text(header, (map(row.get, header) for row in rows))
