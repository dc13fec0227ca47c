"""Sections of a report about single training steps: time by layer (`cnnbench roofline`), and
operations over time (step profiles).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from statistics import median

from cnnbench.base.charts import (
    HIGHER,
    LOWER,
    Axis,
    ChartSeries,
    DistributionRow,
    LineChart,
    RowChart,
    TimelineChart,
    TimelineSpan,
    legend_text,
)
from cnnbench.base.document import (
    Answer,
    ChartGroup,
    Content,
    Paragraph,
    Row,
    TableCell,
    make_table,
    numeric_cell,
    prepend_docstring,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.stats import group_by
from cnnbench.base.terminal import natural_key
from cnnbench.base.text import (
    billions,
    count_text,
    format_bytes,
    milliseconds,
    number,
    percent,
    selection_text,
)
from cnnbench.judge.report.results import ReportSubject, distinguish_by_start_time
from cnnbench.machine.cpu import describe_kernels
from cnnbench.records.profiles import (
    ACTIVITIES,
    COPIES,
    REDUCTION,
    Machine,
    ProfiledSpan,
    Roofline,
    RooflineRow,
    StepProfile,
    activity_of_part,
)

_MOST_ROWS, _MOST_NAMED, _MOST_BARS, _MOST_TO_WIN = 20, 6, 12, 3
_group = attrgetter("kind", "direction")


@prepend_docstring
def roofline_section(results: ReportSubject) -> Iterable[Content]:
    """Operations of profiled steps by layer, kind and direction (cnnbench roofline). The estimate
    of a row is the larger of two times: its FLOPs divided by the rate of a large matrix product,
    and its bytes divided by the rate of copying memory. A row can be faster than its estimate if
    its values are in a cache. The time above the estimate could be saved.
    """
    named = distinguish_by_start_time(
        (results.profiled_group_by_run_id[study.run.run_id].name, study)
        for study in results.rooflines
    )
    yield make_table(_roofline_process_row(name, study) for name, study in named)
    charts = (
        c
        for name, study in named
        for c in (roofline_chart(study, name), _layer_time_chart(study, name))
    )
    yield ChartGroup(tuple(charts), pairs=True) if named else None
    for name, study in named:
        title = f"{name}: by kind of operation"
        yield make_table(map(_roofline_cells, study.kinds), title=title, folded=len(named) > 1)
        shown = study.rows[:_MOST_ROWS]
        most = f"the {len(shown)} with the most time to win"
        title = f"{name}: rows, {most if len(shown) < len(study.rows) else 'all'}"
        rows = ({"layer": row.layer, **_roofline_cells(row)} for row in shown)
        yield make_table(rows, title=title, folded=True)
        if study.rows_faster_than_bound_remark:
            yield f"{name}: {study.rows_faster_than_bound_remark}"


def roofline_answers(results: ReportSubject) -> Iterable[Answer]:
    """Yields an answer for each roofline: the time of a step and its estimate, and where the most
    time could be saved. If there are several rooflines, the answers are short.
    """
    most = 1 if results.rooflines[1:] else _MOST_TO_WIN
    for name, study in distinguish_by_start_time(
        (results.profiled_group_by_run_id[study.run.run_id].name, study)
        for study in results.rooflines
    ):
        estimate = milliseconds(study.total.bound_seconds)
        text = f"A profiled step takes {milliseconds(study.step_seconds)} ms, "
        text += f"the estimate is {estimate} ms"
        largest = [row for row in study.rows if row.winnable_seconds > 0][:most]
        steps = [_step_time_text(study)] if most > 1 else []
        details = (*steps, *map(_to_win_text, largest))
        yield Answer(f"Roofline of {name}", text, "", details)


def _to_win_text(row: RooflineRow) -> str:
    part = ", ".join(filter(None, (row.layer, row.kind, row.direction)))
    return f"{milliseconds(row.winnable_seconds)} ms to win in {part}"


def _step_time_text(document: Roofline) -> str:
    step, remainder = document.step_seconds, document.remainder_seconds
    return (
        f"{milliseconds(step - remainder)} ms in operations and {milliseconds(remainder)} ms "
        f"({percent(remainder / step)}) in none make a profiled step of {milliseconds(step)} ms; "
        f"without a profiler it takes {milliseconds(document.unprofiled_step_seconds)} ms (means "
        "of the faster half of the steps)"
    )


def _roofline_process_row(name: str, document: Roofline) -> Row:
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


_SPARE = ("FLOP/byte", "GFLOP/s", "moved", "estimate, ms", "GFLOP")


def _roofline_cells(row: RooflineRow, title: str = "kind") -> Row:
    return {
        title: row.kind or "all operations",
        "direction": row.direction,
        "ms": numeric_cell(row.seconds, scale=1e3),
        "of the step": numeric_cell(row.share_of_step, percent),
        "GFLOP": numeric_cell(row.flops or None, scale=1e-9),
        "moved": numeric_cell(row.bytes or None, format_bytes),
        "FLOP/byte": numeric_cell(row.flops_per_byte),
        "GFLOP/s": numeric_cell(_gflops_per_sec(row) if row.flops and row.seconds else None),
        "estimate, ms": numeric_cell(row.bound_seconds, scale=1e3),
        "of the estimate": numeric_cell(row.share_of_bound, percent),
        "to win, ms": numeric_cell(row.winnable_seconds, scale=1e3),
    }


def terminal_text(document: Roofline, title: str, most: int) -> str:
    """Returns a roofline as text for a terminal: the first `most` rows (0 means all), sums by kind
    of operation, and totals.
    """
    rows, machine = document.rows, document.machine
    shown, rest = (rows[:most], rows[most:]) if most else (rows, ())
    winnable = milliseconds(sum(row.winnable_seconds for row in rest))
    more = (
        f"{count_text(len(rest), 'row', 'rows')} more, with {winnable} ms to win; --rows=0 "
        "prints all"
    )
    sums = (_roofline_cells(row, "sums by kind") for row in (*document.kinds, document.total))
    contents: Sequence[Sequence[Content]] = (
        (
            Paragraph(title, whole=True),
            f"rates: {billions(machine.flops_per_sec)} GFLOP/s ({machine.flops_source}) and "
            f"{billions(machine.bytes_per_sec)} GB/s read and written "
            f"({machine.bytes_source}), which meet at "
            f"{number(machine.ridge_flops_per_byte)} FLOP/byte",
            None
            if document.kernels is None
            else f"convolutions: {describe_kernels(document.kernels)}",
        ),
        (
            make_table(
                ({"layer": row.layer, **_roofline_cells(row)} for row in shown), spare=_SPARE
            ),
            more if rest else None,
        ),
        (make_table(sums, spare=_SPARE),),
        (
            document.rows_faster_than_bound_remark,
            _step_time_text(document),
        ),
    )
    return sections_to_text(contents)


def roofline_chart(roofline: Roofline, title: str) -> LineChart:
    """Returns a chart of the roofline, with a point for each row that has FLOPs. The longest rows
    are labelled.
    """
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
        for (kind, direction), of in ((key, [*of]) for key, of in groupby(rows, _group))
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


def _layer_time_chart(roofline: Roofline, title: str) -> RowChart:
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


_OWN_LANES = (REDUCTION, COPIES)
_MOST_PROFILES = 4
_HINTED = 0.004
"""A span that takes at least this share of the step has a hover text."""


@prepend_docstring
def timeline_section(results: ReportSubject) -> Iterable[Content]:
    """The last profiled step of a process over time (cnnbench run --profile_json, ab, explain). One
    lane shows what a device computes. Reductions, copies between devices and the input pipeline
    have separate lanes. The profiler makes steps longer. The table shows medians over all profiled
    steps. If operations run at the same time, each of them gets a part of that time.
    """
    by_name: dict[str, StepProfile] = {}
    for study in results.studies:
        if isinstance(study, StepProfile) and study.timeline:
            by_name.setdefault(results.profiled_group_by_run_id[study.record.run_id].name, study)
    for name, profile in list(by_name.items())[:_MOST_PROFILES]:
        yield [_timeline_lanes(profile, name)]
        yield make_table(_kind_time_rows(profile), title=f"{name}: a step by kind")
    if (more := len(by_name) - _MOST_PROFILES) > 0:
        yield f"{count_text(more, 'other profile is', 'other profiles are')} not shown."


def _timeline_lanes(profile: StepProfile, title: str) -> TimelineChart:
    """Returns a chart of the last profiled step, with one lane for each device, and separate lanes
    for some activities, such as copies between devices.
    """
    spans = profile.timeline or ()
    least = _HINTED * max((span.end for span in spans), default=0.0)

    def lane(span: ProfiledSpan) -> tuple[str, str]:
        return span.device, kind if (kind := activity_of_part(span)) in _OWN_LANES else ""

    def to_drawn_span(span: ProfiledSpan) -> TimelineSpan:
        words = ", ".join(filter(None, (span.device, span.layer, span.kind, span.direction)))
        hint = f"{words}: {milliseconds(span.end - span.start)} ms"
        kind, shown = ACTIVITIES.index(activity_of_part(span)), span.end - span.start >= least
        return TimelineSpan(span.start * 1e3, span.end * 1e3, kind, hint if shown else "")

    lanes = group_by(spans, lane)
    # Lanes are in the order of devices; the lane of the input pipeline is last.
    ordered = sorted(lanes, key=lambda key: (not key[0], natural_key(key[0]), key[1]))
    note = f"The step took {milliseconds(profile.step_seconds[-1])} ms."
    if waited := profile.input_wait_seconds[-1]:
        note += f" Before it the program waited {milliseconds(waited)} ms for its input."
    return TimelineChart(
        title=f"{title}: one step",
        x=Axis(label="time from the first operation, ms", zero=True),
        lanes=tuple(
            (
                ", ".join(filter(None, key)) or "input pipeline",
                tuple(map(to_drawn_span, lanes[key])),
            )
            for key in ordered
        ),
        kinds=ACTIVITIES[:-1],
        note=note,
    )


def _kind_time_rows(profile: StepProfile) -> Iterable[Row]:
    """Yields a table row for each kind of activity, with its median time in a step, in milliseconds
    and as a share of the median step time.
    """
    kinds, whole = group_by(profile.rows, activity_of_part), median(profile.step_seconds)
    for kind in ACTIVITIES:
        seconds = (row.seconds for row in kinds.get(kind, ()))
        sums = [sum(step) for step in zip(*seconds, strict=True)]
        if any(sums):
            usual = median(sums)
            yield {
                "kind": kind,
                "median ms of a step": numeric_cell(usual, scale=1e3),
                "of the step": numeric_cell(usual / whole, percent),
            }
