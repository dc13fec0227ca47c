"""The measurements of one process of one configuration, from which metrics take values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from cnnbench.base.text.numbers import binary
from cnnbench.records.parts import ErrorInfo
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

RUN = RunRecord.kind
ALLREDUCE, BUILD, PEER, COPY = "allreduce", "build", "peer", "copy"

KINDS = {
    RUN: "runs",
    ALLREDUCE: "all-reduces",
    BUILD: "all-reduces that were only built",
    PEER: "peers",
    COPY: "memory copies",
}
"""Kinds of measurements with their plurals, in order of display. Measurements of different kinds
are never compared. All but RUN are rows of all-reduce records."""

CONTEXT = (PEER, COPY)
"""Kinds that show other changes (machine, TensorFlow) and do not affect the exit code."""

_COMMIT = 12
"""Digits of a commit that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredReduction:
    """A row of an all-reduce record, measured by one process.

    Attributes:
      kind: ALLREDUCE; BUILD, for --build_only; PEER, another library's reduction; COPY, all devices
        copying memory at once.
      status: "failed" if it could not be measured or summed wrongly, "interrupted" if it was cut
        short, else "ok", however the process ended.
      config: flags of the process, with the row's values for those that list what is measured.
      facts: of process and row, as text.
      seconds: of the median reduction or copy; None if none was timed or sums were wrong.
      bytes_per_sec: bus bandwidth; of a copy, the bytes that all devices write together.
      build_seconds: to trace it and call it for the first time.
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
"""The record of a run, or a row of an all-reduce record."""


def fact_text(value: Any) -> str:
    """A fact as text: strings as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def readable_fact(name: str, value: Any) -> str:
    """A fact for people: as by `fact_text`, but bytes in powers of 1024."""
    text = fact_text(value)
    return binary(int(text)) if name.endswith("_bytes") and text.isdecimal() else text


def short_commit(text: str) -> str:
    """The first digits of a full commit; other text unchanged."""
    whole = len(text) == 40 and set(text) <= set("0123456789abcdef")
    return text[:_COMMIT] if whole else text


def subject_facts(subject: Subject | None) -> tuple[tuple[str, str], ...]:
    """Names and texts of the facts about the measured code."""
    if subject is None:
        return ()
    named = {
        "subject_repository": subject.repository,
        "subject_revision": subject.revision and short_commit(subject.revision),
        "subject_dirty": subject.dirty,
    }
    return tuple((name, fact_text(value)) for name, value in named.items() if value is not None)


def environment_facts(environment: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Names and texts of the facts of a process; commits are shortened."""
    return tuple(
        (name, fact_text(value)[:_COMMIT] if name == "git_commit" else fact_text(value))
        for name, value in environment.items()
    )
