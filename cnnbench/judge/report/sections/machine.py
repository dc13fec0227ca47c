"""Sections on the machine: disturbances of the measurements, and its environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cnnbench.base.document import Answer, Content, Row, TableCell, Text, numeric, table
from cnnbench.base.grouping import grouped
from cnnbench.base.text import numbers
from cnnbench.base.text.numbers import count
from cnnbench.base.text.table import natural_key
from cnnbench.judge.metrics.comparable_facts import Effect, fact
from cnnbench.judge.metrics.measurement import fact_text, readable_fact
from cnnbench.judge.report.results import (
    MOST_LISTED,
    Configured,
    ReportSubject,
    newest_text,
    time_text,
)
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.parts import ConditionNote

_UNKNOWN = "unknown"
_MOST_NAMED = 3


def disturbances(results: ReportSubject) -> Answer | None:
    """The most frequent disturbance, or that there was none; None if nothing was checked."""
    checked, marked, kinds = _checked(results)
    if not checked:
        return None
    if not marked:
        return Answer("Conditions", "Nothing disturbed the measurements", "good")
    details = (
        f"{_kind(notes)} {_when(notes)}: {len(notes)} of {checked}; for example, {notes[0].text}"
        for notes in kinds[:_MOST_NAMED]
    )
    verb = "was" if marked == 1 else "were"
    text = f"{marked} of {count(checked, 'process', 'processes')} {verb} disturbed"
    return Answer("Conditions", text, "unsure", tuple(details))


def conditions(results: ReportSubject) -> Iterable[Content]:
    """Remarks by kind, the most frequent first, and disturbances by configuration."""
    checked, marked, kinds = _checked(results)
    if not checked:
        return
    text = f"In {marked} of {checked} processes something may have distorted the values."
    yield Text(text, "unsure") if marked else Text("No check had a remark.", "good")
    yield table(
        {
            "condition": _kind(notes),
            "when": TableCell(_when(notes), kinds="steady"),
            "processes": numeric(len(notes), f"{len(notes)} of {checked}"),
            "for example": TableCell(notes[0].text, kinds="prose"),
            "advice": TableCell(notes[0].advice, kinds="prose"),
        }
        for notes in kinds
    )
    good = (one for one in results.configured if one.good)
    yield table(map(_disturbed, good), title="During the timed steps")


def _checked(results: ReportSubject) -> tuple[int, int, list[list[ConditionNote]]]:
    """Numbers of successful processes with conditions and with notes, and the notes.

    Notes are by kind and time, at most one per process, the most frequent first.
    """
    good = (one.conditions for _, one in results.processes if one.status == "ok")
    checked = [one for one in good if one is not None]
    notes = (
        note
        for one in checked
        for note in {(note.id, note.when): note for note in one.notes}.values()
    )
    kinds = grouped(notes, lambda note: (note.id, note.when)).values()
    marked = sum(bool(one.notes) for one in checked)
    return len(checked), marked, sorted(kinds, key=len, reverse=True)


def _kind(notes: Sequence[ConditionNote]) -> str:
    return CONDITIONS.get(notes[0].id, notes[0].id)


def _when(notes: Sequence[ConditionNote]) -> str:
    when = notes[0].when
    return {"before": "before the steps", "during": "in the timed steps"}.get(when, when)


def _disturbed(one: Configured) -> Row:
    def most(name: str, text: Callable[[float], str]) -> TableCell:
        found = one.sample(lambda run: run.condition(name))
        return numeric(max(found.values, default=None), text)

    busy = one.sample(lambda run: run.condition("other_cpus"))
    return {
        "configuration": one.name,
        "CPUs used by others, median": numeric(busy.median),
        "CPUs used by others, at most": most("other_cpus", numbers.number),
        "stolen by the hypervisor, at most": most("steal_fraction", numbers.percent),
        "throttled, s, at most": most("quota_seconds", numbers.number),
        "pages swapped, at most": most("swapped_pages", numbers.integer),
        "slowed for heat, times": most("thermal_events", numbers.integer),
    }


def environment(results: ReportSubject) -> Iterable[Content]:
    """A table of equal facts, and one of the others with a row per run."""
    described = [(name, one) for name, one in results.processes if one.environment]
    environments = [one.environment for _, one in described]
    names = sorted({name for facts in environments for name in facts}, key=natural_key)
    alike = [name for name in names if _same(name, environments)]
    # Facts that affect speed come first.
    unlike = [name for name in names if name not in alike]
    unlike.sort(key=lambda name: [*Effect].index(fact(name).effect))
    shared: Iterable[Row] = (
        {"fact": name, "value": TableCell(readable_fact(name, environments[0][name]), kinds="code")}
        for name in alike
    )
    yield table(shared, title="Alike in all runs" if len(described) > 1 else "")
    yield _mixture(results, unlike)
    runs = []
    for configuration, one in described[-MOST_LISTED:] if unlike else ():
        row: dict[str, TableCell | str] = {
            "started (UTC)": TableCell(time_text(one.started_at), kinds="steady"),
            "configuration": configuration,
            "run": one.run_id[:8],
        }
        for name in unlike:  # records from elsewhere may have a fact of any name
            row.setdefault(name, readable_fact(name, one.environment.get(name, "")))
        runs.append(row)
    which = newest_text(len(runs), len(described)) if runs else ""
    yield table(runs, title=f"Different from run to run{which}", folded=True)


def _mixture(results: ReportSubject, unlike: Sequence[str]) -> Text | None:
    """Names of facts that affect speed and differ within a configuration."""
    groups = [
        [run.environment for run in one.good if run.environment] for one in results.configured
    ]
    deciding = (name for name in unlike if fact(name).effect is Effect.BLOCKS)
    found = [name for name in deciding if not all(_same(name, group) for group in groups)]
    message = "Runs of one configuration differ in facts that decide speed, so that their values "
    message += f"are those of a mixture: {', '.join(found)}."
    return Text(message, "unsure") if found else None


def _same(name: str, environments: Sequence[Mapping[str, Any]]) -> bool:
    return len({fact_text(facts.get(name, _UNKNOWN), name) for facts in environments}) <= 1
