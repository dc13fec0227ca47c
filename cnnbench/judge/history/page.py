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
    path: str, document: HistoryDocument, commit_url: str = "", progress: Progress | None = None
) -> bytes:
    """The content of a page or picture; the suffix of the path determines the format."""
    suffix = Path(path).suffix.lower()
    if suffix in DOCUMENTS:
        text = writers.render_report(page(document, commit_url), DOCUMENTS[suffix], progress)
        return text.encode("utf-8", "backslashreplace")
    charts = _charts(document.series, document.metric)
    return draw.render(charts, suffix.lstrip("."), f"history of {document.metric.name}")


def page(document: HistoryDocument, commit_url: str = "") -> Report:
    """The page of a history: steps, then a chart for each series, then all points.

    Commits link to `commit_url` with {commit} replaced; "" for no links.
    """
    trends, metric = document.series, document.metric
    valued = [(trend, point) for trend in trends for point in trend.series.points]
    points = [*valued, *((trend, point) for trend in trends for point in trend.series.empty)]
    newest = points[::-1][:_MOST_LISTED]
    listed = f"The newest {integer(_MOST_LISTED)} of {integer(len(points))} are listed; "
    return Report(
        title=f"History of {metric.name}{_period(trends)}",
        subtitle=f"Measured with cnnbench; page of version {__version__}",
        answers=answers(document),
        highlights=(
            ("series", count(trends, "configuration", "configurations and machines")),
            ("points", integer(sum(number_of(trend.series.points) for trend in trends))),
        ),
        sections=(
            Section.of("steps", "Steps", _steps(document, commit_url)),
            Section.of("series", "Series", _series(trends, metric)),
            Section.of(
                "points",
                "Points",
                [
                    f"{listed}--format=csv writes all." if len(points) > _MOST_LISTED else None,
                    table(formats.point_row(*pair, metric, commit_url) for pair in newest),
                ],
                folded=True,
            ),
        ),
    )


def answers(document: HistoryDocument) -> tuple[Answer, ...]:
    """The answer about regressions that have not been undone, then one about outliers, if any."""
    return (_verdict(document), *_outliers(document))


def over_commits(document: HistoryDocument) -> Section:
    """The section of a report with records of several commits: steps, remarks and charts."""
    name = document.metric.name
    contents = [*_steps(document, ""), *_series(document.series, document.metric)]
    return Section.of(f"commits_{name}", f"Over commits: {name}", contents)


def _series(trends: Sequence[Trend], metric: Metric) -> list[Content]:
    drawn = _drawn(trends)
    which = f"Drawn are {len(drawn)} of {integer(len(trends))} series: those with steps, and the "
    charts = _charts(drawn, metric, _MOST_DRAWN_POINTS)
    return [f"{which}newest." if len(drawn) < len(trends) else None, charts]


def _period(trends: Sequence[Trend]) -> str:
    days = sorted(f"{point.started:%Y-%m-%d}" for trend in trends for point in trend.series.points)
    ends = " to ".join(dict.fromkeys((*days[:1], *days[-1:])))
    return f", {ends}" if ends else ""


def _verdict(document: HistoryDocument) -> Answer:
    """Answer about regressions that were not undone, and gains if --fail_on contains them."""
    shared = document.shared_steps
    numbers = {"regression": document.regressions, "gain": document.failing_gains}
    if steps := [shared[place] for places in numbers.values() for place in places]:
        parts = [count(places, *_OPEN[kind]) for kind, places in numbers.items() if places]
        return Answer("Steps", ", ".join(parts), "bad", _texts(steps, document))
    if not any(trend.enough for trend in document.series):
        text = f"Too few points: steps are looked for from {MIN_SERIES} on"
        return Answer("Steps", text, "unsure")
    is_undone = any(shared_step.worse for shared_step in shared)
    text = "Every regression was undone" if is_undone else "No regression"
    if document.accepted:
        text = count(document.accepted, "regression is accepted", "regressions are accepted")
    return Answer("Steps", text, "good", _texts(shared, document))


def _texts(shared: Sequence[SharedStep], document: HistoryDocument) -> tuple[str, ...]:
    return _first_texts([formats.shared_text(shared_step, document) for shared_step in shared])


def _outliers(document: HistoryDocument) -> list[Answer]:
    texts = []
    for outlier in document.shared_outliers:
        who = formats.series_text([document.series[at] for at in outlier.series], document.series)
        change = formats.changes_text(outlier, document.metric)
        place = f"at {outlier.point.short}, {formats.time_text(outlier.point)} UTC"
        texts.append(f"{who}: {change} {place}")
    text = count(document.shared_outliers, "outlier", "outliers")
    return [Answer("Outliers", text, "unsure", _first_texts(texts))] if texts else []


def _first_texts(texts: Sequence[str]) -> tuple[str, ...]:
    more = len(texts) - _MOST_NAMED
    return (*texts[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else []))


def _drawn(trends: Sequence[Trend]) -> list[Trend]:
    """The most important series, in order. They get charts.

    Series that became worse are the most important ones, then changed series, then series with the
    newest measurements.
    """

    def importance(trend: Trend) -> tuple[bool, bool, datetime]:
        newest = max(point.started for point in trend.series.points)
        return bool(trend.setbacks), bool(trend.steps), newest

    there = [trend for trend in trends if trend.series.points]
    chosen = sorted(there, key=importance, reverse=True)[:_MOST_DRAWN]
    return [trend for trend in trends if trend in chosen]


