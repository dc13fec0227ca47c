"""Sections with a row per process: what failed or was skipped, and the exact commands."""

from __future__ import annotations

import shlex

from cnnbench.metrics.registry import throughput
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.load import Skipped
from cnnbench.records.run import RunRecord
from cnnbench.report.document import Cell, Column, Section, Text, number, section, table, text_cell
from cnnbench.report.results import Results, time_text

_FAILURES = (
    Column("configuration"),
    Column("status"),
    Column("error", prose=True),
    Column("timed steps"),
    Column("started (UTC)", steady=True),
    Column("run", code=True),
)
_FILES = (Column("file", code=True), Column("reason", prose=True), Column("kind"))
_COMMANDS = (
    Column("started (UTC)", steady=True),
    Column("configuration"),
    Column("status"),
    Column("median images/sec", number=True),
    Column("command", code=True, prose=True),
    Column("run", code=True),
)


def failures(results: Results) -> Section | None:
    """Failed and interrupted runs with their errors, and skipped files with the reason."""
    rows = [_failure(name, one) for name, one in results.processes if one.status != "ok"]
    if not rows and not results.skipped:
        return None
    text = Text(text="No value of this report is of these runs, only sound points of all-reduces.")
    files = [_file(one) for one in results.skipped]
    return section(
        "problems",
        "Failed and skipped",
        text if rows else None,
        table(_FAILURES, rows) if rows else None,
        table(_FILES, files, title="Skipped files") if files else None,
    )


def _failure(name: str, record: RunRecord | AllReduceRecord) -> tuple[Cell, ...]:
    error, steps = record.error, ""
    if isinstance(record, RunRecord):
        steps = f"{len(record.step_seconds)} of {record.config.get('num_batches') or '?'}"
    message = "stopped before its end" if error is None else f"{error.type}: {error.message}"
    return (
        text_cell(name),
        text_cell(record.status, tone="bad"),
        text_cell(message),
        text_cell(steps),
        text_cell(time_text(record.started_at)),
        text_cell(record.run_id),
    )


def _file(one: Skipped) -> tuple[Cell, ...]:
    kind = text_cell("a fault", tone="bad") if one.defect else text_cell("no fault")
    return (text_cell(one.path), text_cell(one.reason), kind)


def commands(results: Results) -> Section | None:
    """Every process with its exact command, in order of time."""
    rows = [
        (
            text_cell(time_text(record.started_at)),
            text_cell(name),
            text_cell(record.status, tone="" if record.status == "ok" else "bad"),
            number(throughput(record) if isinstance(record, RunRecord) else None),
            text_cell(shlex.join(record.command)),
            text_cell(record.run_id),
        )
        for name, record in results.processes
    ]
    if not rows:
        return None
    text = Text(text="Every process with its exact command, in order of time.")
    return section("runs", "Runs and commands", text, table(_COMMANDS, rows))
