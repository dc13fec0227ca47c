"""The section of a report about disturbances of the measurements, and the answer about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
from cnnbench.base.text import count_text, integer, number, percent
from cnnbench.judge.report.results import ReportSubject, RunGroup
from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.run import ConditionNote

_MOST_NAMED = 3


def disturbance_answer(results: ReportSubject) -> Answer | None:
    """Returns the answer with the most frequent disturbances, or that there were none; None if no
    conditions were recorded.
    """
    checked, marked, kinds = _count_disturbances(results)
    if not checked:
        return None
    if not marked:
        return Answer("Conditions", "Nothing disturbed the measurements", "good")
    details = (
        f"{name} {phase}: {len(notes)} of {checked}; for example, {notes[0].text}"
        for name, phase, notes in kinds[:_MOST_NAMED]
    )
    verb, of = "was" if marked == 1 else "were", count_text(checked, "process", "processes")
    text = f"{marked} of {of} {verb} disturbed"
    return Answer("Conditions", text, "unsure", tuple(details))


def conditions_section(results: ReportSubject) -> Iterable[Content]:
    """Yields the section about conditions such as load: a table of remarks, the most frequent
    first, and of disturbances by configuration.
    """
    checked, marked, kinds = _count_disturbances(results)
    if not checked:
        return
    processes = count_text(checked, "process", "processes")
    text = f"In {marked} of {processes} something may have distorted the values."
    yield (
        Paragraph(text, "unsure") if marked else Paragraph("No check found a disturbance.", "good")
    )
    yield make_table(
        {
            "condition": name,
            "when": TableCell(phase, kinds="steady"),
            "processes": numeric_cell(len(notes), f"{len(notes)} of {checked}"),
            "for example": TableCell(notes[0].text, kinds="prose"),
            "advice": TableCell(notes[0].advice, kinds="prose"),
        }
        for name, phase, notes in kinds
    )
    good = (group for group in results.configured if group.successful)
    yield make_table(map(_disturbance_row, good), title="During the timed steps")


_PHASES = {"before": "before the steps", "during": "in the timed steps"}


def _count_disturbances(
    results: ReportSubject,
) -> tuple[int, int, list[tuple[str, str, list[ConditionNote]]]]:
    """Returns the number of successful processes that recorded their conditions, the number of
    processes with remarks, and the remarks.

    Remarks are grouped by condition and phase, both as text, with at most one remark per process.
    The most frequent group is first.
    """
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
    return len(checked), marked, sorted(kinds, key=lambda kind: len(kind[2]), reverse=True)


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
