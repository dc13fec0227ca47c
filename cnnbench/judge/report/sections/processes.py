"""Sections about processes: failures, skipped files, commands, how to reproduce the results."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cnnbench.base.document import Content, Row, Table, TableCell, introduced, numeric, table
from cnnbench.base.grouping import grouped
from cnnbench.base.text.numbers import integer
from cnnbench.judge.metrics.measurement import fact_text, machine_name
from cnnbench.judge.report.results import MOST_LISTED, ReportSubject, newest_text, time_text
from cnnbench.judge.report.sections.campaigns import titled
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import started
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject, subject_of

_FAILURES = ("configuration", "status", "error", "timed steps", "started (UTC)", "run")
_COMMANDS = (*("started (UTC)", "configuration", "status", "images/sec"), *("run", "command"))


def failures(results: ReportSubject) -> Iterable[Content]:
    """Failed and interrupted runs with their errors, and skipped files with the reason."""
    if failed := [one for one in results.processes if one[1].status != "ok"]:
        yield "These runs have no values in this report, except valid points of all-reduces."
        yield _table(failed, _FAILURES)
        if len(failed) > MOST_LISTED:
            yield f"The newest {MOST_LISTED} of {integer(len(failed))} are listed."
    files = (
        {
            "file": TableCell(one.path, kinds="code"),
            "reason": TableCell(one.reason, kinds="prose"),
            "kind": TableCell("a fault", tone="bad") if one.defect else "no fault",
        }
        for one in results.skipped[:MOST_LISTED]
    )
    yield table(files, title="Skipped files")


def earlier(results: ReportSubject) -> Iterable[Content]:
    """A row for each configuration that the other sections leave out, the newest first."""
    found = sorted(results.earlier, key=lambda one: one.latest, reverse=True)
    listed = found[:_MOST_EARLIER]
    which = newest_text(len(listed), len(found))
    text = f"What the other sections leave out, each configuration and revision{which}."
    yield text if found else None
    yield table(
        {
            "configuration": one.name,
            "median images/sec": numeric(one.throughput.median),
            "processes": numeric(len(one.good), integer),
            "last started (UTC)": TableCell(f"{one.latest:%Y-%m-%d %H:%M}", kinds="steady"),
        }
        for one in listed
    )


_MOST_EARLIER = 2000


def commands(results: ReportSubject) -> Iterable[Content]:
    """Every process with its exact command, in order of time."""
    if processes := results.processes:
        which = newest_text(min(len(processes), MOST_LISTED), len(processes))
        yield f"Every process with its exact command, in order of time{which}."
        yield _table(processes, _COMMANDS)


def _table(
    processes: Sequence[tuple[str, RunRecord | AllReduceRecord]], titles: Iterable[str]
) -> Table | None:
    rows = (_cells(name, record) for name, record in processes[-MOST_LISTED:])
    return table({title: cells[title] for title in titles} for cells in rows)


def _cells(name: str, record: RunRecord | AllReduceRecord) -> Row:
    steps, speed = "", None
    if isinstance(record, RunRecord):
        steps = f"{len(record.step_seconds)} of {record.config.get('num_batches') or '?'}"
        speed = throughput(record)
    return {
        "configuration": name,
        "status": TableCell(record.status, tone="" if record.status == "ok" else "bad"),
        "error": TableCell(error_text(record), kinds="prose"),
        "timed steps": steps,
        "images/sec": numeric(speed),
        "started (UTC)": TableCell(time_text(record.started_at), kinds="steady"),
        "run": TableCell(record.run_id, kinds="code"),
        "command": TableCell(shlex.join(record.command), kinds="command"),
    }


def error_text(run: RunRecord | AllReduceRecord) -> str:
    """The error of a run that did not succeed."""
    error = run.error
    return "stopped before its end" if error is None else f"{error.type}: {error.message}"


_MOST_UNFOLDED = 12


@introduced
def reproduce(results: ReportSubject) -> Iterable[Content]:
    """These commands, with these versions on an equal machine, measure it again; commits with a
    plus had changes. Every process has its own command under Runs and commands.
    """
    software = grouped(_all_software(results), lambda row: (*row.values(),))
    if not software:
        return
    yield table(
        {**alike[0], "processes": numeric(len(alike), integer)} for alike in software.values()
    )
    commands = sorted(_commands(results), key=lambda one: started(one[3]))
    rows: Iterable[Row] = (
        {
            "measures": name,
            "command": TableCell(shlex.join(words), kinds="command"),
            "processes": numeric(processes, integer),
        }
        for name, words, processes, _ in commands
    )
    yield table(rows, title="Commands", folded=len(commands) > _MOST_UNFOLDED)


def _all_software(results: ReportSubject) -> Iterable[Row]:
    for _, one in results.processes:
        ab = getattr(one, "ab", None)
        yield _software(one.environment, subject_of(one.subject, one.config, ab))
    if not results.processes:
        for document in results.strategies:
            yield _software(document.environment, document.subject or Subject())


def _software(facts: Mapping[str, Any], subject: Subject) -> Row:
    """Machine, versions and commits; "" where unknown."""
    texts = {name: fact_text(value) for name, value in facts.items()}
    own = Subject(dirty=facts.get("git_dirty") is True, changes=texts.get("git_changes"))
    return {
        "machine": machine_name(texts),
        "cnnbench": texts.get("cnnbench_version", ""),
        "commit of cnnbench": _commit(texts.get("git_commit", ""), own),
        "TensorFlow": texts.get("tensorflow_version", ""),
        "Python": texts.get("python_version", ""),
        "measured in": subject.repository or "",
        "its commit": _commit(subject.revision or "", subject),
    }


def _commit(revision: str, state: Subject) -> TableCell:
    changes = f"+{state.changes or ''}" if revision and state.dirty else ""
    return TableCell(f"{revision}{changes}", kinds="code")


def _commands(results: ReportSubject) -> Iterable[tuple[str, Sequence[str], int, str]]:
    """Subject and words of each command, the number of its processes, and their start."""
    for title, document in titled(results):
        yield f"modes of {title}", document.command, len(document.processes), document.started_at
    for one in results.tunings:
        processes = sum(row.processes for row in one.rows) + 2 * one.pairs
        yield "best flags", one.search_command, processes, one.started_at
    by_campaign = {one.run_id for document in results.strategies for one in document.processes}
    others = (one for one in results.processes if one[1].run_id not in by_campaign)
    first: dict[str, tuple[str, ...]] = {}

    def campaign(one: tuple[str, RunRecord | AllReduceRecord]) -> tuple[str, tuple[str, ...]]:
        name, record = one
        place = record.sweep or {}
        sweep = place.get("command")
        if isinstance(sweep, list) and sweep and all(isinstance(word, str) for word in sweep):
            return f"suite {place.get('suite')}", tuple(sweep)
        if isinstance(record, RunRecord):  # whose command names another file for each record
            return name, first.setdefault(name, record.command)
        return name, record.command

    for (name, words), alike in grouped(others, campaign).items():
        starts = (record.started_at for _, record in alike)
        yield name, words, len(alike), min(starts, key=started)
