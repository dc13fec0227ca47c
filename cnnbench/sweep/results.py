"""Reading the records of a sweep back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnnbench.comparison.metrics import throughput
from cnnbench.record import RunRecord
from cnnbench.sweep.outcome import check_document


def read_document(path: Path) -> dict[str, Any] | None:
    """The record in a file as JSON values; None if it is not a sound one."""
    try:
        document = json.loads(path.read_bytes())
        check_document(document)
    except (OSError, ValueError):
        return None
    assert isinstance(document, dict)
    return document


def run_record(document: Mapping[str, Any]) -> RunRecord | None:
    """The record of a training or evaluation; None if it is of another kind."""
    return None if "kind" in document else RunRecord.from_dict(document)


def headline(document: Mapping[str, Any]) -> str:
    """The figure of a run that went well, for its line of progress."""
    record = run_record(document)
    if record is None:
        points = [point for point in document["points"] if not point.get("error")]
        return f"ok {len(points)} points"
    speed = throughput(record)
    return "ok" if speed is None else f"ok {figure(speed)} images/sec"


def figure(value: float) -> str:
    """A number with about four digits."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.3e}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}"
