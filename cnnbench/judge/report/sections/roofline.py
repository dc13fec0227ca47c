"""The results of `cnnbench roofline`: blocks for all formats, and answers of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from cnnbench.base.charts import (
    HIGHER,
    LOWER,
    Axis,
    ChartSeries,
    DistributionRow,
    LineChart,
    RowChart,
    legend_text,
)
from cnnbench.base.document import (
    Answer,
    ChartGroup,
    Content,
    Row,
    Section,
    TableCell,
    make_table,
    numeric_cell,
    prepend_docstring,
)
from cnnbench.base.stats import group_by
from cnnbench.base.text import (
    billions,
    count_text,
    format_bytes,
    milliseconds,
    number,
    percent,
    selection_text,
)
from cnnbench.judge.report.results import ReportSubject, with_start_times
from cnnbench.machine.cpu import describe_kernels
from cnnbench.records.roofline import Machine, Roofline, RooflineRow

_MOST_ROWS, _MOST_NAMED, _MOST_BARS, _MOST_TO_WIN = 20, 6, 12, 3
_SPARE = ("FLOP/byte", "GFLOP/s", "moved", "estimate, ms", "GFLOP")
"""Columns that are omitted in narrow terminals, in this order."""

_group = attrgetter("kind", "direction")


def roofline_sections(
    document: Roofline, title: str, most: int, full: bool = False
) -> list[Section]:
    """The result of a roofline: the rates of the machine with charts, the first `most` rows (0
    means all), sums by kind of operation, and the time of a step.

    If it is shown in `full`, the rows are folded, and the titles of tables contain `title`.
    """
    name = f"{title}: " if full else ""
    machine, remark = document.machine, document.faster_rows_remark
    rates = (
        f"{name}rates: {billions(machine.flops_per_sec)} GFLOP/s ({machine.flops_source}) and "
        f"{billions(machine.bytes_per_sec)} GB/s read and written ({machine.bytes_source}), which "
        f"meet at {number(machine.ridge_flops_per_byte)} FLOP/byte"
    )
    kernels = None
    if document.kernels is not None:
        kernels = f"convolutions: {describe_kernels(document.kernels)}"
    charts = roofline_chart(document, title), _layer_chart(document, title)
    shown, rest = document.rows[: most or None], document.rows[most:] if most else ()
    rows: Iterable[Row] = ({"layer": row.layer, **_row_cells(row)} for row in shown)
    which = f"the {len(shown)} with the most time to win" if rest else "all"
    sums = map(_row_cells, (*document.kinds, document.total))
    winnable = milliseconds(sum(row.winnable_seconds for row in rest))
    left = count_text(len(rest), "row", "rows")
    more = f"{left} more, with {winnable} ms to win; --rows=0 prints all"
    contents: tuple[tuple[Content, ...], ...] = (
        (rates, kernels, ChartGroup(charts, pairs=True)),
        (
            make_table(rows, title=f"{name}rows, {which}", folded=full, spare=_SPARE),
            more if rest and not full else None,
        ),
        (make_table(sums, title=f"{name}by kind of operation", spare=_SPARE),),
        (f"{name}{remark}" if remark else None, _time_text(document)),
    )
    first, *others = map(Section.of, contents)
    return [Section(title=title, blocks=first.blocks), *others]


@prepend_docstring
def roofline_section(results: ReportSubject) -> Iterable[Content]:
    """Operations of profiled steps by layer, kind and direction (cnnbench roofline). The estimate
    of a row is the larger of two times: its FLOPs divided by the rate of a large matrix product,
    and its bytes divided by the rate of copying memory. A row can be faster than its estimate if
    its values are in a cache. The time above the estimate could be saved.
    """
    named = _named(results)
    yield make_table(_process_row(name, study) for name, study in named)
    for name, study in named:
        for section in roofline_sections(study, name, _MOST_ROWS, full=True):
            yield from section.blocks


def roofline_answers(results: ReportSubject) -> Iterator[Answer]:
    """Yields an answer for each roofline: the time of a step and its estimate, and where the most
    time could be saved. If there are several rooflines, the answers are short.
    """
    most = 1 if results.rooflines[1:] else _MOST_TO_WIN
    for name, study in _named(results):
        step, estimate = map(milliseconds, (study.step_seconds, study.total.bound_seconds))
        text = f"A profiled step takes {step} ms, the estimate is {estimate} ms"
        largest = [row for row in study.rows if row.winnable_seconds > 0][:most]
        steps = [_time_text(study)] if most > 1 else []
        details = (*steps, *map(_to_win_text, largest))
        yield Answer(f"Roofline of {name}", text, "", details)


def _named(results: ReportSubject) -> list[tuple[str, Roofline]]:
    return with_start_times(
        (results.profiled[study.run.run_id].name, study) for study in results.rooflines
    )


def _to_win_text(row: RooflineRow) -> str:
    part = ", ".join(filter(None, (row.layer, row.kind, row.direction)))
    return f"{milliseconds(row.winnable_seconds)} ms to win in {part}"


def _time_text(document: Roofline) -> str:
    step, remainder = document.step_seconds, document.remainder_seconds
    return (
        f"{milliseconds(step - remainder)} ms in operations and {milliseconds(remainder)} ms "
        f"({percent(remainder / step)}) in none make a profiled step of {milliseconds(step)} ms; "
        f"without a profiler it takes {milliseconds(document.unprofiled_step_seconds)} ms (means "
        "of the faster half of the steps)"
    )


def _process_row(name: str, document: Roofline) -> Row:
    total, machine = document.total, document.machine
    sources = "; ".join(filter(None, (machine.flops_source, machine.bytes_source)))
    return {
        "configuration": name,
        "mean of the faster half of steps, ms": numeric_cell(
            document.unprofiled_step_seconds, scale=1e3
        ),
        "with a profiler, ms": numeric_cell(document.step_seconds, scale=1e3),
        "no operation runs, ms": numeric_cell(max(0.0, document.remainder_seconds), scale=1e3),
        "estimate, ms": numeric_cell(total.bound_seconds, scale=1e3),
        "of the estimate": numeric_cell(total.share_of_bound, percent),
        "GFLOP per step": numeric_cell(total.flops or None, scale=1e-9),
        "moved per step": numeric_cell(total.bytes or None, format_bytes),
        "matrix products, GFLOP/s": numeric_cell(machine.flops_per_sec, scale=1e-9),
        "memory, GB/s": numeric_cell(machine.bytes_per_sec, scale=1e-9),
        "they meet at, FLOP/byte": numeric_cell(machine.ridge_flops_per_byte),
        "source": TableCell(sources, kinds="prose"),
        "kernels": "" if document.kernels is None else describe_kernels(document.kernels),
    }


def _row_cells(row: RooflineRow) -> Row:
    rate = _gflops_per_sec(row) if row.flops and row.seconds else None
    return {
        "kind": row.kind or "all operations",
        "direction": row.direction,
        "ms": numeric_cell(row.seconds, scale=1e3),
        "of the step": numeric_cell(row.share_of_step, percent),
        "GFLOP": numeric_cell(row.flops or None, scale=1e-9),
        "moved": numeric_cell(row.bytes or None, format_bytes),
        "FLOP/byte": numeric_cell(row.flops_per_byte),
        "GFLOP/s": numeric_cell(rate),
        "estimate, ms": numeric_cell(row.bound_seconds, scale=1e3),
        "of the estimate": numeric_cell(row.share_of_bound, percent),
        "to win, ms": numeric_cell(row.winnable_seconds, scale=1e3),
    }


def roofline_chart(roofline: Roofline, title: str) -> LineChart:
    """Returns a chart with a point for each row that has FLOPs. The longest rows are named."""
    rows = [row for row in roofline.rows if row.flops_per_byte is not None and row.seconds]
    rows.sort(key=_group)
    kinds = [*dict.fromkeys(row.kind for row in rows)]
    directions = [*dict.fromkeys(row.direction for row in rows)]
    named = sorted(rows, key=lambda row: -row.seconds)[:_MOST_NAMED]
    points = [
        ChartSeries(
            name=f"{kind}, {direction}",
            points=tuple((row.flops_per_byte or 0.0, _gflops_per_sec(row)) for row in of),
            hints=tuple(map(_row_hint, of)),
            texts=tuple(row.layer if row in named else "" for row in of),
            diameters=tuple(
                round(5.0 + 15.0 * (row.seconds / named[0].seconds) ** 0.5) for row in of
            ),
            style=kinds.index(kind),
            mark=directions.index(direction),
            line=False,
        )
        for (kind, direction), of in group_by(rows, _group).items()
    ]
    return LineChart(
        title=title,
        x=Axis(label="FLOP per byte", log=True),
        y=Axis(label="GFLOP/s", log=True, better=HIGHER),
        series=(
            _roof_series(roofline.machine, (x for series in points for x, _ in series.points)),
            *points,
        ),
        note="A point is a convolution or matrix product of a layer in one direction, its area the "
        f"time; up to {len(named)} of the longest are named. The rest of a step has no FLOPs that "
        "count.",
    )


def _layer_chart(roofline: Roofline, title: str) -> RowChart:
    layers = roofline.layers[:_MOST_BARS]
    rows = tuple(
        DistributionRow(
            label=row.layer,
            values=((row.bound_seconds * 1e3, f"{row.layer}: estimate"),),
            centre=row.seconds * 1e3,
            hint=_row_hint(row),
            text=percent(row.share_of_step),
        )
        for row in layers
    )
    which = selection_text(len(layers), "slowest", len(roofline.layers), "layer", "layers")
    return RowChart(
        title=f"{title}: time of a step in {which}",
        x=Axis(label="time, ms, forward and backward", zero=True, better=LOWER),
        rows=rows,
        note=f"{legend_text(rows, dot='the estimate')} Shares are of the step.",
        bars=True,
    )


def _roof_series(machine: Machine, places: Iterable[float]) -> ChartSeries:
    low, *_, high = sorted(
        [machine.ridge_flops_per_byte / 4, machine.ridge_flops_per_byte * 4, *places]
    )
    ends = (low, machine.ridge_flops_per_byte, high)
    rates = ((x, min(machine.flops_per_sec, x * machine.bytes_per_sec) / 1e9) for x in ends)
    name = f"roof: {billions(machine.flops_per_sec)} GFLOP/s of matrix products, "
    name += f"{billions(machine.bytes_per_sec)} GB/s of memory"
    return ChartSeries(name=name, points=tuple(rates), reference=True)


def _gflops_per_sec(row: RooflineRow) -> float:
    """Returns the rate of the operations of a row in GFLOP/s."""
    return row.flops / row.seconds / 1e9


def _row_hint(row: RooflineRow) -> str:
    share = percent(row.share_of_bound)
    return f"{row.layer}: {milliseconds(row.seconds)} ms, {share} of the estimate"
