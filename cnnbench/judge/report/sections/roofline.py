"""The time of a step by layers, from `cnnbench roofline`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from cnnbench.base.charts import (
    HIGHER,
    LOWER,
    Axis,
    ChartSeries,
    DistributionRow,
    Lines,
    Rows,
    key_of,
)
from cnnbench.base.text.numbers import binary, number, percent
from cnnbench.judge.report.document import (
    Block,
    Charts,
    Section,
    Table,
    TableColumn,
    Text,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import ReportSubject, time_text
from cnnbench.records.roofline import Machine, Roofline, RooflineRow

T = TypeVar("T")

_MOST_ROWS, _MOST_NAMED, _MOST_BARS = 20, 6, 12


def roofline(results: ReportSubject) -> Section | None:
    """A row per profiled process, its layers under the roof, and its time by kind of operation."""
    if not results.rooflines:
        return None
    named = _named(results)
    text = (
        "Operations of profiled steps by layer, kind and direction (cnnbench roofline). The bound "
        "of a row is its FLOPs at the rate of a large matrix product or its bytes at the rate of "
        "copying memory, whichever takes longer. What is above the bound could be won."
    )
    charts = tuple(c for name, one in named for c in (chart(one, name), _layer_bars(one, name)))
    tables: list[Block | None] = []
    for name, one in named:
        tables.append(
            table(_KINDS, one.kinds, title=f"{name}: by kind of operation", folded=len(named) > 1)
        )
        tables.append(_layers(name, one))
        if one.remark:
            tables.append(Text(text=f"{name}: {one.remark}"))
    return section(
        "roofline",
        "Where the time of a step goes",
        Text(text=text),
        table(_COLUMNS, named),
        Charts(charts=charts, pairs=True),
        *tables,
    )


_Named: TypeAlias = tuple[str, Roofline]


def _named(results: ReportSubject) -> list[_Named]:
    """Rooflines by the names of their configurations, with the time if that repeats."""
    names = [results.profiled[one.run_id].name for one in results.rooflines]
    return [
        (f"{name}, {time_text(one.started_at)}" if names.count(name) > 1 else name, one)
        for name, one in zip(names, results.rooflines, strict=True)
    ]


def _layers(name: str, one: Roofline) -> Table | None:
    shown = one.rows[:_MOST_ROWS]
    few = f"the {len(shown)} with the most time to win" if len(shown) < len(one.rows) else "all"
    return table(_LAYERS, shown, title=f"{name}: rows, {few}", folded=True)


def _ms(title: str, seconds: Callable[[T], float | None]) -> TableColumn[T]:
    return numeric(title, seconds, scale=1e3)


_COLUMNS: tuple[TableColumn[_Named], ...] = (
    TableColumn("configuration", lambda one: one[0]),
    _ms("step, ms", lambda one: one[1].unprofiled_step_seconds),
    _ms("profiled step, ms", lambda one: one[1].step_seconds),
    _ms("no operation runs, ms", lambda one: max(0.0, one[1].remainder_seconds)),
    _ms("bound, ms", lambda one: one[1].total.bound_seconds),
    numeric("of the bound", lambda one: one[1].total.share_of_bound, percent),
    numeric("GFLOP per step", lambda one: one[1].total.flops or None, scale=1e-9),
    numeric("moved per step", lambda one: one[1].total.bytes or None, binary),
    numeric("matrix products, GFLOP/s", lambda one: one[1].machine.flops_per_sec, scale=1e-9),
    numeric("memory, GB/s", lambda one: one[1].machine.bytes_per_sec, scale=1e-9),
    numeric("they meet at, FLOP/byte", lambda one: one[1].machine.ridge),
    TableColumn(
        "source",
        lambda one: "; ".join(
            filter(None, (one[1].machine.flops_source, one[1].machine.bytes_source))
        ),
        "prose",
    ),
)
_NUMBERS: tuple[TableColumn[RooflineRow], ...] = (
    _ms("ms", lambda row: row.seconds),
    numeric("of the step", lambda row: row.share_of_step, percent),
    numeric("GFLOP", lambda row: row.flops or None, scale=1e-9),
    numeric("moved", lambda row: row.bytes or None, binary),
    numeric("GFLOP/s", lambda row: _rate(row) if row.flops and row.seconds else None),
    _ms("bound, ms", lambda row: row.bound_seconds),
    numeric("of the bound", lambda row: row.share_of_bound, percent),
    _ms("to win, ms", lambda row: row.winnable_seconds),
)
_KINDS: tuple[TableColumn[RooflineRow], ...] = (
    TableColumn("kind", lambda row: row.kind),
    TableColumn("direction", lambda row: row.direction),
    *_NUMBERS,
)
_LAYERS: tuple[TableColumn[RooflineRow], ...] = (
    TableColumn("layer", lambda row: row.layer),
    *_KINDS,
)


def chart(roofline: Roofline, title: str) -> Lines:
    """Every row with FLOPs as a point under the roof, the longest ones named."""
    groups: defaultdict[tuple[str, str], list[RooflineRow]] = defaultdict(list)
    rows = [row for row in roofline.rows if row.flops_per_byte is not None and row.seconds]
    for row in rows:
        groups[row.kind, row.direction].append(row)
    kinds = list(dict.fromkeys(kind for kind, _ in sorted(groups)))
    directions = list(dict.fromkeys(direction for _, direction in sorted(groups)))
    longest = sorted(rows, key=lambda row: -row.seconds)
    named = longest[:_MOST_NAMED]
    largest = longest[0].seconds if longest else 1.0
    points = [
        ChartSeries(
            name=f"{kind}, {direction}",
            points=tuple((row.flops_per_byte or 0.0, _rate(row)) for row in of),
            hints=tuple(map(_hint, of)),
            texts=tuple(row.layer if row in named else "" for row in of),
            sizes=tuple(round(5.0 + 15.0 * (row.seconds / largest) ** 0.5) for row in of),
            style=kinds.index(kind),
            mark=directions.index(direction),
            line=False,
        )
        for (kind, direction), of in sorted(groups.items())
    ]
    machine = roofline.machine
    places = [x for one in points for x, _ in one.points]
    return Lines(
        title=title,
        x=Axis(label="FLOP per byte", log=True),
        y=Axis(label="GFLOP/s", log=True, better=HIGHER),
        series=(_roof(machine, places), *points),
        note="A point is a convolution or matrix product of a layer in one direction, its area the "
        f"time; the {len(named)} longest are named. The rest of a step has no FLOPs that count.",
    )


def _layer_bars(roofline: Roofline, title: str) -> Rows:
    layers = roofline.layers[:_MOST_BARS]
    rows = tuple(
        DistributionRow(
            label=row.layer,
            values=((row.bound_seconds * 1e3, f"{row.layer}: bound"),),
            centre=row.seconds * 1e3,
            hint=_hint(row),
            text=percent(row.share_of_step),
        )
        for row in layers
    )
    shown = f"{len(layers)} of {len(roofline.layers)} layers are shown."
    return Rows(
        title=f"{title}: time of a step by layer",
        x=Axis(label="time, ms, forward and backward", zero=True, better=LOWER),
        rows=rows,
        note=f"{key_of(rows, dot='the bound')} Shares are of the step. {shown}",
        bars=True,
    )


def _roof(machine: Machine, places: Sequence[float]) -> ChartSeries:
    ridge = machine.ridge
    ends = (min([ridge / 4, *places]), ridge, max([ridge * 4, *places]))
    rates = ((x, min(machine.flops_per_sec, x * machine.bytes_per_sec) / 1e9) for x in ends)
    name = f"bound: {number(machine.flops_per_sec / 1e9)} GFLOP/s of matrix products, "
    name += f"{number(machine.bytes_per_sec / 1e9)} GB/s of memory"
    return ChartSeries(name=name, points=tuple(rates), reference=True)


def _rate(row: RooflineRow) -> float:
    """In GFLOP/s."""
    return row.flops / row.seconds / 1e9


def _hint(row: RooflineRow) -> str:
    return f"{row.layer}: {number(row.seconds * 1e3)} ms, {percent(row.share_of_bound)} of bound"
