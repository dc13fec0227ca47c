"""Reproduction of the results: software with its commits, and the commands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cnnbench.base.text.numbers import integer
from cnnbench.judge.metrics.measurement import fact_text
from cnnbench.judge.metrics.origin import machine_name
from cnnbench.judge.report.document import (
    Section,
    TableColumn,
    Text,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import ReportSubject
from cnnbench.judge.report.sections.modes import titled
from cnnbench.records.codec import started
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject, subject_of

_MOST_UNFOLDED = 12


class _Software(NamedTuple):
    """Versions, commits and machine; "" where unknown."""

    cnnbench: str
    commit: str
    tensorflow: str
    python: str
    repository: str
    revision: str
    machine: str


class _Command(NamedTuple):
    """A command that repeats a measurement, and the number of processes that it started."""

    of: str
    words: Sequence[str]
    processes: int
    started_at: str


def reproduce(results: ReportSubject) -> Section | None:
    """Versions and commits with numbers of processes, and a command per campaign or run."""
    software = Counter(_all_software(results))
    if not software:
        return None
    commands = sorted(_commands(results), key=lambda one: started(one.started_at))
    text = (
        "These commands, with these versions on an equal machine, measure it again; commits with a "
        "plus had changes. Every process has its own command under Runs and commands."
    )
    folded = len(commands) > _MOST_UNFOLDED
    return section(
        "reproduce",
        "How to reproduce it",
        Text(text=text),
        table(_SOFTWARE, software.items()),
        table(_COMMANDS, commands, title="Commands", folded=folded),
    )


def _all_software(results: ReportSubject) -> Iterable[_Software]:
    for _, one in results.processes:
        ab = getattr(one, "ab", None)
        yield _software(one.environment, subject_of(one.subject, one.config, ab))
    if not results.processes:
        for document in results.strategies:
            yield _software(document.environment, document.subject or Subject())


def _software(facts: Mapping[str, Any], subject: Subject) -> _Software:
    texts = {name: fact_text(value) for name, value in facts.items()}
    changed = facts.get("git_dirty") is True
    return _Software(
        texts.get("cnnbench_version", ""),
        _commit(texts.get("git_commit", ""), changed),
        texts.get("tensorflow_version", ""),
        texts.get("python_version", ""),
        subject.repository or "",
        _commit(subject.revision or "", bool(subject.dirty)),
        machine_name(texts),
    )


def _commit(revision: str, changed: bool) -> str:
    return f"{revision}+" if revision and changed else revision


def _commands(results: ReportSubject) -> Iterable[_Command]:
    for title, document in titled(results):
        yield _Command(
            f"modes of {title}",
            document.command,
            len(document.processes),
            document.started_at,
        )
    for one in results.tunings:
        processes = sum(row.processes for row in one.rows) + 2 * one.pairs
        yield _Command("best flags", one.search_command, processes, one.started_at)
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
        yield _Command(name, words, len(starts), min(starts, key=started))


_SOFTWARE: tuple[TableColumn[tuple[_Software, int]], ...] = (
    TableColumn("machine", lambda one: one[0].machine),
    TableColumn("cnnbench", lambda one: one[0].cnnbench),
    TableColumn("commit of cnnbench", lambda one: one[0].commit, "code"),
    TableColumn("TensorFlow", lambda one: one[0].tensorflow),
    TableColumn("Python", lambda one: one[0].python),
    TableColumn("measured in", lambda one: one[0].repository),
    TableColumn("its commit", lambda one: one[0].revision, "code"),
    numeric("processes", lambda one: one[1], integer),
)
_COMMANDS: tuple[TableColumn[_Command], ...] = (
    TableColumn("measures", lambda one: one.of),
    TableColumn("command", lambda one: shlex.join(one.words), "command"),
    numeric("processes", lambda one: one.processes, integer),
)
