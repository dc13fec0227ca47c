"""Sections with a row per process: failures, skipped files, exact commands."""

from __future__ import annotations

import shlex
from typing import TypeAlias

from cnnbench.judge.metrics.registry import throughput
from cnnbench.judge.report.document import (
    Section,
    TableCell,
    TableColumn,
    Text,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import ReportSubject, time_text
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.load import SkippedFile
from cnnbench.records.run import RunRecord

_Process: TypeAlias = "tuple[str, RunRecord | AllReduceRecord]"
"""A record with the name of its configuration."""

_NAME: TableColumn[_Process] = TableColumn("configuration", lambda one: one[0])
_STARTED: TableColumn[_Process] = TableColumn(
    "started (UTC)", lambda one: time_text(one[1].started_at), "steady"
)
_RUN: TableColumn[_Process] = TableColumn("run", lambda one: one[1].run_id, "code")


def failures(results: ReportSubject) -> Section | None:
    """Failed and interrupted runs with their errors, and skipped files with the reason."""
    failed = [one for one in results.processes if one[1].status != "ok"]
    if not failed and not results.skipped:
        return None
    text = Text(
        text="These runs have no values in this report, except valid points of all-reduces."
    )
    return section(
        "problems",
        "Failed and skipped",
        text if failed else None,
        table(_FAILURES, failed),
        table(_FILES, results.skipped, title="Skipped files"),
    )


def _status(process: _Process) -> TableCell:
    return TableCell(process[1].status, tone="" if process[1].status == "ok" else "bad")


def error_text(run: RunRecord | AllReduceRecord) -> str:
    """The error of a run that did not succeed."""
    error = run.error
    return "stopped before its end" if error is None else f"{error.type}: {error.message}"


def _steps(process: _Process) -> str:
    record = process[1]
    if not isinstance(record, RunRecord):
        return ""
    return f"{len(record.step_seconds)} of {record.config.get('num_batches') or '?'}"


def _kind(one: SkippedFile) -> TableCell:
    return TableCell("a fault", tone="bad") if one.defect else TableCell("no fault")


def _speed(process: _Process) -> float | None:
    return throughput(process[1]) if isinstance(process[1], RunRecord) else None


_FAILURES: tuple[TableColumn[_Process], ...] = (
    _NAME,
    TableColumn("status", _status),
    TableColumn("error", lambda one: error_text(one[1]), "prose"),
    TableColumn("timed steps", _steps),
    _STARTED,
    _RUN,
)
_FILES: tuple[TableColumn[SkippedFile], ...] = (
    TableColumn("file", lambda one: one.path, "code"),
    TableColumn("reason", lambda one: one.reason, "prose"),
    TableColumn("kind", _kind),
)
_COMMANDS: tuple[TableColumn[_Process], ...] = (
    _STARTED,
    _NAME,
    TableColumn("status", _status),
    numeric("median images/sec", _speed),
    _RUN,
    TableColumn("command", lambda one: shlex.join(one[1].command), "command"),
)


def commands(results: ReportSubject) -> Section | None:
    """Every process with its exact command, in order of time."""
    if not results.processes:
        return None
    text = Text(text="Every process with its exact command, in order of time.")
    rows = table(_COMMANDS, results.processes)
    return section("runs", "Runs and commands", text, rows, folded=True)
