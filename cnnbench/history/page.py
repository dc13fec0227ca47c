"""The history as a page or as a picture: a chart per series with its levels and steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cnnbench.charts import HIGHER, LOWER, Axis, Event, Lines, Series
from cnnbench.history import formats
from cnnbench.history.series import SeriesPoint
from cnnbench.history.steps import Step, Trend
from cnnbench.metrics.registry import Metric
from cnnbench.report.document import (
    Block,
    Cell,
    Charts,
    Column,
    Report,
    Text,
    number,
    numeric,
    section,
    table,
)
from cnnbench.text.numbers import count, first_few
from cnnbench.version import __version__

SUFFIXES = (".html", ".md", ".svg", ".png", ".pdf")
_TICKS = 6
_MOST_NAMED = 5
_LEAST_SPAN = 0.1
"""Of the value axis, as a share of the values, so that noise of 1 % does not fill the chart."""


def render(path: str, trends: Sequence[Trend], metric: Metric) -> bytes:
    """The page or the picture.

    Args:
      path: its suffix, one of `SUFFIXES`, decides about the format.
      trends: series with their steps.
      metric: of the values.

    Returns:
      The content of the file.
    """
    suffix = Path(path).suffix.lower()
    documents = {".html": "html", ".md": "markdown"}
    if suffix in documents:
        from cnnbench.report.formats import render as write

        text = write(page(trends, metric), documents[suffix])
        return text.encode("utf-8", "backslashreplace")
    from cnnbench.charts import draw

    charts = _charts(trends, metric)
    return draw.render(charts, suffix.lstrip("."), f"history of {metric.name}")


def page(trends: Sequence[Trend], metric: Metric) -> Report:
    """All steps first, then a chart for each series, then all points.

    Args:
      trends: series with their steps.
      metric: of the values.
    """
    points = [
        (found, point) for found in trends for point in (*found.series.points, *found.series.empty)
    ]
    worse = sum(step.worse and step.stands for found in trends for step in found.steps)
    valued = sum(len(found.series.points) for found in trends)
    return Report(
        title=f"History of {metric.name}",
        subtitle=f"Measured with cnnbench; page of version {__version__}",
        highlights=(
            ("series", count(len(trends), "configuration", "configurations and machines")),
            ("points", str(valued)),
            ("for the worse, and not undone", count(worse, "step", "steps")),
        ),
        sections=(
            section("steps", "Steps", *_steps(trends, metric)),
            section("series", "Series", Charts(charts=_charts(trends, metric))),
            section("points", "Points", table(_point_columns(metric), points)),
        ),
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


def _axis(points: Sequence[SeriesPoint]) -> Axis:
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


def _hint(point: SeriesPoint, metric: Metric) -> str:
    values = count(len(point.values), "process", "processes")
    value = metric.value_text(point.value)
    return f"{point.short}, {formats.time_text(point)} UTC: {value}, {values}"


def _steps(trends: Sequence[Trend], metric: Metric) -> list[Block]:
    """The table of all steps, and the series that are too short to have any."""
    steps = [(found, step) for found in trends for step in found.steps]
    few = [found.series.configuration for found in trends if not found.enough]
    blocks: list[Block] = [table(_step_columns(metric), steps) or Text(text="No step was found.")]
    if few:
        text = f"Too few points for steps: {first_few(few, _MOST_NAMED)}."
        blocks.append(Text(text=text, tone="unsure"))
    return blocks


def _mark(step: Step) -> str:
    return "- worse" if step.worse else "+ better"


def _likely(step: Step) -> str:
    return "" if step.earliest is step.latest else f"{step.earliest.short} to {step.latest.short}"


_CONFIGURATION: Column[tuple[Trend, Any]] = Column(
    "configuration", lambda row: row[0].series.configuration
)
_MACHINE: Column[tuple[Trend, Any]] = Column("machine", lambda row: row[0].series.machine)


def _step_columns(metric: Metric) -> tuple[Column[tuple[Trend, Step]], ...]:
    return (
        _CONFIGURATION,
        _MACHINE,
        Column("step", lambda row: Cell(_mark(row[1]), tone="bad" if row[1].worse else "good")),
        numeric("change", lambda row: row[1].change, metric.change_text),
        Column("last before", lambda row: row[1].last_good.short, "code steady"),
        Column("first after", lambda row: row[1].first_bad.short, "code steady"),
        Column("95 %: between", lambda row: _likely(row[1]), "code steady"),
        Column("measured (UTC)", lambda row: formats.time_text(row[1].first_bad), "steady"),
        Column("since", lambda row: "stands" if row[1].stands else "undone since"),
        Column("changed there too", lambda row: formats.facts_text(row[1]), "prose"),
    )


def _point_columns(metric: Metric) -> tuple[Column[tuple[Trend, SeriesPoint]], ...]:
    def value(row: tuple[Trend, SeriesPoint]) -> Cell:
        known = row[1].value if row[1].values else None
        return number(known, metric.value_text(known, unit=False))

    return (
        _CONFIGURATION,
        _MACHINE,
        Column("point", lambda row: row[1].short, "code steady"),
        Column("started (UTC)", lambda row: formats.time_text(row[1]), "steady"),
        Column(f"{metric.name}, {metric.unit_text}", value, "number"),
        Column("range", lambda row: formats.range_text(row[1].values, metric), "number"),
        numeric("processes", lambda row: len(row[1].values), "{:.0f}".format),
        numeric("failed", lambda row: row[1].failed or None, "{:.0f}".format),
        Column("error", lambda row: row[1].runs[0].error if row[1].failed else "", "prose"),
    )
