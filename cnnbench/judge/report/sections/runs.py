"""Sections of a report about processes: failures, their commands, and how to reproduce them. The
answer of a report without a baseline: how fast the processes were.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from cnnbench.base.document import (
    Answer,
    Content,
    Row,
    TableCell,
    make_table,
    numeric_cell,
    prepend_docstring,
)
from cnnbench.base.stats import group_by
from cnnbench.base.text import capitalized, first_lines, integer, number
from cnnbench.judge.metrics.measurement import fact_text
from cnnbench.judge.metrics.origin import machine_name
from cnnbench.judge.report.results import (
    MOST_LISTED,
    ReportSubject,
    speed_and_certainty,
    start_time_text,
)
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import parse_start_time
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject, subject_of_record

_MOST_NAMED = 3


def speed_answer(results: ReportSubject) -> Answer | None:
    """Returns the answer of a report without a baseline: the mean speed of each configuration over
    its processes, and how certain it is. None if the report is only about all-reduces, which have
    their own answers.
    """
    hint = "--baseline=RECORDS judges these records against others"
    measured = [
        (
            group.name,
            *speed_and_certainty(
                group.raw_speeds,
                imported=any(run.imported is not None for run in group.records),
                is_job=group.is_job,
            ),
            fmean(group.raw_speeds),
        )
        for group in results.configured
        if group.raw_speeds
    ]
    if not measured and not results.configured and results.allreduces:
        return None
    if not measured:
        return Answer("Speed", "No speed was measured", "", ("No process has timed steps",))
    if len(measured) == 1:
        ((name, speed, certainty, _),) = measured
        return Answer(f"Speed of {name}", speed, "", (capitalized(certainty), hint))
    means = [mean for *_, mean in measured]
    ends = f"{number(min(means))} to {number(max(means))} images/sec"
    lines = [f"{name}: {speed}, {certainty}" for name, speed, certainty, _ in measured]
    shown = first_lines(lines, _MOST_NAMED, "and {} more, under Throughput")
    return Answer(f"Speed of {len(measured)} configurations", ends, "", (*shown, hint))


def failures_section(results: ReportSubject) -> Iterable[Content]:
    """Yields failed and interrupted runs with their errors, and skipped files with the reason."""
    if failed := [process for process in results.processes if process[1].status != "ok"]:
        yield "These runs have no values in this report, except valid points of all-reduces."
        yield make_table(_failure_row(*process) for process in failed[-MOST_LISTED:])
        if len(failed) > MOST_LISTED:
            yield f"The newest {MOST_LISTED} of {integer(len(failed))} are listed."
    files = (
        {
            "file": TableCell(file.path, kinds="code"),
            "reason": TableCell(file.reason, kinds="prose"),
            "kind": TableCell("a fault", tone="bad") if file.defect else "no fault",
        }
        for file in results.skipped[:MOST_LISTED]
    )
    yield make_table(files, title="Skipped files")


def _failure_row(name: str, record: RunRecord | AllReduceRecord) -> Row:
    steps = ""
    if isinstance(record, RunRecord):
        steps = f"{record.steps} of {record.config.get('num_batches') or '?'}"
    return {
        "configuration": name,
        "status": TableCell(record.status, tone="bad"),
        "error": TableCell(error_text(record), kinds="prose"),
        "timed steps": steps,
        "started (UTC)": TableCell(start_time_text(record.started_at), kinds="steady"),
        "run": TableCell(record.run_id, kinds="code"),
    }


def _imported_file(record: RunRecord | AllReduceRecord) -> str:
    """Returns the name of the file from which a record was imported; "" for other records."""
    imported = record.imported if isinstance(record, RunRecord) else None
    return "" if imported is None else imported.file


def _has_command(record: RunRecord | AllReduceRecord) -> bool:
    """Whether the command of a process is known. That of an imported process may be unknown."""
    return bool(record.command) or not _imported_file(record)


def error_text(run: RunRecord | AllReduceRecord) -> str:
    """Returns text with the error of a run that failed or was interrupted."""
    error = run.error
    return "stopped before its end" if error is None else f"{error.type}: {error.message}"


_MOST_UNFOLDED = 12


@prepend_docstring
def reproduction_section(results: ReportSubject) -> Iterable[Content]:
    """To measure the results again, run these commands with the same versions on a machine of the
    same kind. A plus after a commit means uncommitted changes.
    """
    software = group_by(_software_rows(results), lambda row: (*row.values(),))
    if not software:
        return
    yield make_table(
        {**alike[0], "processes": numeric_cell(len(alike))} for alike in software.values()
    )
    commands = sorted(_commands(results), key=lambda command: parse_start_time(command[3]))
    rows: Iterable[Row] = (
        {
            "measures": name,
            "command": TableCell(shlex.join(words), kinds="command"),
            "processes": numeric_cell(processes),
        }
        for name, words, processes, _ in commands
    )
    yield make_table(rows, title="Commands", folded=len(commands) > _MOST_UNFOLDED)


def _software_rows(results: ReportSubject) -> Iterable[Row]:
    for _, record in results.processes:
        if not _has_command(record):
            continue
        ab = getattr(record, "ab", None)
        yield _software_row(
            record.environment, subject_of_record(record.subject, record.config, ab)
        )


def _software_row(facts: Mapping[str, Any], subject: Subject) -> Row:
    """Returns the table cells with the machine, versions and commits of a process; "" for unknown
    values.
    """
    texts = {name: fact_text(value) for name, value in facts.items()}
    own = Subject(dirty=facts.get("git_dirty") is True, changes=texts.get("git_changes"))
    return {
        "machine": machine_name(texts),
        "cnnbench": texts.get("cnnbench_version", ""),
        "commit of cnnbench": _commit_cell(texts.get("git_commit", ""), own),
        "TensorFlow": texts.get("tensorflow_version", ""),
        "Python": texts.get("python_version", ""),
        "measured in": subject.repository or "",
        "its commit": _commit_cell(subject.revision or "", subject),
    }


def _commit_cell(revision: str, state: Subject) -> TableCell:
    changes = f"+{state.changes or ''}" if revision and state.dirty else ""
    return TableCell(f"{revision}{changes}", kinds="code")


def _commands(results: ReportSubject) -> Iterable[tuple[str, Sequence[str], int, str]]:
    """Yields, for each command, the name of the measurement, the words of the command, the number
    of processes, and the start time.
    """
    for tuning in results.tunings:
        processes = sum(row.processes for row in tuning.rows) + 2 * tuning.pairs
        yield "best flags", tuning.search_command, processes, tuning.started_at
    others = (process for process in results.processes if _has_command(process[1]))
    first: dict[str, tuple[str, ...]] = {}

    def campaign_command(
        process: tuple[str, RunRecord | AllReduceRecord],
    ) -> tuple[str, tuple[str, ...]]:
        name, record = process
        place = record.sweep or {}
        sweep = place.get("command")
        is_command = isinstance(sweep, list) and all(isinstance(word, str) for word in sweep)
        words = tuple(sweep) if is_command and sweep else ()
        # A command that names a file of the user cannot be repeated by others, so the commands of
        # the processes are listed instead.
        if words and not any(word.endswith((".yaml", ".yml")) for word in words):
            return f"suite {place.get('suite')}", words
        # Repeated runs have commands that differ only in the output file, so the first one
        # represents them.
        if isinstance(record, RunRecord):
            return name, first.setdefault(name, record.command)
        return name, record.command

    for (name, words), alike in group_by(others, campaign_command).items():
        starts = (record.started_at for _, record in alike)
        yield name, words, len(alike), min(starts, key=parse_start_time)
