"""Writes a history as a page or picture, with a chart of levels and steps for each series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cnnbench.base.charts import HIGHER, LOWER, Axis, ChartEvent, ChartSeries, Lines, draw
from cnnbench.base.document import (
    Answer,
    Content,
    Report,
    Row,
    Section,
    TableCell,
    Text,
    numeric,
    table,
    writers,
)
from cnnbench.base.levels import MIN_SERIES
from cnnbench.base.stats import median
from cnnbench.base.terminal import Progress
from cnnbench.base.text import count, first_few, integer, number_of
from cnnbench.judge.history import formats
from cnnbench.judge.history.formats import HistoryDocument, is_commit, linked
from cnnbench.judge.history.series import SeriesPoint
from cnnbench.judge.history.steps import (
    LevelChange,
    SharedStep,
    Trend,
)
from cnnbench.records.files import PICTURES
from cnnbench.records.metric import Metric
from cnnbench.version import __version__

DOCUMENTS = {".html": "html", ".md": "markdown"}
"""Formats of pages by suffix of the file. Other suffixes mean pictures."""

SUFFIXES = (*DOCUMENTS, *PICTURES)
_MOST_DRAWN, _MOST_DRAWN_POINTS, _MOST_LISTED = 12, 1000, 1000
"""Maximum numbers of charts in a page, of marks in all charts, and of rows in the table of points.
"""

_OPEN = {
    "regression": ("regression has not been undone", "regressions have not been undone"),
    "gain": ("gain has not been undone", "gains have not been undone"),
}
"""Words after a number of steps, singular and plural."""

_TICKS = 6
_DIGITS = 7
_MOST_NAMED = 5
_LEAST_SPAN = 0.1
"""Minimum range of the value axis, as a share of the values. Otherwise, small noise would fill the
chart.
"""


def render(
    path: str, found: HistoryDocument, commit_url: str = "", progress: Progress | None = None
) -> bytes:
    """The content of a page or picture; the suffix of the path determines the format."""
    suffix = Path(path).suffix.lower()
    if suffix in DOCUMENTS:
        text = writers.render_report(page(found, commit_url), DOCUMENTS[suffix], progress)
        return text.encode("utf-8", "backslashreplace")
    charts = _charts(found.series, found.metric)
    return draw.render(charts, suffix.lstrip("."), f"history of {found.metric.name}")


def page(found: HistoryDocument, commit_url: str = "") -> Report:
    """The page of a history: steps, then a chart for each series, then all points.

    Commits link to `commit_url` with {commit} replaced; "" for no links.
    """
    trends, metric = found.series, found.metric
    valued = [(one, point) for one in trends for point in one.series.points]
    points = [*valued, *((one, point) for one in trends for point in one.series.empty)]
    newest = points[::-1][:_MOST_LISTED]
    listed = f"The newest {integer(_MOST_LISTED)} of {integer(len(points))} are listed; "
    return Report(
        title=f"History of {metric.name}{_period(trends)}",
        subtitle=f"Measured with cnnbench; page of version {__version__}",
        answers=answers(found),
        highlights=(
            ("series", count(trends, "configuration", "configurations and machines")),
            ("points", integer(sum(number_of(one.series.points) for one in trends))),
        ),
        sections=(
            Section.of("steps", "Steps", _steps(found, commit_url)),
            Section.of("series", "Series", _series(trends, metric)),
            Section.of(
                "points",
                "Points",
                [
                    f"{listed}--format=csv writes all." if len(points) > _MOST_LISTED else None,
                    table(formats.point_row(*one, metric, commit_url) for one in newest),
                ],
                folded=True,
            ),
        ),
    )


def answers(found: HistoryDocument) -> tuple[Answer, ...]:
    """The answer about regressions that have not been undone, then one about outliers, if any."""
    return (_verdict(found), *_outliers(found))


def over_commits(found: HistoryDocument) -> Section:
    """The section of a report with records of several commits: steps, remarks and charts."""
    name = found.metric.name
    contents = [*_steps(found, ""), *_series(found.series, found.metric)]
    return Section.of(f"commits_{name}", f"Over commits: {name}", contents)


def _series(trends: Sequence[Trend], metric: Metric) -> list[Content]:
    drawn = _drawn(trends)
    which = f"Drawn are {len(drawn)} of {integer(len(trends))} series: those with steps, and the "
    charts = _charts(drawn, metric, _MOST_DRAWN_POINTS)
    return [f"{which}newest." if len(drawn) < len(trends) else None, charts]


def _period(trends: Sequence[Trend]) -> str:
    days = sorted(f"{one.started:%Y-%m-%d}" for found in trends for one in found.series.points)
    ends = " to ".join(dict.fromkeys((*days[:1], *days[-1:])))
    return f", {ends}" if ends else ""


def _verdict(found: HistoryDocument) -> Answer:
    """Answer about regressions that were not undone, and gains if --fail_on contains them."""
    shared = found.shared_steps
    numbers = {"regression": found.regressions, "gain": found.failing_gains}
    if steps := [shared[place] for places in numbers.values() for place in places]:
        parts = [count(places, *_OPEN[kind]) for kind, places in numbers.items() if places]
        return Answer("Steps", ", ".join(parts), "bad", _texts(steps, found))
    if not any(one.enough for one in found.series):
        text = f"Too few points: steps are looked for from {MIN_SERIES} on"
        return Answer("Steps", text, "unsure")
    is_undone = any(one.worse for one in shared)
    text = "Every regression was undone" if is_undone else "No regression"
    if found.accepted:
        text = count(found.accepted, "regression is accepted", "regressions are accepted")
    return Answer("Steps", text, "good", _texts(shared, found))


def _texts(shared: Sequence[SharedStep], found: HistoryDocument) -> tuple[str, ...]:
    return _first([formats.shared_text(one, found) for one in shared])


def _outliers(found: HistoryDocument) -> list[Answer]:
    texts = []
    for one in found.shared_outliers:
        who = formats.series_text([found.series[at] for at in one.series], found.series)
        change = formats.changes_text(one, found.metric)
        place = f"at {one.point.short}, {formats.time_text(one.point)} UTC"
        texts.append(f"{who}: {change} {place}")
    text = count(found.shared_outliers, "outlier", "outliers")
    return [Answer("Outliers", text, "unsure", _first(texts))] if texts else []


def _first(texts: Sequence[str]) -> tuple[str, ...]:
    more = len(texts) - _MOST_NAMED
    return (*texts[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else []))


def _drawn(trends: Sequence[Trend]) -> list[Trend]:
    """The most important series, in order. They get charts.

    Series that became worse are the most important ones, then changed series, then series with the
    newest measurements.
    """

    def importance(found: Trend) -> tuple[bool, bool, datetime]:
        newest = max(point.started for point in found.series.points)
        return bool(found.setbacks), bool(found.steps), newest

    there = [found for found in trends if found.series.points]
    chosen = sorted(there, key=importance, reverse=True)[:_MOST_DRAWN]
    return [found for found in trends if found in chosen]


def _charts(trends: Sequence[Trend], metric: Metric, most: int | None = None) -> tuple[Lines, ...]:
    """Charts with about `most` points in total; all points if None."""
    there = [found for found in trends if found.series.points]
    return tuple(_chart(found, metric, most and most // len(there)) for found in there)


def _chart(found: Trend, metric: Metric, most: int | None = None) -> Lines:
    points = found.series.points
    scale = 1 / 2**20 if metric.unit == "bytes" else 1.0
    groups = _groups(found, most or len(points))
    measured = ChartSeries(
        name="median over a point's processes; the stroke is their range"
        if len(groups) == len(points)
        else "median over consecutive points; the stroke is their range",
        points=tuple(
            ((group[0] + group[-1]) / 2, median(points[i].value for i in group) * scale)
            for group in groups
        ),
        hints=tuple(_group_hint(found, group, metric) for group in groups),
        spans=tuple(_span(points, group, scale) for group in groups),
    )
    level = [
        (float(place), found.fitted[place] * scale)
        for one in found.levels
        for place in (one.start, one.stop - 1)
    ]
    texts = [formats.step_text(step, metric) for step in found.steps]
    share = metric.unit.startswith("share")
    axis = _axis(points)
    series = [measured, ChartSeries(name="level", points=tuple(level), reference=True)]
    if found.outliers:
        series.append(_outlying(found, metric, scale))
    return Lines(
        title=f"{found.series.configuration} on {found.series.machine}",
        x=axis,
        y=Axis(
            label=metric.title if not share else metric.name,
            format="percent" if share else "number",
            better=HIGHER if metric.higher_is_better else LOWER,
            least_span=_LEAST_SPAN if metric.relative else 0.0,
        ),
        series=tuple(series),
        labels=axis.tick_texts,
        events=tuple(
            ChartEvent(x=step.index - 0.5, label=text, mark=_mark(step), gain=not step.worse)
            for step, text in zip(found.steps, texts, strict=True)
        ),
        note="; ".join(filter(None, (*texts, formats.outcome(found, metric)))),
    )


def _groups(found: Trend, most: int) -> list[range]:
    """Divides points into about `most` groups within levels. Each group is drawn as one mark."""
    size = math.ceil(len(found.series.points) / most)
    return [
        range(first, min(first + size, level.stop))
        for level in found.levels
        for first in range(level.start, level.stop, size)
    ]


def _span(points: Sequence[SeriesPoint], group: range, scale: float) -> tuple[float, float] | None:
    """Range of the processes of a point, or of the medians of several points."""
    alone = len(group) == 1
    values = points[group[0]].values if alone else [points[i].value for i in group]
    return (min(values) * scale, max(values) * scale) if len(values) > 1 else None


def _group_hint(found: Trend, group: range, metric: Metric) -> str:
    points = found.series.points
    if len(group) > 1:
        ends = f"{points[group[0]].short} to {points[group[-1]].short}"
        value = metric.value_text(median(points[i].value for i in group))
        return f"{ends}: {value}, {len(group)} points"
    # Outliers have separate hints.
    is_outlier = any(one.index == group[0] for one in found.outliers)
    return "" if is_outlier else _hint(points[group[0]], metric)


def _outlying(found: Trend, metric: Metric, scale: float) -> ChartSeries:
    points = found.series.points
    return ChartSeries(
        name="outlier",
        points=tuple((float(o.index), points[o.index].value * scale) for o in found.outliers),
        hints=tuple(
            f"{_hint(points[o.index], metric)}; outlier, {metric.change_text(o.change)}"
            for o in found.outliers
        ),
        line=False,
    )


def _axis(points: Sequence[SeriesPoint]) -> Axis:
    """An axis with equal distances between points, and commits or dates as far as they fit."""
    ticks = tuple(float(place) for place in range(len(points)))
    if all(map(is_commit, points)):
        commits = tuple(point.name[:_DIGITS] for point in points)
        return Axis(label="commits in order", ticks=ticks, tick_texts=commits)
    days = {point.started.date() for point in points}
    form = "%m-%d %H:%M" if len(days) <= min(len(points), _TICKS) // 2 else "%Y-%m-%d"
    texts = tuple(point.started.strftime(form) for point in points)
    return Axis(label="points in order", ticks=ticks, tick_texts=texts)


def _hint(point: SeriesPoint, metric: Metric) -> str:
    values = count(point.values, "process", "processes")
    value = metric.value_text(point.value)
    return f"{point.short}, {formats.time_text(point)} UTC: {value}, {values}"


def _steps(found: HistoryDocument, commit_url: str) -> list[Content]:
    metric = found.metric
    rows = (_step_row(one, step, metric, commit_url) for one in found.series for step in one.steps)
    few = [one.series.configuration for one in found.series if not one.enough]
    text = f"Too few points for steps: {first_few(few, _MOST_NAMED)}."
    noises = [
        f"{one.series.configuration}: {noise}"
        for one in found.series
        for noise in formats.noise_texts(one, metric)
    ]
    return [
        table(rows) or "No step was found.",
        Text(text, "unsure") if few else None,
        *(Text(noise, "unsure") for noise in _first(noises)),
        *found.remarks,
    ]


def _mark(step: LevelChange) -> str:
    return "- worse" if step.worse else "+ better"


def _step_row(found: Trend, step: LevelChange, metric: Metric, commit_url: str) -> Row:
    first, last = step.earliest, step.latest
    likely = "" if first is last else f"{step.range_start.short} and {last.short}"
    if step.is_trend:
        likely = f"trend from {first.short} to {last.short}"
    return {
        "configuration": found.series.configuration,
        "step": TableCell(_mark(step), tone="bad" if step.worse else "good"),
        "change": numeric(step.change, metric.change_text),
        "last before": linked(step.last_good, commit_url),
        "first after": linked(step.first_bad, commit_url),
        "95 %: between": TableCell(likely, kinds="code steady"),
        "measured (UTC)": TableCell(formats.time_text(step.first_bad), kinds="steady"),
        "since": "stands" if step.stands else formats.undone_text(step).removeprefix("; "),
        "changed there too": TableCell(formats.facts_text(step), kinds="prose"),
        "machine": found.series.machine,
    }
