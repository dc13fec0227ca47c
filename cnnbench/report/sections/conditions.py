"""What else the machine did: remarks of the runs' own checks, and quantities beside them."""

from __future__ import annotations

from collections.abc import Callable

from cnnbench.machine.checks import CONDITIONS
from cnnbench.records.run import ConditionNote, RunRecord
from cnnbench.report.document import (
    Block,
    Cell,
    Column,
    Section,
    Text,
    figure,
    number,
    percent,
    table,
    words,
)
from cnnbench.report.material import Material
from cnnbench.report.samples import Configured

_REMARKS = (
    Column("condition"),
    Column("when", steady=True),
    Column("processes", number=True),
    Column("for example", prose=True),
    Column("advice", prose=True),
)
_QUANTITIES = (
    Column("configuration"),
    Column("CPUs used by others, median", number=True),
    Column("at most", number=True),
    Column("stolen by the hypervisor, at most", number=True),
    Column("throttled, s, at most", number=True),
    Column("pages swapped, at most", number=True),
    Column("slowed for heat, times", number=True),
)


def disturbed(material: Material) -> tuple[int, int]:
    """How many processes that went well have remarks, and how many looked at all."""
    looked = [run.conditions for run in _good(material) if run.conditions is not None]
    return sum(bool(one.notes) for one in looked), len(looked)


def section(material: Material) -> Section | None:
    """Remarks by kind, the most frequent first, and quantities by configuration."""
    marked, looked = disturbed(material)
    if not looked:
        return None
    told = "No check had anything to remark."
    if marked:
        told = f"In {marked} of {looked} processes something may have spoiled the figures."
    blocks: list[Block] = [Text(text=told, tone="unsure" if marked else "good")]
    remarks = _remarks(material)
    if remarks:
        blocks.append(table(_REMARKS, [_remark(notes, looked) for notes in remarks]))
    rows = [_row(one) for one in material.configured if one.good]
    blocks.append(table(_QUANTITIES, rows, title="During the timed steps"))
    return Section(key="conditions", title="Conditions", blocks=tuple(blocks))


def _good(material: Material) -> list[RunRecord]:
    return [record for one in material.configured for record in one.good]


def _remarks(material: Material) -> list[list[ConditionNote]]:
    """Notes by kind and time, one of each run."""
    found: dict[tuple[str, str], list[ConditionNote]] = {}
    for run in _good(material):
        notes = run.conditions.notes if run.conditions is not None else ()
        for note in {(one.id, one.when): one for one in notes}.values():
            found.setdefault((note.id, note.when), []).append(note)
    return sorted(found.values(), key=lambda notes: -len(notes))


def _remark(notes: list[ConditionNote], looked: int) -> tuple[Cell, ...]:
    first = notes[0]
    return (
        words(CONDITIONS.get(first.id, first.id)),
        words("before the steps" if first.when == "before" else "in the timed steps"),
        number(len(notes), f"{len(notes)} of {looked}"),
        words(first.text),
        words(first.advice),
    )


def _row(one: Configured) -> tuple[Cell, ...]:
    def worst(name: str, write: Callable[[float], str]) -> Cell:
        values = one.sample(lambda run: _quantity(run, name)).values
        return number(max(values), write(max(values))) if values else number(None)

    others = one.sample(lambda run: _quantity(run, "other_cpus")).median
    return (
        words(one.name),
        number(others, None if others is None else f"{others:.2f}"),
        worst("other_cpus", lambda value: f"{value:.2f}"),
        worst("steal_fraction", percent),
        worst("quota_seconds", figure),
        worst("swapped_pages", lambda value: f"{value:.0f}"),
        worst("thermal_events", lambda value: f"{value:.0f}"),
    )


def _quantity(run: RunRecord, name: str) -> float | None:
    value = None if run.conditions is None else run.conditions.during.get(name)
    return float(value) if isinstance(value, (int, float)) else None
