"""Sections on the machine: disturbances of the measurements, and its environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from cnnbench.base.text import numbers
from cnnbench.base.text.numbers import count
from cnnbench.base.text.table import natural_key
from cnnbench.judge.metrics.comparable_facts import Role, fact
from cnnbench.judge.metrics.measurement import fact_text, readable_fact
from cnnbench.judge.report.document import (
    Answer,
    Content,
    TableColumn,
    Text,
    number,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import Configured, ReportSubject, time_text
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.parts import ConditionNote, Conditions
from cnnbench.records.run import RunRecord

_ROLES = (Role.BLOCKS, Role.MENTIONED, Role.IGNORED)
_UNKNOWN = "unknown"
_MOST_NAMED = 3


def disturbances(results: ReportSubject) -> Answer | None:
    """The most frequent disturbance, or that there was none; None if nothing was checked."""
    checked = _checked(results)
    marked = sum(bool(one.notes) for one in checked)
    if not checked:
        return None
    if not marked:
        return Answer("Conditions", "Nothing disturbed the measurements", "good")
    details = (
        f"{_kind(notes)} {_when(notes)}: {len(notes)} of {len(checked)}; for example, "
        f"{notes[0].text}"
        for notes in _remarks(checked)[:_MOST_NAMED]
    )
    verb = "was" if marked == 1 else "were"
    text = f"{marked} of {count(len(checked), 'process', 'processes')} {verb} disturbed"
    return Answer("Conditions", text, "unsure", tuple(details))


@section("conditions", "Conditions", folded=True)
def conditions(results: ReportSubject) -> Iterable[Content]:
    """Remarks by kind, the most frequent first, and disturbances by configuration."""
    checked = _checked(results)
    if not checked:
        return
    if marked := sum(bool(one.notes) for one in checked):
        message = f"In {marked} of {len(checked)} processes something may have distorted the "
        yield Text(f"{message}values.", "unsure")
    else:
        yield Text("No check had a remark.", "good")
    remarks: tuple[TableColumn[list[ConditionNote]], ...] = (
        TableColumn("condition", _kind),
        TableColumn("when", _when, "steady"),
        TableColumn(
            "processes",
            lambda notes: number(len(notes), f"{len(notes)} of {len(checked)}"),
            "number",
        ),
        TableColumn("for example", lambda notes: notes[0].text, "prose"),
        TableColumn("advice", lambda notes: notes[0].advice, "prose"),
    )
    yield table(remarks, _remarks(checked))
    good = (one for one in results.configured if one.good)
    yield table(_DISTURBANCES, good, title="During the timed steps")


def _checked(results: ReportSubject) -> list[Conditions]:
    """Conditions of the successful processes that have any."""
    good = (one.conditions for _, one in results.processes if one.status == "ok")
    return [one for one in good if one is not None]


def _remarks(checked: Iterable[Conditions]) -> list[list[ConditionNote]]:
    """Notes by kind and time, at most one per run; the most frequent first."""
    found: dict[tuple[str, str], list[ConditionNote]] = {}
    for one in checked:
        for place, note in {(note.id, note.when): note for note in one.notes}.items():
            found.setdefault(place, []).append(note)
    return sorted(found.values(), key=lambda notes: -len(notes))


def _kind(notes: Sequence[ConditionNote]) -> str:
    return CONDITIONS.get(notes[0].id, notes[0].id)


def _when(notes: Sequence[ConditionNote]) -> str:
    when = notes[0].when
    return {"before": "before the steps", "during": "in the timed steps"}.get(when, when)


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


@section("environment", "Environment", folded=True)
def environment(results: ReportSubject) -> Iterable[Content]:
    """A table of equal facts, and one of the others with a row per run."""
    described = [(name, one) for name, one in results.processes if one.environment]
    environments = [one.environment for _, one in described]
    names = sorted({name for facts in environments for name in facts}, key=natural_key)
    alike = [name for name in names if _same(name, environments)]
    # Facts that affect speed come first.
    unlike = [name for name in names if name not in alike]
    unlike.sort(key=lambda name: _ROLES.index(fact(name).role))
    shared: tuple[TableColumn[str], ...] = (
        TableColumn("fact", lambda name: name),
        TableColumn("value", lambda name: readable_fact(name, environments[0][name]), "code"),
    )
    yield table(shared, alike, title="Alike in all runs" if len(described) > 1 else "")
    yield _mixture(results, unlike)
    runs: list[TableColumn[tuple[str, Any]]] = [
        TableColumn("started (UTC)", lambda one: time_text(one[1].started_at), "steady"),
        TableColumn("configuration", lambda one: one[0]),
        TableColumn("run", lambda one: one[1].run_id[:8]),
        *(TableColumn(name, partial(_fact_of, name)) for name in unlike),
    ]
    yield table(runs, described if unlike else (), title="Different from run to run", folded=True)


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
    return Text(f"{message}are those of a mixture: {', '.join(found)}.", "unsure")


def _same(name: str, environments: Sequence[Mapping[str, Any]]) -> bool:
    return len({fact_text(facts.get(name, _UNKNOWN)) for facts in environments}) <= 1
