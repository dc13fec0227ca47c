"""The two kinds of record that children leave: of a training run, of all-reduces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from cnnbench.metrics.registry import throughput
from cnnbench.records.allreduce import KIND as ALLREDUCE
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.run import ErrorInfo, RunRecord

Record: TypeAlias = RunRecord | AllReduceRecord

RUN = "run"


def parse(document: object, kind: str | None = None) -> Record:
    """The record in a JSON value.

    Args:
      document: the value.
      kind: "run" or "allreduce"; either if None.

    Raises:
      ValueError: it is none; says why.
    """
    if not isinstance(document, dict):
        raise ValueError("not an object")
    found = document.get("kind", RUN)
    if found not in (RUN, ALLREDUCE) or (kind is not None and found != kind):
        raise ValueError(f"of the kind {found!r}")
    if found == RUN:
        return RunRecord.from_dict(document)
    return AllReduceRecord.from_dict(document)


def read(path: Path) -> Record | None:
    """The record in a file; None if there is no sound one."""
    try:
        return parse(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Facts:
    """What is known of a run that left no record of its own."""

    run_id: str
    started_at: str
    command: tuple[str, ...]
    config: Mapping[str, Any]
    explicit_flags: tuple[str, ...]
    environment: Mapping[str, Any]


def failed(kind: str, facts: Facts, error: ErrorInfo) -> dict[str, Any]:
    """The document of a run that left none.

    Args:
      kind: "run" or "allreduce".
      facts: what is known of it.
      error: why it failed.
    """
    make = RunRecord if kind == RUN else AllReduceRecord
    return make(status="failed", error=error, **vars(facts)).to_dict()


def bus_bandwidth(record: AllReduceRecord) -> float | None:
    """Bytes per second of the fastest point, as nccl-tests counts them."""
    rates = [point.bus_bandwidth for point in record.points]
    return max((rate for rate in rates if rate is not None), default=None)


def headline(record: Record) -> str:
    """The figure of a run that went well, for its line of progress."""
    if isinstance(record, AllReduceRecord):
        rate = bus_bandwidth(record)
        return "ok" if rate is None else f"ok up to {figure(rate / 1e9)} GB/s"
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