def _charts(trends: Sequence[Trend], metric: Metric, most: int | None = None) -> tuple[Lines, ...]:
    """Charts with about `most` points in total; all points if None."""
    there = [trend for trend in trends if trend.series.points]
    return tuple(_chart(trend, metric, most and most // len(there)) for trend in there)


def _chart(trend: Trend, metric: Metric, most: int | None = None) -> Lines:
    points = trend.series.points
    scale = 1 / 2**20 if metric.unit == "bytes" else 1.0
    groups = _groups(trend, most or len(points))
    measured = ChartSeries(
        name="median over a point's processes; the stroke is their range"
        if len(groups) == len(points)
        else "median over consecutive points; the stroke is their range",
        points=tuple(
            ((group[0] + group[-1]) / 2, median(points[i].value for i in group) * scale)
            for group in groups
        ),
        hints=tuple(_group_hint(trend, group, metric) for group in groups),
        spans=tuple(_span(points, group, scale) for group in groups),
    )
    level = [
        (float(place), trend.fitted[place] * scale)
        for level in trend.levels
        for place in (level.start, level.stop - 1)
    ]
    texts = [formats.step_text(step, metric) for step in trend.steps]
    share = metric.unit.startswith("share")
    axis = _axis(points)
    series = [measured, ChartSeries(name="level", points=tuple(level), reference=True)]
    if trend.outliers:
        series.append(_outlying(trend, metric, scale))
    return Lines(
        title=f"{trend.series.configuration} on {trend.series.machine}",
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
            for step, text in zip(trend.steps, texts, strict=True)
        ),
        note="; ".join(filter(None, (*texts, formats.outcome(trend, metric)))),
    )


def _groups(trend: Trend, most: int) -> list[range]:
    """Divides points into about `most` groups within levels. Each group is drawn as one mark."""
    size = math.ceil(len(trend.series.points) / most)
    return [
        range(first, min(first + size, level.stop))
        for level in trend.levels
        for first in range(level.start, level.stop, size)
    ]


def _span(points: Sequence[SeriesPoint], group: range, scale: float) -> tuple[float, float] | None:
    """Range of the processes of a point, or of the medians of several points."""
    alone = len(group) == 1
    values = points[group[0]].values if alone else [points[i].value for i in group]
    return (min(values) * scale, max(values) * scale) if len(values) > 1 else None


def _group_hint(trend: Trend, group: range, metric: Metric) -> str:
    points = trend.series.points
    if len(group) > 1:
        ends = f"{points[group[0]].short} to {points[group[-1]].short}"
        value = metric.value_text(median(points[i].value for i in group))
        return f"{ends}: {value}, {len(group)} points"
    # Outliers have separate hints.
    is_outlier = any(outlier.index == group[0] for outlier in trend.outliers)
    return "" if is_outlier else _hint(points[group[0]], metric)


def _outlying(trend: Trend, metric: Metric, scale: float) -> ChartSeries:
    points = trend.series.points
    return ChartSeries(
        name="outlier",
        points=tuple((float(o.index), points[o.index].value * scale) for o in trend.outliers),
        hints=tuple(
            f"{_hint(points[o.index], metric)}; outlier, {metric.change_text(o.change)}"
            for o in trend.outliers
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


def _steps(document: HistoryDocument, commit_url: str) -> list[Content]:
    metric = document.metric
    rows = (
        _step_row(trend, step, metric, commit_url)
        for trend in document.series
        for step in trend.steps
    )
    few = [trend.series.configuration for trend in document.series if not trend.enough]
    text = f"Too few points for steps: {first_few(few, _MOST_NAMED)}."
    noises = [
        f"{trend.series.configuration}: {noise}"
        for trend in document.series
        for noise in formats.noise_texts(trend, metric)
    ]
    return [
        table(rows) or "No step was found.",
        Text(text, "unsure") if few else None,
        *(Text(noise, "unsure") for noise in _first_texts(noises)),
        *document.remarks,
    ]


def _mark(step: LevelChange) -> str:
    return "- worse" if step.worse else "+ better"


def _step_row(trend: Trend, step: LevelChange, metric: Metric, commit_url: str) -> Row:
    first, last = step.earliest, step.latest
    likely = "" if first is last else f"{step.range_start.short} and {last.short}"
    if step.is_trend:
        likely = f"trend from {first.short} to {last.short}"
    return {
        "configuration": trend.series.configuration,
        "step": TableCell(_mark(step), tone="bad" if step.worse else "good"),
        "change": numeric(step.change, metric.change_text),
        "last before": linked(step.last_good, commit_url),
        "first after": linked(step.first_bad, commit_url),
        "95 %: between": TableCell(likely, kinds="code steady"),
        "measured (UTC)": TableCell(formats.time_text(step.first_bad), kinds="steady"),
        "since": "stands" if step.stands else formats.undone_text(step).removeprefix("; "),
        "changed there too": TableCell(formats.facts_text(step), kinds="prose"),
        "machine": trend.series.machine,
    }
