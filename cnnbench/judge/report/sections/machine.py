"""Sections on the machine: disturbances of the measurements, and its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cnnbench.base.text import numbers
from cnnbench.base.text.numbers import count
from cnnbench.base.text.table import natural_key
from cnnbench.judge.metrics.comparable_facts import Role, fact
from cnnbench.judge.metrics.measurement import fact_text, readable_fact
from cnnbench.judge.report.document import (
    Answer,
    Section,
    TableColumn,
    Text,
    number,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import Configured, ReportSubject, time_text
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.parts import ConditionNote
from cnnbench.records.run import RunRecord

_ROLES = (Role.BLOCKS, Role.MENTIONED, Role.IGNORED)
_UNKNOWN = "unknown"
_MOST_NAMED = 3
_WHEN = {"before": "before the steps", "during": "in the timed steps"}


def disturbances(results: ReportSubject) -> Answer | None:
    """The most frequent disturbance, or that there was none; None if nothing was checked."""
    marked, checked = _disturbed(results)
    name = "Conditions"
    if not checked:
        return None
    if not marked:
        return Answer(name=name, text="Nothing disturbed the measurements", tone="good")
    processes = count(checked, "process", "processes")
    details = tuple(
        f"{CONDITIONS.get(notes[0].id, notes[0].id)} {_WHEN.get(notes[0].when, notes[0].when)}: "
        f"{len(notes)} of {checked}; for example, {notes[0].text}"
        for notes in _remarks(results)[:_MOST_NAMED]
    )
    verb = "was" if marked == 1 else "were"
    text = f"{marked} of {processes} {verb} disturbed"
    return Answer(name=name, text=text, tone="unsure", details=details)


def _disturbed(results: ReportSubject) -> tuple[int, int]:
    """Numbers of checked successful processes with remarks and of all of them."""
    checked = [run.conditions for run in _good(results) if run.conditions is not None]
    return sum(bool(one.notes) for one in checked), len(checked)


def conditions(results: ReportSubject) -> Section | None:
    """Remarks by kind, the most frequent first, and disturbances by configuration."""
    marked, checked = _disturbed(results)
    if not checked:
        return None
    summary = Text(text="No check had a remark.", tone="good")
    if marked:
        message = f"In {marked} of {checked} processes something may have distorted the values."
        summary = Text(text=message, tone="unsure")
    remarks: tuple[TableColumn[list[ConditionNote]], ...] = (
        TableColumn("condition", lambda notes: CONDITIONS.get(notes[0].id, notes[0].id)),
        TableColumn("when", lambda notes: _WHEN.get(notes[0].when, notes[0].when), "steady"),
        TableColumn(
            "processes", lambda notes: number(len(notes), f"{len(notes)} of {checked}"), "number"
        ),
        TableColumn("for example", lambda notes: notes[0].text, "prose"),
        TableColumn("advice", lambda notes: notes[0].advice, "prose"),
    )
    good = [one for one in results.configured if one.good]
    return section(
        "conditions",
        "Conditions",
        summary,
        table(remarks, _remarks(results)),
        table(_DISTURBANCES, good, title="During the timed steps"),
        folded=True,
    )


def _good(results: ReportSubject) -> list[RunRecord | AllReduceRecord]:
    return [one for _, one in results.processes if one.status == "ok"]


def _remarks(results: ReportSubject) -> list[list[ConditionNote]]:
    """Notes by kind and time, at most one per run; the most frequent first."""
    found: dict[tuple[str, str], list[ConditionNote]] = {}
    for run in _good(results):
        notes = run.conditions.notes if run.conditions is not None else ()
        for place, note in {(one.id, one.when): one for one in notes}.items():
            found.setdefault(place, []).append(note)
    return sorted(found.values(), key=lambda notes: -len(notes))


def _disturbance(name: str, run: RunRecord) -> float | None:
    value = None if run.conditions is None else run.conditions.during.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _most(title: str, name: str, text: Callable[[float], str]) -> TableColumn[Configured]:
    value = partial(_disturbance, name)
    return numeric(title, lambda one: max(one.sample(value).values, default=None), text)


_OTHERS = partial(_disturbance, "other_cpus")
_DISTURBANCES: tuple[TableColumn[Configured], ...] = (
    TableColumn("configuration", lambda one: one.name),
    numeric("CPUs used by others, median", lambda one: one.sample(_OTHERS).median, numbers.number),
    _most("CPUs used by others, at most", "other_cpus", numbers.number),
    _most("stolen by the hypervisor, at most", "steal_fraction", numbers.percent),
    _most("throttled, s, at most", "quota_seconds", numbers.number),
    _most("pages swapped, at most", "swapped_pages", numbers.integer),
    _most("slowed for heat, times", "thermal_events", numbers.integer),
)


def environment(results: ReportSubject) -> Section | None:
    """A table of equal facts, and one of the others with a row per run."""
    described = [(name, one) for name, one in results.processes if one.environment]
    environments = [one.environment for _, one in described]
    names = sorted({name for facts in environments for name in facts}, key=natural_key)
    if not names:
        return None
    alike = [name for name in names if _same(name, environments)]
    # Facts that affect speed come first.
    unlike = [name for name in names if name not in alike]
    unlike.sort(key=lambda name: _ROLES.index(fact(name).role))
    runs: list[TableColumn[tuple[str, Any]]] = [
        TableColumn("started (UTC)", lambda one: time_text(one[1].started_at), "steady"),
        TableColumn("configuration", lambda one: one[0]),
        TableColumn("run", lambda one: one[1].run_id[:8]),
        *(TableColumn(name, partial(_fact_of, name)) for name in unlike),
    ]
    shared: tuple[TableColumn[str], ...] = (
        TableColumn("fact", lambda name: name),
        TableColumn("value", lambda name: readable_fact(name, environments[0][name]), "code"),
    )
    return section(
        "environment",
        "Environment",
        table(shared, alike, title="Alike in all runs" if len(described) > 1 else ""),
        _mixture(results, unlike),
        table(runs, described if unlike else (), title="Different from run to run", folded=True),
        folded=True,
    )


def _fact_of(name: str, process: tuple[str, Any]) -> str:
    return readable_fact(name, process[1].environment.get(name, ""))


def _mixture(results: ReportSubject, unlike: Sequence[str]) -> Text | None:
    """Names of facts that affect speed and differ within a configuration."""
    groups = [
        [record.environment for record in one.good if record.environment]
        for one in results.configured
    ]
    found = [
        name
        for name in unlike
        if fact(name).role is Role.BLOCKS and not all(_same(name, group) for group in groups)
    ]
    if not found:
        return None
    message = "Runs of one configuration differ in facts that decide speed, so that their values "
    return Text(text=f"{message}are those of a mixture: {', '.join(found)}.", tone="unsure")


def _same(name: str, environments: Sequence[Mapping[str, Any]]) -> bool:
    return len({fact_text(facts.get(name, _UNKNOWN)) for facts in environments}) <= 1
