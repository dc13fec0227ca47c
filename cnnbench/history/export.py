"""The history for programs: JSON, and CSV by way of pandas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cnnbench.history.series import Point
from cnnbench.history.steps import Step, Trend
from cnnbench.metrics.registry import Metric
from cnnbench.records.load import Skipped
from cnnbench.text.escape import spreadsheet

SCHEMA = 1
KIND = "history"
_COLUMNS = (
    *("configuration", "machine", "point", "commit", "started_at", "metric", "unit", "value"),
    *("low", "high", "processes", "failed", "level", "step", "change", "worse", "stands"),
)


def json_text(trends: Sequence[Trend], metric: Metric, skipped: Sequence[Skipped] = ()) -> str:
    """The JSON document, schema 1.

    Args:
      trends: series with their steps.
      metric: of the values.
      skipped: files that gave no record.
    """
    document = {
        "schema": SCHEMA,
        "kind": KIND,
        "metric": metric.name,
        "unit": metric.unit,
        "higher_is_better": metric.higher_is_better,
        "relative": metric.relative,
        "series": [_series(found) for found in trends],
        "skipped": [
            {"path": one.path, "reason": one.reason, "defect": one.defect} for one in skipped
        ],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def csv_text(trends: Sequence[Trend], metric: Metric) -> str:
    """A row per point, with a header; no cell is a formula."""
    import pandas

    rows = [row for found in trends for row in _rows(found, metric)]
    frame = pandas.DataFrame(rows, columns=list(_COLUMNS))
    frame = frame.map(lambda cell: spreadsheet(cell) if isinstance(cell, str) else cell)
    return str(frame.to_csv(index=False, lineterminator="\n"))


def _rows(found: Trend, metric: Metric) -> list[dict[str, Any]]:
    steps = {step.index: step for step in found.steps}
    rows = []
    for index, point in enumerate(found.series.points):
        step = steps.get(index)
        level = next(one for one in found.levels if one.start <= index < one.stop)
        rows.append(
            {
                "configuration": found.series.configuration,
                "machine": found.series.machine,
                "point": point.name,
                "commit": point.runs[0].commit,
                "started_at": point.started.isoformat(),
                "metric": metric.name,
                "unit": metric.unit,
                "value": point.value,
                "low": min(point.values),
                "high": max(point.values),
                "processes": len(point.values),
                "failed": point.failed,
                "level": level.value,
                "step": step is not None,
                **{n: getattr(step, n, None) for n in ("change", "worse", "stands")},
            }
        )
    return rows


def _series(found: Trend) -> dict[str, Any]:
    series = found.series
    return {
        "configuration": series.configuration,
        "key": series.key,
        "machine": series.machine,
        "points": [_point(point) for point in series.points],
        "without_value": [_point(point) for point in series.empty],
        "enough_points": found.enough,
        "levels": [
            {"start": level.start, "stop": level.stop, "value": level.value}
            for level in found.levels
        ],
        "steps": [_step(step) for step in found.steps],
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "name": point.name,
        "commit": point.runs[0].commit or None,
        "started_at": point.started.isoformat(),
        "value": point.value if point.values else None,
        "values": list(point.values),
        "failed": point.failed,
        "labels": dict(point.runs[0].labels),
        "hostnames": sorted({run.hostname for run in point.runs if run.hostname}),
        "run_ids": [run.run_id for run in point.runs],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "index": step.index,
        "change": step.change,
        "before": step.before.value,
        "after": step.after.value,
        "worse": step.worse,
        "stands": step.stands,
        **{
            name: getattr(step, name).name
            for name in ("last_good", "first_bad", "earliest", "latest")
        },
        "facts": [{"fact": name, "before": a, "after": b} for name, a, b in step.facts],
    }
