"""A roofline as a table, as files for programs, and as a plot."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cnnbench.base.charts import Axis, Lines, Series
from cnnbench.base.text.numbers import binary, count, number, percent
from cnnbench.base.text.table import csv_text, fitted, wrapped
from cnnbench.lab.roofline.rows import Machine, Roofline, Row
from cnnbench.lab.roofline.work import FORWARD, TO_INPUT, TO_KERNEL
from cnnbench.records.codec import encode

_NUMBERS = ("ms", "of step", "GFLOP", "moved", "FLOP/byte", "GFLOP/s", "bound ms", "of bound")
_SPARE = ("FLOP/byte", "GFLOP/s", "moved", "bound ms", "GFLOP")
"""Columns that a narrow terminal leaves out, the first one first."""

_DIRECTIONS = (FORWARD, TO_INPUT, TO_KERNEL)


def table(roofline: Roofline, title: str, most: int) -> str:
    """The rows, their sums by kind, and what they add up to.

    Args:
      roofline: what was measured.
      title: the first line.
      most: rows to print, 0 for all.
    """
    step, rows = roofline.step_seconds, roofline.rows
    shown = rows[:most] if most else rows
    lines = [title, *wrapped(_about(roofline)), ""]
    cells = [["layer", "kind", "direction", *_NUMBERS, "to win ms"]]
    cells += [[row.layer, row.kind, row.direction, *_numbers(row, step)] for row in shown]
    lines += fitted(cells, (0, 1, 2), [cells[0].index(name) for name in _SPARE])
    if len(shown) < len(rows):
        rest = sum(row.winnable_seconds for row in rows[len(shown) :])
        more = count(len(rows) - len(shown), "row", "rows")
        lines.append(f"{more} more, with {number(rest * 1e3)} ms to win; --rows=0 prints all")
    cells = [["sums by kind", "direction", *_NUMBERS, "to win ms"]]
    for row in _sums(roofline):
        cells.append([row.kind or "all operations", row.direction, *_numbers(row, step)])
    lines += ["", *fitted(cells, (0, 1), [cells[0].index(name) for name in _SPARE]), ""]
    lines += wrapped(_adds_up(roofline))
    return "\n".join(lines)


def _sums(roofline: Roofline) -> list[Row]:
    return [*roofline.kinds, roofline.total]


def _about(roofline: Roofline) -> str:
    machine = roofline.machine
    return (
        f"bound: {number(machine.flops_per_sec / 1e9)} GFLOP/s ({machine.flops_source}) and "
        f"{number(machine.bytes_per_sec / 1e9)} GB/s read and written ({machine.bytes_source}), "
        f"which meet at {number(machine.ridge)} FLOP/byte"
    )


def _adds_up(roofline: Roofline) -> str:
    step, rest = roofline.step_seconds, roofline.remainder_seconds
    return (
        f"{number((step - rest) * 1e3)} ms in operations and {number(rest * 1e3)} ms "
        f"({percent(rest / step)}) in none make a profiled step of {number(step * 1e3)} ms; "
        f"without a profiler it takes {number(roofline.unprofiled_seconds * 1e3)} ms"
    )


def _numbers(row: Row, step_seconds: float) -> list[str]:
    rate = row.flops / row.seconds / 1e9 if row.flops and row.seconds else None
    return [
        number(row.seconds * 1e3),
        percent(row.seconds / step_seconds),
        number(row.flops / 1e9 if row.flops else None),
        binary(row.bytes or None),
        number(row.intensity),
        number(rate),
        number(row.bound_seconds * 1e3),
        percent(row.share_of_bound),
        number(row.winnable_seconds * 1e3),
    ]


def to_csv(roofline: Roofline) -> str:
    """A line per row, then one for the remainder; all digits."""
    rest = Row("", "remainder", "", roofline.remainder_seconds, 0, 0, 0.0)
    rows = [asdict(_of(row, roofline.step_seconds)) for row in (*roofline.rows, rest)]
    return csv_text(rows[0], (row.values() for row in rows))


@dataclass(frozen=True, kw_only=True)
class RooflineRow:
    """A `Row` with what follows from it.

    Attributes:
      layer, kind, direction: "" where rows are added up over them.
      seconds: of the wall time of a step.
      flops: of convolutions and matrix products; 0 for others.
      bytes: read and written.
      bound_seconds: the least time that the machine would need.
      share_of_step: of the time of a step.
      flops_per_byte: None without FLOPs.
      share_of_bound: the bound over the measured time.
      winnable_seconds: what the time is above the bound.
    """

    layer: str
    kind: str
    direction: str
    seconds: float
    flops: int
    bytes: int
    bound_seconds: float
    share_of_step: float
    flops_per_byte: float | None
    share_of_bound: float | None
    winnable_seconds: float


@dataclass(frozen=True, kw_only=True)
class RooflineDocument:
    """What ``cnnbench roofline`` found.

    Attributes:
      config: parameters of the run by name.
      machine: the bound.
      step_seconds: of the profiled steps.
      unprofiled_step_seconds: of steps without a profiler.
      remainder_seconds: of a step in which no operation ran.
      rows: in the order of `Roofline`.
      kinds: sums by kind of operation and direction.
      total: the sum of all.
    """

    config: Mapping[str, Any]
    machine: Machine
    step_seconds: float
    unprofiled_step_seconds: float
    remainder_seconds: float
    rows: tuple[RooflineRow, ...]
    kinds: tuple[RooflineRow, ...]
    total: RooflineRow


def to_json(roofline: Roofline, config: Mapping[str, Any]) -> str:
    """Everything, with the parameters of the run.

    Args:
      roofline: what was measured.
      config: parameters by name.
    """
    step = roofline.step_seconds
    document = RooflineDocument(
        config=config,
        machine=roofline.machine,
        step_seconds=step,
        unprofiled_step_seconds=roofline.unprofiled_seconds,
        remainder_seconds=roofline.remainder_seconds,
        rows=tuple(_of(row, step) for row in roofline.rows),
        kinds=tuple(_of(row, step) for row in roofline.kinds),
        total=_of(roofline.total, step),
    )
    return json.dumps(encode(document), indent=1) + "\n"


def _of(row: Row, step_seconds: float) -> RooflineRow:
    return RooflineRow(
        **asdict(row),
        share_of_step=row.seconds / step_seconds,
        flops_per_byte=row.intensity,
        share_of_bound=row.share_of_bound,
        winnable_seconds=row.winnable_seconds,
    )


def chart(roofline: Roofline, title: str) -> Lines:
    """Every row with FLOPs as a point under the roof.

    Args:
      roofline: what was measured.
      title: of the plot.
    """
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in roofline.rows:
        if row.intensity is not None and row.seconds:
            groups[row.kind, row.direction].append(row)
    order = sorted(groups, key=lambda one: (one[0], _DIRECTIONS.index(one[1])))
    points = [
        Series(
            name=f"{kind}, {direction}",
            points=tuple((row.intensity or 0.0, _rate(row)) for row in groups[kind, direction]),
            hints=tuple(map(_hint, groups[kind, direction])),
            line=False,
        )
        for kind, direction in order
    ]
    places = [x for one in points for x, _ in one.points]
    return Lines(
        title=title,
        x=Axis(label="FLOP per byte", log=True),
        y=Axis(label="GFLOP/s", log=True),
        series=(_roof(roofline.machine, places), *points),
        note="Convolutions and matrix products; the rest of a step has no FLOPs that count.",
    )


def _roof(machine: Machine, places: Sequence[float]) -> Series:
    ridge = machine.ridge
    ends: Iterable[float] = (min([ridge / 4, *places]), ridge, max([ridge * 4, *places]))
    rates = ((x, min(machine.flops_per_sec, x * machine.bytes_per_sec) / 1e9) for x in ends)
    return Series(name="bound of the machine", points=tuple(rates), reference=True)


def _rate(row: Row) -> float:
    return row.flops / row.seconds / 1e9


def _hint(row: Row) -> str:
    return f"{row.layer}: {number(row.seconds * 1e3)} ms, {percent(row.share_of_bound)} of bound"
