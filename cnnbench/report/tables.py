"""The numbers of a report as tables for other programs, by way of pandas.

Units are in the names of columns: seconds, bytes, images per second; shares are shares. What
is not known is an empty cell. Text that a spreadsheet would take for a formula begins with an
apostrophe.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cnnbench.metrics.registry import throughput
from cnnbench.records.steady_state import run_steady_state
from cnnbench.records.tables import RUNS, allreduce_row, run_row
from cnnbench.report.material import Material
from cnnbench.report.samples import Configured, Sample
from cnnbench.report.sections.scaling import curves
from cnnbench.report.sections.throughput import median_step
from cnnbench.text.escape import spreadsheet

_FLAGS = (
    "model",
    "data_name",
    "device",
    "num_gpus",
    "variable_update",
    "all_reduce_spec",
    "precision",
    "batch_size",
    "forward_only",
    "eval",
)


def configurations(material: Material) -> list[dict[str, Any]]:
    """A row per configuration: medians over processes with their intervals and ranges."""
    efficiencies = {
        one.configuration.key: curve.efficiency(one)
        for curve in curves(material.configured)
        for one in curve.members
    }
    return [
        _configuration(one, efficiencies.get(one.configuration.key)) for one in material.configured
    ]


def runs(material: Material) -> list[dict[str, Any]]:
    """A row per process: the columns of --result_csv, and what the report adds."""
    names = {record.run_id: one.name for one in material.configured for record in one.records}
    rows = []
    for record in material.runs:
        steady = run_steady_state(record)
        rows.append(
            {
                "configuration": names[record.run_id],
                **RUNS.cells(run_row(record)),
                "throughput_images_per_sec": throughput(record),
                "median_step_seconds": median_step(record),
                "steady_state": steady.series.shape.value,
                "unsteady_timed_steps": steady.unsteady_timed_steps,
                "command": shlex.join(record.command),
            }
        )
    return rows


def allreduce(material: Material) -> list[dict[str, Any]]:
    """A row per reduction, with the columns of `cnnbench allreduce --result_csv`."""
    return [allreduce_row(record, point) for record in material.allreduces for point in record.rows]


def comparison(material: Material) -> list[dict[str, Any]]:
    """A row per configuration and metric judged against the baseline."""
    if material.comparison is None:
        return []
    rows = []
    for entry in material.comparison.entries:
        for result in entry.results:
            judged = result.judgement
            rows.append(
                {
                    "configuration": entry.name,
                    "key": entry.configuration.key,
                    "metric": result.metric.name,
                    "unit": result.metric.unit,
                    "verdict": result.verdict.value,
                    "word": result.word,
                    "base_median": judged.base_median,
                    "new_median": judged.new_median,
                    "change": judged.change,
                    "low": judged.low,
                    "high": judged.high,
                    "p": judged.p,
                    "p_adjusted": judged.p_adjusted,
                    "floor": judged.floor,
                    "base_processes": len(entry.base),
                    "new_processes": len(entry.new),
                    "reason": judged.reason,
                }
            )
    return rows


TABLES: Mapping[str, Callable[[Material], Sequence[Mapping[str, Any]]]] = {
    "configurations": configurations,
    "runs": runs,
    "allreduce": allreduce,
    "comparison": comparison,
}
"""Tables by name."""


def frame(material: Material, table: str) -> Any:
    """One of `TABLES` as a pandas DataFrame.

    Raises:
      KeyError: an unknown table.
    """
    import pandas

    return pandas.DataFrame([dict(row) for row in TABLES[table](material)])


def csv(material: Material, table: str) -> str:
    """One of `TABLES` as CSV with a header, in which no cell is a formula.

    Raises:
      KeyError: an unknown table.
    """
    found = frame(material, table).map(_inert)
    return str(found.to_csv(index=False, lineterminator="\n"))


def _inert(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        value = ";".join(map(str, value))
    return spreadsheet(value) if isinstance(value, str) else value


def _configuration(one: Configured, efficiency: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"configuration": one.name, "key": one.configuration.key}
    row |= {name: one.flag(name) for name in _FLAGS}
    batch = next((r.batch for r in one.records if r.batch is not None), None)
    model = next((r.model for r in one.records if r.model is not None), None)
    statuses = [record.status for record in one.records]
    return row | {
        "devices": one.devices,
        "images_per_step": None if batch is None else batch.global_,
        "parameters": None if model is None else model.parameters,
        "processes": len(one.good),
        "failed": statuses.count("failed"),
        "interrupted": statuses.count("interrupted"),
        **_statistics("throughput_images_per_sec", one.throughput),
        "median_step_seconds": one.sample(median_step).median,
        "scaling_efficiency": efficiency,
        "mfu": one.mfu.median,
        **_statistics("peak_memory_bytes", one.memory),
        "startup_seconds": one.startup.median,
        "top_1": one.accuracy.median,
        "joules_per_image": one.sample(lambda r: r.summary().joules_per_image).median,
        "input_wait_fraction": one.sample(lambda r: r.summary().input_wait_fraction).median,
    }


def _statistics(name: str, sample: Sample) -> dict[str, float | None]:
    low, high = sample.interval or (None, None)
    least, most = sample.range or (None, None)
    return {
        name: sample.median,
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_min": least,
        f"{name}_max": most,
    }
