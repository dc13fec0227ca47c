"""A roofline as a table and as CSV."""

from __future__ import annotations

from typing import Any, cast

from cnnbench.base.text.numbers import binary, count, number, percent
from cnnbench.base.text.table import csv_text, fitted, wrapped
from cnnbench.records.codec import encode
from cnnbench.records.roofline import Roofline, RooflineRow

_NUMBERS = ("ms", "of step", "GFLOP", "moved", "FLOP/byte", "GFLOP/s", "bound ms", "of bound")
_SPARE = ("FLOP/byte", "GFLOP/s", "moved", "bound ms", "GFLOP")
"""Columns that a narrow terminal leaves out, in this order."""


def table(roofline: Roofline, title: str, most: int) -> str:
    """The first `most` rows (0: all), their sums by kind, and the totals."""
    rows = roofline.rows
    shown = rows[:most] if most else rows
    lines = [title, *wrapped(_about(roofline)), ""]
    cells = [["layer", "kind", "direction", *_NUMBERS, "to win ms"]]
    cells += [[row.layer, row.kind, row.direction, *_numbers(row)] for row in shown]
    lines += fitted(cells, (0, 1, 2), [cells[0].index(name) for name in _SPARE])
    if len(shown) < len(rows):
        rest = sum(row.winnable_seconds for row in rows[len(shown) :])
        more = count(len(rows) - len(shown), "row", "rows")
        lines.append(f"{more} more, with {number(rest * 1e3)} ms to win; --rows=0 prints all")
    cells = [["sums by kind", "direction", *_NUMBERS, "to win ms"]]
    for row in _sums(roofline):
        cells.append([row.kind or "all operations", row.direction, *_numbers(row)])
    lines += ["", *fitted(cells, (0, 1), [cells[0].index(name) for name in _SPARE]), ""]
    if roofline.remark:
        lines += wrapped(roofline.remark)
    lines += wrapped(_adds_up(roofline))
    return "\n".join(lines)


def _sums(roofline: Roofline) -> list[RooflineRow]:
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
        f"without a profiler it takes {number(roofline.unprofiled_step_seconds * 1e3)} ms"
    )


def _numbers(row: RooflineRow) -> list[str]:
    rate = row.flops / row.seconds / 1e9 if row.flops and row.seconds else None
    return [
        number(row.seconds * 1e3),
        percent(row.share_of_step),
        number(row.flops / 1e9 if row.flops else None),
        binary(row.bytes or None),
        number(row.flops_per_byte),
        number(rate),
        number(row.bound_seconds * 1e3),
        percent(row.share_of_bound),
        number(row.winnable_seconds * 1e3),
    ]


def to_csv(roofline: Roofline) -> str:
    """A line per row, then one for the remainder; all digits."""
    rest = roofline.remainder_seconds
    remainder = RooflineRow("", "remainder", "", rest, 0, 0, 0.0, rest / roofline.step_seconds)
    rows = [cast("dict[str, Any]", encode(row)) for row in (*roofline.rows, remainder)]
    return csv_text(rows[0], (row.values() for row in rows))
