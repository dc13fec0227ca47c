"""The history as a page or as a picture: a chart per series with its levels and steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cnnbench.charts import HIGHER, LOWER, Axis, Event, Lines, Series
from cnnbench.errors import FlagError
from cnnbench.history import formats
from cnnbench.history.series import Point
from cnnbench.history.steps import Step, Trend
from cnnbench.metrics.registry import Metric
from cnnbench.records.files import resolve_output
from cnnbench.report.document import (
    Cell,
    Charts,
    Column,
    Report,
    Section,
    Table,
    Text,
    number,
    table,
    text_cell,
)
from cnnbench.text.numbers import count
from cnnbench.version import __version__

FLAG = "plot"
SUFFIXES = (".html", ".svg", ".png", ".pdf")
_TICKS = 6
_LEAST_SPAN = 0.1
"""Of the value axis, as a share of the values, so that noise of 1 % does not fill the chart."""


def prepare(path: str) -> None:
    """Proves that the file can be written.

    Raises:
      FlagError: another suffix than those of `SUFFIXES`, or the path cannot be written.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise FlagError(FLAG, path, f"must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    resolve_output(FLAG, path)


def render(path: str, trends: Sequence[Trend], metric: Metric) -> bytes:
    """The page or the picture, by the suffix of the path."""
    suffix = Path(path).suffix.lower()
    if suffix == ".html":
        from cnnbench.report.formats import render as write

        return write(page(trends, metric), "html").encode("utf-8", "backslashreplace")
    from cnnbench.charts import draw

    charts = _charts(trends, metric)
    return draw.render(charts, suffix.lstrip("."), f"history of {metric.name}")


def page(trends: Sequence[Trend], metric: Metric) -> Report:
    """All steps first, then a chart for each series, then all points."""
    sections = [
        Section(key="steps", title="Steps", blocks=_steps(trends, metric)),
        Section(key="series", title="Series", blocks=(Charts(charts=_charts(trends, metric)),)),
        Section(key="points", title="Points", blocks=(_points(trends, metric),)),
    ]
    worse = sum(step.worse and step.stands for found in trends for step in found.steps)
    points = sum(len(found.series.points) for found in trends)
    return Report(
        title=f"History of {metric.name}",
        subtitle=f"Measured with cnnbench; page of version {__version__}",
        highlights=(
            ("series", count(len(trends), "configuration", "configurations and machines")),
            ("points", str(points)),
            ("for the worse, and not undone", count(worse, "step", "steps")),
        ),
        sections=tuple(sections),
    )


def _charts(trends: Sequence[Trend], metric: Metric) -> tuple[Lines, ...]:
    return tuple(_chart(found, metric) for found in trends if found.series.points)


def _chart(found: Trend, metric: Metric) -> Lines:
    points = found.series.points
    scale = 1 / 2**20 if metric.unit == "bytes" else 1.0
    measured = Series(
        name="median over a point's processes; the stroke is their range",
        points=tuple((float(i), point.value * scale) for i, point in enumerate(points)),
        hints=tuple(_hint(point, metric) for point in points),
        spans=tuple(
            (min(point.values) * scale, max(point.values) * scale)
            if len(point.values) > 1
            else None
            for point in points
        ),
    )
    level = [
        (float(place), one.value * scale)
        for one in found.levels
        for place in (one.start, one.stop - 1)
    ]
    share = metric.unit.startswith("share")
    return Lines(
        title=f"{found.series.configuration} on {found.series.machine}",
        x=_axis(points),
        y=Axis(
            label=f"{metric.name}, {metric.unit_text}" if not share else metric.name,
            format="percent" if share else "number",
            better=HIGHER if metric.higher_is_better else LOWER,
            least_span=_LEAST_SPAN if metric.relative else 0.0,
        ),
        series=(measured, Series(name="level", points=tuple(level), reference=True)),
        events=tuple(
            Event(
                x=step.index - 0.5,
                label=formats.step_text(step, metric),
                mark=_mark(step),
                gain=not step.worse,
            )
            for step in found.steps
        ),
        note="; ".join(formats.step_text(step, metric) for step in found.steps)
        or formats.outcome(found),
    )


def _axis(points: Sequence[Point]) -> Axis:
    """Points at even distances, with the dates of some."""
    every = max(1, -(-len(points) // _TICKS))
    places = range(0, len(points), every)
    days = {point.started.date() for point in points}
    form = "%m-%d %H:%M" if len(days) <= len(places) // 2 else "%Y-%m-%d"
    return Axis(
        label="points in order",
        ticks=tuple(float(place) for place in places),
        tick_texts=tuple(points[place].started.strftime(form) for place in places),
    )


def _hint(point: Point, metric: Metric) -> str:
    values = count(len(point.values), "process", "processes")
    value = metric.value_text(point.value)
    return f"{point.short}, {formats.time_text(point)} UTC: {value}, {values}"


def _steps(trends: Sequence[Trend], metric: Metric) -> tuple[Table | Text, ...]:
    rows = []
    for found in trends:
        for step in found.steps:
            rows.append(
                (
                    text_cell(found.series.configuration),
                    text_cell(found.series.machine),
                    Cell(_mark(step), tone="bad" if step.worse else "good"),
                    number(step.change, metric.change_text(step.change)),
                    text_cell(step.last_good.short),
                    text_cell(step.first_bad.short),
                    text_cell(_likely(step.earliest, step.latest)),
                    text_cell(formats.time_text(step.first_bad)),
                    text_cell("stands" if step.stands else "undone since"),
                    text_cell(formats.facts_text(step)),
                )
            )
    few = [found.series.configuration for found in trends if not found.enough]
    blocks: list[Table | Text] = []
    if rows:
        columns = (
            Column("configuration"),
            Column("machine"),
            Column("step"),
            Column("change", number=True),
            Column("last before", code=True, steady=True),
            Column("first after", code=True, steady=True),
            Column("95 %: between", code=True, steady=True),
            Column("measured (UTC)", steady=True),
            Column("since"),
            Column("changed there too", prose=True),
        )
        blocks.append(table(columns, rows))
    else:
        blocks.append(Text(text="No step was found."))
    if few:
        named = "; ".join(few[:5]) + (f" and {len(few) - 5} more" if few[5:] else "")
        blocks.append(Text(text=f"Too few points to look for steps: {named}.", tone="unsure"))
    return tuple(blocks)


def _mark(step: Step) -> str:
    return "- worse" if step.worse else "+ better"


def _likely(earliest: Point, latest: Point) -> str:
    return "" if earliest is latest else f"{earliest.short} to {latest.short}"


def _points(trends: Sequence[Trend], metric: Metric) -> Table:
    rows = []
    for found in trends:
        for point in (*found.series.points, *found.series.empty):
            value = number(None)
            if point.values:
                value = number(point.value, metric.value_text(point.value, unit=False))
            error = point.runs[0].error if point.failed else ""
            rows.append(
                (
                    text_cell(found.series.configuration),
                    text_cell(found.series.machine),
                    text_cell(point.short),
                    text_cell(formats.time_text(point)),
                    value,
                    text_cell(formats.range_text(point.values, metric)),
                    number(len(point.values), str(len(point.values))),
                    number(point.failed, str(point.failed)) if point.failed else number(None),
                    text_cell(error),
                )
            )
    columns = (
        Column("configuration"),
        Column("machine"),
        Column("point", code=True, steady=True),
        Column("started (UTC)", steady=True),
        Column(f"{metric.name}, {metric.unit_text}", number=True),
        Column("range", number=True),
        Column("processes", number=True),
        Column("failed", number=True),
        Column("error", prose=True),
    )
    return table(columns, rows)
