"""Sections on the machine: disturbances of the measurements, and its environment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cnnbench.machine.checks import CONDITIONS
from cnnbench.metrics.comparable_facts import Role, fact
from cnnbench.records.run import ConditionNote, RunRecord
from cnnbench.report.document import (
    Cell,
    Column,
    Section,
    Text,
    number,
    section,
    table,
    text_cell,
)
from cnnbench.report.results import Configured, Results, time_text
from cnnbench.text import numbers
from cnnbench.text.table import natural_key

_REMARKS = (
    Column("condition"),
    Column("when", steady=True),
    Column("processes", number=True),
    Column("for example", prose=True),
    Column("advice", prose=True),
)
_DISTURBANCES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("CPUs used by others, at most", "other_cpus", lambda value: f"{value:.2f}"),
    ("stolen by the hypervisor, at most", "steal_fraction", numbers.percent),
    ("throttled, s, at most", "quota_seconds", numbers.number),
    ("pages swapped, at most", "swapped_pages", lambda value: f"{value:.0f}"),
    ("slowed for heat, times", "thermal_events", lambda value: f"{value:.0f}"),
)
"""Title, name in the record and format of what is listed with its maximum over processes."""

_ROLES = (Role.BLOCKS, Role.MENTIONED, Role.IGNORED)
_UNKNOWN = "unknown"


def disturbed(results: Results) -> tuple[int, int]:
    """How many processes that succeeded have remarks, and how many were checked at all."""
    checked = [run.conditions for run in _good(results) if run.conditions is not None]
    return sum(bool(one.notes) for one in checked), len(checked)


def conditions(results: Results) -> Section | None:
    """Remarks by kind, the most frequent first, and disturbances by configuration."""
    marked, checked = disturbed(results)
    if not checked:
        return None
    summary = Text(text="No check had a remark.", tone="good")
    if marked:
        message = f"In {marked} of {checked} processes something may have distorted the values."
        summary = Text(text=message, tone="unsure")
    remarks = [_remark(notes, checked) for notes in _remarks(results)]
    columns = [Column("configuration"), Column("CPUs used by others, median", number=True)]
    columns += [Column(title, number=True) for title, _, _ in _DISTURBANCES]
    rows = [_disturbances(one) for one in results.configured if one.good]
    return section(
        "conditions",
        "Conditions",
        summary,
        table(_REMARKS, remarks) if remarks else None,
        table(columns, rows, title="During the timed steps"),
    )


def _good(results: Results) -> list[RunRecord]:
    return [record for one in results.configured for record in one.good]


def _remarks(results: Results) -> list[list[ConditionNote]]:
    """Notes by kind and time, at most one of each run."""
    found: dict[tuple[str, str], list[ConditionNote]] = {}
    for run in _good(results):
        notes = run.conditions.notes if run.conditions is not None else ()
        for place, note in {(one.id, one.when): one for one in notes}.items():
            found.setdefault(place, []).append(note)
    return sorted(found.values(), key=lambda notes: -len(notes))


def _remark(notes: list[ConditionNote], checked: int) -> tuple[Cell, ...]:
    first = notes[0]
    return (
        text_cell(CONDITIONS.get(first.id, first.id)),
        text_cell("before the steps" if first.when == "before" else "in the timed steps"),
        number(len(notes), f"{len(notes)} of {checked}"),
        text_cell(first.text),
        text_cell(first.advice),
    )


def _disturbances(one: Configured) -> list[Cell]:
    others = one.sample(partial(_disturbance, "other_cpus")).median
    cells = [text_cell(one.name), number(others, lambda value: f"{value:.2f}")]
    for _, name, text in _DISTURBANCES:
        values = one.sample(partial(_disturbance, name)).values
        cells.append(number(max(values, default=None), text))
    return cells


def _disturbance(name: str, run: RunRecord) -> float | None:
    value = None if run.conditions is None else run.conditions.during.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def environment(results: Results) -> Section | None:
    """A table of the facts that are alike, and one of the others with a row per run."""
    described = [(name, one) for name, one in results.processes if one.environment]
    environments = [one.environment for _, one in described]
    names = sorted({name for facts in environments for name in facts}, key=natural_key)
    if not names:
        return None
    alike = [name for name in names if _same(name, environments)]
    # What decides speed first.
    unlike = [name for name in names if name not in alike]
    unlike.sort(key=lambda name: _ROLES.index(fact(name).role))
    columns = (
        Column("started (UTC)", steady=True),
        Column("configuration"),
        Column("run"),
        *(Column(name) for name in unlike),
    )
    rows = [
        (
            text_cell(time_text(one.started_at)),
            text_cell(name),
            text_cell(one.run_id[:8]),
            *(text_cell(fact_text(one.environment.get(key, ""))) for key in unlike),
        )
        for name, one in described
    ]
    shared = [(text_cell(n), text_cell(fact_text(environments[0][n]))) for n in alike]
    title = "Alike in all runs" if len(described) > 1 else ""
    return section(
        "environment",
        "Environment",
        table((Column("fact"), Column("value", code=True)), shared, title=title) if alike else None,
        _mixture(results, unlike),
        table(columns, rows, title="Different from run to run", folded=True) if unlike else None,
    )


def fact_text(value: Any) -> str:
    """The value of a fact."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _mixture(results: Results, unlike: Sequence[str]) -> Text | None:
    """Names the facts that decide speed and differ within a configuration."""
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
