"""Sections about processes: failures, skipped files, commands, how to reproduce the results."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from cnnbench.base.text.numbers import integer
from cnnbench.judge.metrics.measurement import fact_text, machine_name
from cnnbench.judge.metrics.registry import throughput
from cnnbench.judge.report.document import (
    Content,
    TableCell,
    TableColumn,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import ReportSubject, time_text
from cnnbench.judge.report.sections.campaigns import titled
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.codec import started
from cnnbench.records.load import SkippedFile
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject, subject_of

_Process: TypeAlias = "tuple[str, RunRecord | AllReduceRecord]"
"""A record with the name of its configuration."""

_NAME: TableColumn[_Process] = TableColumn("configuration", lambda one: one[0])
_STARTED: TableColumn[_Process] = TableColumn(
    "started (UTC)", lambda one: time_text(one[1].started_at), "steady"
)
_RUN: TableColumn[_Process] = TableColumn("run", lambda one: one[1].run_id, "code")


@section("problems", "Failed and skipped")
def failures(results: ReportSubject) -> Iterable[Content]:
    """Failed and interrupted runs with their errors, and skipped files with the reason."""
    if failed := [one for one in results.processes if one[1].status != "ok"]:
        yield "These runs have no values in this report, except valid points of all-reduces."
        yield table(_FAILURES, failed)
    yield table(_FILES, results.skipped, title="Skipped files")


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


@section("runs", "Runs and commands", folded=True)
def commands(results: ReportSubject) -> Iterable[Content]:
    """Every process with its exact command, in order of time."""
    if results.processes:
        yield "Every process with its exact command, in order of time."
        yield table(_COMMANDS, results.processes)


_MOST_UNFOLDED = 12


_Command: TypeAlias = tuple[str, Sequence[str], int, str]
"""What a command measures, its words, the number of processes that it started, and the start."""


@section("reproduce", "How to reproduce it")
def reproduce(results: ReportSubject) -> Iterable[Content]:
    """Versions and commits with numbers of processes, and a command per campaign or run."""
    software = Counter(_all_software(results))
    if not software:
        return
    yield (
        "These commands, with these versions on an equal machine, measure it again; commits with a "
        "plus had changes. Every process has its own command under Runs and commands."
    )
    yield table(_SOFTWARE, software.items())
    commands = sorted(_commands(results), key=lambda one: started(one[3]))
    folded = len(commands) > _MOST_UNFOLDED
    yield table(_REPEATING, commands, title="Commands", folded=folded)


def _all_software(results: ReportSubject) -> Iterable[tuple[str, ...]]:
    for _, one in results.processes:
        ab = getattr(one, "ab", None)
        yield _software(one.environment, subject_of(one.subject, one.config, ab))
    if not results.processes:
        for document in results.strategies:
            yield _software(document.environment, document.subject or Subject())


def _software(facts: Mapping[str, Any], subject: Subject) -> tuple[str, ...]:
    """Machine, versions and commits by `_SOFTWARE`; "" where unknown."""
    texts = {name: fact_text(value) for name, value in facts.items()}
    changed = facts.get("git_dirty") is True
    return (
        machine_name(texts),
        texts.get("cnnbench_version", ""),
        _commit(texts.get("git_commit", ""), changed),
        texts.get("tensorflow_version", ""),
        texts.get("python_version", ""),
        subject.repository or "",
        _commit(subject.revision or "", bool(subject.dirty)),
    )


def _commit(revision: str, changed: bool) -> str:
    return f"{revision}+" if revision and changed else revision


def _commands(results: ReportSubject) -> Iterable[_Command]:
    for title, document in titled(results):
        yield f"modes of {title}", document.command, len(document.processes), document.started_at
    for one in results.tunings:
        processes = sum(row.processes for row in one.rows) + 2 * one.pairs
        yield "best flags", one.search_command, processes, one.started_at
    by_campaign = {one.run_id for document in results.strategies for one in document.processes}
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, record in results.processes:
        if record.run_id in by_campaign:
            continue
        place = record.sweep or {}
        sweep = place.get("command")
        if isinstance(sweep, list) and sweep and all(isinstance(word, str) for word in sweep):
            key = (f"suite {place.get('suite')}", tuple(sweep))
        else:
            words = record.command
            if isinstance(record, RunRecord):  # whose command names another file for each record
                words = next((known for of, known in alike if of == name), words)
            key = (name, words)
        alike.setdefault(key, []).append(record.started_at)
    for (name, words), starts in alike.items():
        yield name, words, len(starts), min(starts, key=started)


def _text_at(place: int, row: tuple[tuple[str, ...], int]) -> str:
    return row[0][place]


_SOFTWARE: tuple[TableColumn[tuple[tuple[str, ...], int]], ...] = (
    *(
        TableColumn(title, partial(_text_at, place), "code" if "commit" in title else "")
        for place, title in enumerate(
            (
                *("machine", "cnnbench", "commit of cnnbench", "TensorFlow", "Python"),
                *("measured in", "its commit"),
            )
        )
    ),
    numeric("processes", lambda one: one[1], integer),
)
_REPEATING: tuple[TableColumn[_Command], ...] = (
    TableColumn("measures", lambda one: one[0]),
    TableColumn("command", lambda one: shlex.join(one[1]), "command"),
    numeric("processes", lambda one: one[2], integer),
)
