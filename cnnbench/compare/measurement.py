"""What is compared: one process's measurement of one configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from cnnbench.records.run import ErrorInfo, RunRecord

RUN = RunRecord.kind
"""The kind of a run's measurement; all others are rows of all-reduce measurements."""

_COMMIT = 12
"""Digits of a commit that tell it from all others and still fit into a line."""


class Measurement(Protocol):
    """What one process measured of one configuration.

    The record of a run is one as it is; an all-reduce measurement holds many
    (`cnnbench.compare.reductions`). What else there is to know of a measurement depends
    on its kind (`cnnbench.compare.kinds`).
    """

    @property
    def kind(self) -> str:
        """A name in `cnnbench.compare.kinds.KINDS`."""

    @property
    def run_id(self) -> str:
        """Of the process."""

    @property
    def started_at(self) -> str:
        """When the process started: ISO 8601 with offset."""

    @property
    def status(self) -> str:
        """How this measurement ended: "ok", "failed" or "interrupted"."""

    @property
    def error(self) -> ErrorInfo | None:
        """Why it failed; None if it did not."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The flags of this configuration, as plain JSON values."""

    @property
    def explicit_flags(self) -> tuple[str, ...]:
        """Names of the flags that were given."""

    @property
    def environment(self) -> Mapping[str, Any]:
        """Facts about machine and software."""


def fact_text(value: Any) -> str:
    """A fact as text."""
    return value if isinstance(value, str) else json.dumps(value)


def environment_facts(environment: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The facts of a process as names and texts."""
    return tuple(
        (name, fact_text(value)[:_COMMIT] if name == "git_commit" else fact_text(value))
        for name, value in environment.items()
    )
