"""Draws a chart for each time series of a history."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime

from cnnbench.base.charts import HIGHER, LOWER, Axis, ChartEvent, ChartSeries, LineChart
from cnnbench.base.stats import median
from cnnbench.base.text import count_text
from cnnbench.judge.history.phrases import no_step_text, step_text, time_text
from cnnbench.judge.history.series import SeriesPoint
from cnnbench.judge.history.steps import Trend
from cnnbench.records.metric import Metric

_MOST_DRAWN = 12
_TICKS = 6
_DIGITS = 7
_LEAST_SPAN = 0.1
"""Minimum length of the value axis, as a share of the values, so that small noise does not fill the
chart.
"""


def commit_link(point: SeriesPoint, commit_url: str) -> str:
    """Returns the address of the commit of a point: `commit_url`, in which {commit} is replaced.
    Without `commit_url`, the address follows from the repository in the records. The address is ""
    if it is unknown, or if the name of the point is not a commit.
    """
    if not is_commit(point):
        return ""
    repository = point.origin.repository
    if not commit_url and _HOSTED.fullmatch(repository):
        commit_url = f"https://{repository}/commit/{{commit}}"
    return commit_url.replace("{commit}", point.name)


def is_commit(point: SeriesPoint) -> bool:
    """Whether the name of a point is a commit hash."""
    return point.name == point.runs[0].commit and bool(_COMMIT.fullmatch(point.name))


_COMMIT = re.compile("[0-9a-f]{7,64}")

_HOSTED = re.compile(r"\w[\w-]*(\.\w[\w-]*)+(/[\w.-]+)+", re.ASCII)
"""The repository of a record with the name of a host, such as github.com/OWNER/REPO."""


def trends_to_draw(trends: Sequence[Trend]) -> list[Trend]:
    """Selects the most important time series, which get charts. The order of the time series is
    kept.

    Time series with a regression that was not undone are the most important. Other time series with
    level changes follow, then time series with the newest measurements.
    """

    def drawing_priority(trend: Trend) -> tuple[bool, bool, datetime]:
        newest = max(point.started for point in trend.series.points)
        return bool(trend.lasting_regressions), bool(trend.steps), newest

    there = [trend for trend in trends if trend.series.points]
    chosen = sorted(there, key=drawing_priority, reverse=True)[:_MOST_DRAWN]
    return [trend for trend in trends if trend in chosen]


def series_charts(
    trends: Sequence[Trend], metric: Metric, commit_url: str = "", most: int | None = None
) -> tuple[LineChart, ...]:
    """Returns a chart for each time series. All charts together have about `most` marks. If `most`
    is None, every point is drawn. For `commit_url`, see `commit_link`.
    """
    there = [trend for trend in trends if trend.series.points]
    share = most // len(there) if most and there else None
    return tuple(_series_chart(trend, metric, commit_url, share) for trend in there)


def _series_chart(
    trend: Trend, metric: Metric, commit_url: str = "", most: int | None = None
) -> LineChart:
    points = trend.series.points
    scale = 1 / 2**20 if metric.unit == "bytes" else 1.0
    groups = _group_points(trend, most or len(points))
    measured = ChartSeries(
        name="median over a point's processes; the stroke is their range"
        if len(groups) == len(points)
        else "median over consecutive points; the stroke is their range",
        points=tuple(
            ((group[0] + group[-1]) / 2, median(points[i].value for i in group) * scale)
            for group in groups
        ),
        hints=tuple(_group_hint(trend, group, metric) for group in groups),
        # A mark for several commits is not a link.
        links=tuple(
            "" if len(group) > 1 else commit_link(points[group[0]], commit_url) for group in groups
        ),
        spans=tuple(_value_range(points, group, scale) for group in groups),
    )
    level = [
        (float(place), trend.fitted[place] * scale)
        for level in trend.levels
        for place in (level.start, level.stop - 1)
    ]
    texts = [step_text(step, metric) for step in trend.steps]
    share = metric.unit.startswith("share")
    axis = _point_axis(points)
    series = [measured, ChartSeries(name="level", points=tuple(level), reference=True)]
    if trend.outliers:
        series.append(_outlier_series(trend, metric, scale, commit_url))
    return LineChart(
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
            ChartEvent(
                x=step.index - 0.5,
                label=text,
                mark="- worse" if step.worse else "+ better",
                gain=not step.worse,
            )
            for step, text in zip(trend.steps, texts, strict=True)
        ),
        note="; ".join(filter(None, (*texts, no_step_text(trend, metric)))),
    )


def _group_points(trend: Trend, most: int) -> list[range]:
    """Divides the points of a time series into about `most` groups, each within one level. A chart
    draws one mark for each group.
    """
    size = math.ceil(len(trend.series.points) / most)
    return [
        range(first, min(first + size, level.stop))
        for level in trend.levels
        for first in range(level.start, level.stop, size)
    ]


def _value_range(
    points: Sequence[SeriesPoint], group: range, scale: float
) -> tuple[float, float] | None:
    """Returns the smallest and the largest value in a group of points. If the group is a single
    point, the values are from its processes; otherwise they are the medians of the points.
    """
    alone = len(group) == 1
    values = points[group[0]].values if alone else [points[i].value for i in group]
    return (min(values) * scale, max(values) * scale) if len(values) > 1 else None


def _group_hint(trend: Trend, group: range, metric: Metric) -> str:
    points = trend.series.points
    if len(group) > 1:
        ends = f"{points[group[0]].short_title} to {points[group[-1]].short_title}"
        value = metric.value_text(median(points[i].value for i in group))
        return f"{ends}: {value}, {len(group)} points"
    # The marks of outliers have their own hover texts.
    is_outlier = any(outlier.index == group[0] for outlier in trend.outliers)
    return "" if is_outlier else _point_hint(points[group[0]], metric)


def _outlier_series(trend: Trend, metric: Metric, scale: float, commit_url: str) -> ChartSeries:
    points = trend.series.points
    return ChartSeries(
        name="outlier",
        points=tuple((float(o.index), points[o.index].value * scale) for o in trend.outliers),
        hints=tuple(
            f"{_point_hint(points[o.index], metric)}; outlier, {metric.change_text(o.change)}"
            for o in trend.outliers
        ),
        links=tuple(commit_link(points[o.index], commit_url) for o in trend.outliers),
        line=False,
    )


def _point_axis(points: Sequence[SeriesPoint]) -> Axis:
    """Returns an axis with equal distances between the points of a time series. The axis shows as
    many commits or dates as fit.
    """
    ticks = tuple(float(place) for place in range(len(points)))
    if all(map(is_commit, points)):
        form = "%m-%d" if len({point.started.year for point in points}) == 1 else "%Y-%m-%d"
        commits = tuple(f"{point.name[:_DIGITS]}, {point.started:{form}}" for point in points)
        return Axis(label="commits in order, first measured (UTC)", ticks=ticks, tick_texts=commits)
    days = {point.started.date() for point in points}
    form = "%m-%d %H:%M" if len(days) <= min(len(points), _TICKS) // 2 else "%Y-%m-%d"
    texts = tuple(point.started.strftime(form) for point in points)
    return Axis(label="points in order", ticks=ticks, tick_texts=texts)


def _point_hint(point: SeriesPoint, metric: Metric) -> str:
    values = count_text(point.values, "process", "processes")
    value = metric.value_text(point.value)
    return f"{point.short_title}, {time_text(point)} UTC: {value}, {values}"
