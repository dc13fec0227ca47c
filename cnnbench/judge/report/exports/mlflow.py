"""Bodies of requests to MLflow's REST API 2.0 (MLflow 3.17): a run per subject.

Source: https://mlflow.org/docs/latest/rest-api.html. ``create`` is the body of ``runs/create``
without ``experiment_id``, each of ``log_batch`` one of ``runs/log-batch`` without the returned
``run_id``, ``update`` that of ``runs/update``; docs/integrations.md has a loop that sends them.
Units, which MLflow lacks, are tags; ends of intervals are metrics.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cnnbench.judge.metrics.measurement import fact_text
from cnnbench.judge.report.exports import Export
from cnnbench.judge.report.exports.figures import Figure

_PARAMS = 100
"""Most parameters of a request, with values of up to `_LONGEST` characters."""

_LONGEST = 6000


def render(figures: Sequence[Figure]) -> Export:
    """A run for each subject, with a metric per quantity."""
    runs: dict[tuple[object, ...], list[Figure]] = {}
    for one in figures:
        identity = (one.configuration, one.role, one.point, one.origin, one.machine)
        runs.setdefault(identity, []).append(one)
    document = {"runs": [_run(members) for members in runs.values()]}
    return Export(json.dumps(document, indent=1, allow_nan=False) + "\n")


def _run(figures: Sequence[Figure]) -> dict[str, Any]:
    first = figures[0]
    time = _milliseconds(first)
    tags = {f"cnnbench.{name}": text for name, text in first.subject().items()}
    tags |= {f"cnnbench.label.{name}": text for name, text in first.labels.items()}
    if first.origin.revision:
        tags["mlflow.source.git.commit"] = first.origin.revision
    for one in figures:
        tags[f"cnnbench.unit.{one.metric.name}"] = one.metric.unit
        if one.judgement is not None:
            tags[f"cnnbench.verdict.{one.metric.name}"] = one.judgement.verdict.word(one.metric)
    name = ", ".join(filter(None, (first.title, first.role, first.point or first.origin.short)))
    metrics = [metric for one in figures for metric in _metrics(one)]
    params = _pairs({name: fact_text(value) for name, value in first.flags.items()})
    further = range(_PARAMS, len(params), _PARAMS)
    return {
        "create": {"run_name": name, "start_time": time, "tags": _pairs(tags)},
        "log_batch": [
            {"metrics": metrics, "params": params[:_PARAMS]},
            *({"params": params[start : start + _PARAMS]} for start in further),
        ],
        "update": {"status": "FINISHED", "end_time": time},
    }


def _metrics(figure: Figure) -> Iterable[dict[str, object]]:
    low, high = figure.sample.interval or (None, None)
    judgement = figure.judgement
    found = {
        "": figure.value,
        ".lower": low,
        ".upper": high,
        ".processes": float(len(figure.sample.values)),
        ".change": None if judgement is None else judgement.change,
        ".change.lower": None if judgement is None else judgement.low,
        ".change.upper": None if judgement is None else judgement.high,
    }
    for suffix, value in found.items():
        if value is not None:
            key, time = f"{figure.metric.name}{suffix}", _milliseconds(figure)
            yield {"key": key, "value": value, "timestamp": time, "step": 0}


def _milliseconds(figure: Figure) -> int:
    return round(figure.started.timestamp() * 1000)


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": text[:_LONGEST]} for name, text in values.items()]
