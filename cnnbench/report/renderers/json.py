"""A comparison as a JSON document, schema 1; described in docs/compare.md."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from cnnbench.compare.result import Comparison, Entry, Result
from cnnbench.metrics.measurement import RUN
from cnnbench.metrics.registry import BUS_BANDWIDTH
from cnnbench.records.codec import encode

SCHEMA = 1
KIND = "comparison"


def render(comparison: Comparison) -> str:
    """The document, indented, valid for strict parsers."""
    return json.dumps(encode(to_dict(comparison)), indent=1, allow_nan=False) + "\n"


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """The document as a dict."""
    mean = comparison.geometric_mean()
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "exit_code": int(comparison.exit_code),
        "base": comparison.base_label,
        "new": comparison.new_label,
        "paired": comparison.paired,
        "allow_changed_work": comparison.allow_changed_work,
        "policy": dataclasses.asdict(comparison.policy),
        "metrics": [metric.name for metric in comparison.metrics],
        "geometric_mean": None
        if mean is None
        else {"metric": "throughput", "change": mean[0], "configurations": mean[1]},
        **_further_means(comparison),
        "configurations": [_entry(entry) for entry in comparison.entries],
        "notes": list(comparison.notes),
        "skipped": [dataclasses.asdict(one) for one in comparison.skipped],
    }


def _further_means(comparison: Comparison) -> dict[str, Any]:
    """The same of reductions, where there are any."""
    mean = comparison.geometric_mean(BUS_BANDWIDTH)
    if mean is None:
        return {}
    change, number = mean
    found = {"metric": BUS_BANDWIDTH.name, "change": change, "configurations": number}
    return {"bus_bandwidth_mean": found}


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "key": entry.configuration.key,
        **_kind(entry),
        "verdict": entry.main.verdict.value,
        "flags": entry.configuration.not_default(),
        "base_runs": [record.run_id for record in entry.base],
        "new_runs": [record.run_id for record in entry.new],
        "results": [_result(result) for result in entry.results],
        "differences": [dataclasses.asdict(one) for one in entry.differences],
    }


def _kind(entry: Entry) -> dict[str, Any]:
    """The kind of the measurements; absent for runs."""
    if entry.configuration.kind == RUN:
        return {}
    return {"kind": entry.configuration.kind, "decides": entry.decides}


def _result(result: Result) -> dict[str, Any]:
    judgement = dataclasses.asdict(result.judgement)
    return {
        "metric": result.metric.name,
        "unit": result.metric.unit,
        "higher_is_better": result.metric.higher_is_better,
        "relative": result.metric.relative,
        **judgement,
        "verdict": result.verdict.value,
        "word": result.word,
        "base_values": list(result.base),
        "new_values": list(result.new),
    }
