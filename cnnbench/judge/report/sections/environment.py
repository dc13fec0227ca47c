"""Sections of a report about the machine: disturbances of the measurements, and properties of
machine and software.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cnnbench.base.document import (
    Answer,
    Content,
    Paragraph,
    Row,
    TableCell,
    make_table,
    numeric_cell,
)
from cnnbench.base.stats import group_by
from cnnbench.base.tables import natural_key
from cnnbench.base.text import count_text, integer, number, percent
from cnnbench.judge.compare.facts import UNKNOWN, DifferenceEffect, fact_rule
from cnnbench.judge.metrics.measurement import fact_text, readable_fact
from cnnbench.judge.report.results import (
    MOST_LISTED,
    ReportSubject,
    RunGroup,
    shown_count_text,
    start_time_text,
)
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.run import ConditionNote

_MOST_NAMED = 3


def conditions_answer(results: ReportSubject) -> Answer | None:
    """Returns the answer with the most frequent disturbances, or that there were none; None if no
    conditions were recorded.
    """
    found = _collect_remarks(results)
    if not found.checked:
        return None
    if not found.marked:
        return Answer("Conditions", "Nothing disturbed the measurements", "good")
    details = (
        f"{name} {phase}: {len(notes)} of {found.checked}; for example, {notes[0].text}"
        for name, phase, notes in found.remarks[:_MOST_NAMED]
    )
    verb = "was" if found.marked == 1 else "were"
    of = count_text(found.checked, "process", "processes")
    text = f"{found.marked} of {of} {verb} disturbed"
    return Answer("Conditions", text, "unsure", tuple(details))


def conditions_section(results: ReportSubject) -> Iterable[Content]:
    """Yields the section about conditions such as load, if they disturbed a process: a table of
    remarks, the most frequent first, and of disturbances by configuration.
    """
    found = _collect_remarks(results)
    if not found.marked:
        return
    processes = count_text(found.checked, "process", "processes")
    text = f"In {found.marked} of {processes} something may have distorted the values."
    yield Paragraph(text, "unsure")
    yield make_table(
        {
            "condition": name,
            "when": TableCell(phase, kinds="steady"),
            "processes": numeric_cell(len(notes), f"{len(notes)} of {found.checked}"),
            "for example": TableCell(notes[0].text, kinds="prose"),
            "advice": TableCell(notes[0].advice, kinds="prose"),
        }
        for name, phase, notes in found.remarks
    )
    good = (group for group in results.configured if group.successful)
    yield make_table(map(_disturbance_row, good), title="During the timed steps")


_PHASES = {"before": "before the steps", "during": "in the timed steps"}


class _Disturbances(NamedTuple):
    """The remarks of successful processes about their conditions.

    Attributes:
      checked: number of processes that recorded their conditions.
      marked: number of processes with remarks.
      remarks: the remarks by condition and phase, both as text, with at most one remark per
        process. The most frequent group is first.
    """

    checked: int
    marked: int
    remarks: list[tuple[str, str, list[ConditionNote]]]


def _collect_remarks(results: ReportSubject) -> _Disturbances:
    good = (record.conditions for _, record in results.processes if record.status == "ok")
    checked = [condition for condition in good if condition is not None]
    notes = (
        note
        for condition in checked
        for note in {(note.id, note.when): note for note in condition.notes}.values()
    )
    by_kind = group_by(notes, lambda note: (note.id, note.when))
    kinds = [
        (CONDITIONS.get(check, check), _PHASES.get(when, when), notes_of_kind)
        for (check, when), notes_of_kind in by_kind.items()
    ]
    marked = sum(bool(condition.notes) for condition in checked)
    kinds.sort(key=lambda kind: len(kind[2]), reverse=True)
    return _Disturbances(len(checked), marked, kinds)


def _disturbance_row(group: RunGroup) -> Row:
    def most(name: str, text: Callable[[float], str]) -> TableCell:
        loads = group.process_values(lambda run: run.condition(name))
        return numeric_cell(max(loads.values, default=None), text)

    busy = group.process_values(lambda run: run.condition("other_cpus"))
    return {
        "configuration": group.name,
        "CPUs used by others, median": numeric_cell(busy.median),
        "CPUs used by others, at most": most("other_cpus", number),
        "stolen by the hypervisor, at most": most("steal_fraction", percent),
        "throttled, s, at most": most("quota_seconds", number),
        "pages swapped, at most": most("swapped_pages", integer),
        "slowed for heat, times": most("thermal_events", integer),
    }


def environment_section(results: ReportSubject) -> Iterable[Content]:
    """Yields a table of the properties of machine and software that differ between runs, with a row
    per run.
    """
    described = [(name, record) for name, record in results.processes if record.environment]
    environments = [record.environment for _, record in described]
    names = sorted({name for facts in environments for name in facts}, key=natural_key)
    unlike = [name for name in names if not _is_same(name, environments)]
    # Properties that affect speed come first.
    unlike.sort(key=lambda name: [*DifferenceEffect].index(fact_rule(name).effect))
    yield _mixed_remark(results, unlike)
    runs = []
    for configuration, record in described[-MOST_LISTED:] if unlike else ():
        row: dict[str, TableCell | str] = {
            "started (UTC)": TableCell(start_time_text(record.started_at), kinds="steady"),
            "configuration": configuration,
            "run": record.run_id[:8],
        }
        # In an imported record, a property can have the same name as a column above; then the
        # column is kept.
        for name in unlike:
            row.setdefault(name, readable_fact(name, record.environment.get(name, "")))
        runs.append(row)
    which = shown_count_text(len(runs), len(described)) if runs else ""
    yield make_table(runs, title=f"Different from run to run{which}")


def _mixed_remark(results: ReportSubject, unlike: Sequence[str]) -> Paragraph | None:
    """Returns a remark with the recorded properties that affect speed and differ between runs of
    the same configuration; None if there are none.
    """
    groups = [
        [run.environment for run in group.successful if run.environment]
        for group in results.configured
    ]
    deciding = (name for name in unlike if fact_rule(name).effect is DifferenceEffect.BLOCKS)
    differing = [name for name in deciding if not all(_is_same(name, group) for group in groups)]
    message = (
        "Runs of the same configuration differ in properties that affect speed, so their medians "
        f"mix different conditions: {', '.join(differing)}."
    )
    return Paragraph(message, "unsure") if differing else None


def _is_same(name: str, environments: Sequence[Mapping[str, Any]]) -> bool:
    return len({fact_text(facts.get(name, UNKNOWN), name) for facts in environments}) <= 1
