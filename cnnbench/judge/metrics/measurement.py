"""A measurement: one process of one configuration, with its kind and recorded properties."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from cnnbench.base.text import format_bytes
from cnnbench.machine.facts import comparable_fact
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.run import ErrorInfo, RunRecord
from cnnbench.records.subject import Subject

RUN = RunRecord.kind
ALL_REDUCE, BUILD, PEER, COPY = "allreduce", "build", "peer", "copy"

KINDS = {
    RUN: ("run", "runs"),
    ALL_REDUCE: ("all-reduce", "all-reduces"),
    BUILD: ("all-reduce that was only built", "all-reduces that were only built"),
    PEER: ("peer", "peers"),
    COPY: ("memory copy", "memory copies"),
}
"""Kinds of measurements, each with a noun in singular and plural, in order of display. Measurements
of different kinds are never compared. ALL_REDUCE, BUILD, PEER and COPY are rows of all-reduce
records.
"""

CONTEXT = (PEER, COPY)
"""Kinds of measurements that never affect the exit code, because they do not measure the compared
code. They show changes of the machine or of TensorFlow.
"""

_COMMIT = 12
"""Number of digits that output shows of a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredReduction:
    """The measurement in one row of an all-reduce record, which is from one process.

    Attributes:
      kind: ALL_REDUCE; BUILD, for --build_only; PEER, a reduction of another library; COPY, all
        devices copying memory at once.
      status: "failed" if the reduction could not be measured or has wrong sums, "interrupted" if it
        was cut short, otherwise "ok", even if the process failed later.
      config: flags of the process. Flags that list what is measured have the value of this row.
      facts: names and values of recorded properties of the process and the row, as text.
      seconds: seconds of the median reduction or copy; None if none was timed or sums were wrong.
      bytes_per_sec: bus bandwidth; for a copy, the bytes per second that all devices write
        together.
      build_seconds: seconds to trace the reduction and to call it for the first time.
    """

    kind: str
    run_id: str
    started_at: str
    status: str
    error: ErrorInfo | None
    config: Mapping[str, Any]
    explicit_flags: tuple[str, ...]
    environment: Mapping[str, Any]
    facts: tuple[tuple[str, str], ...]
    subject: Subject | None = None
    seconds: float | None = None
    bytes_per_sec: float | None = None
    build_seconds: float | None = None


Measurement: TypeAlias = RunRecord | MeasuredReduction
"""A run record, or a row of an all-reduce record."""


def fact_text(value: Any, name: str = "") -> str:
    """Converts the value of a recorded property to text: strings are unchanged, other values are
    written as JSON (see `comparable_fact`).
    """
    value = comparable_fact(name, value)
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value)


def readable_fact(name: str, value: Any) -> str:
    """Converts the value of a recorded property to text for people: like `fact_text`, but bytes are
    written as KiB, MiB and so on.
    """
    text = fact_text(value, name)
    return format_bytes(int(text)) if name.endswith("_bytes") and text.isdecimal() else text


def short_commit(text: str) -> str:
    """Shortens a full commit hash to its first 12 digits. Other text is returned unchanged."""
    whole = len(text) == 40 and set(text) <= set("0123456789abcdef")
    return text[:_COMMIT] if whole else text


def process_facts(record: RunRecord | AllReduceRecord) -> tuple[tuple[str, str], ...]:
    """Returns (name, text) for each recorded property of a process, its environment and the
    measured code. Commits are shortened.
    """
    facts = [
        (name, fact_text(value, name)[: _COMMIT if name == "git_commit" else None])
        for name, value in record.environment.items()
    ]
    if (subject := record.subject) is not None:
        names = ("repository", "revision", "dirty", "changes", "unknown")
        named = {f"subject_{name}": getattr(subject, name) for name in names}
        known = {name: fact_text(value) for name, value in named.items() if value is not None}
        facts += [(name, short_commit(text)) for name, text in known.items()]
    return tuple(facts)
