"""Converts a history to blocks, from which all formats are written: answers, level changes, charts,
points.

`blocks` is the only function that turns a history into text and tables. Writers of formats know
nothing about histories.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import itemgetter
from pathlib import Path

from cnnbench.base.charts import HIGHER, LOWER, Axis, ChartEvent, ChartSeries, LineChart, draw
from cnnbench.base.document import (
    Answer,
    ChartGroup,
    Content,
    Items,
    Paragraph,
    Report,
    Row,
    Section,
    TableCell,
    interval_cell,
    make_table,
    numeric_cell,
    quantity_cell,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.document.formats import render_report
from cnnbench.base.stats import group_by, median
from cnnbench.base.terminal import ProgressLine
from cnnbench.base.text import count_text, first_few, first_lines, integer
from cnnbench.judge.history import phrases
from cnnbench.judge.history.page import HistoryDocument
from cnnbench.judge.history.series import SeriesPoint
from cnnbench.judge.history.steps import LevelChange, Trend
from cnnbench.records.files import PICTURES
from cnnbench.records.metric import Metric
from cnnbench.version import __version__

DOCUMENTS = {".html": "html", ".md": "markdown"}
"""Maps the suffix of a file to the format of the page. Files with other suffixes are pictures."""

SUFFIXES = (*DOCUMENTS, *PICTURES)

_MOST_MARKS, _MOST_LISTED = 1000, 1000
"""Maximum numbers of marks in all charts of a page together, and of points in its tables."""


def blocks(
    document: HistoryDocument,
    *,
    last: int = 0,
    most: int | None = None,
    commit_url: str = "",
    drawn: bool = True,
) -> list[Section]:
    """Returns a history as sections: the answers, a table of the level changes, a chart for each
    time series, and a table of the points of each time series.

    Args:
      last: number of points of each time series, the newest ones; 0 for all.
      most: number of points of all time series together; None for all.
      commit_url: address of a commit, in which {commit} is replaced; see `commit_link`.
      drawn: whether charts are made, which takes time and which terminals do not show.
    """
    # If all time series are too short, the answer already says so.
    steps = _level_changes(document, commit_url, answered=True)
    charts = [_charts(document, commit_url) if drawn else None]
    points = _point_tables(document, last, most, commit_url)
    sections = [
        Section.of(_answer_contents(document), "answer"),
        Section.of(steps, "steps", "Steps"),
        Section.of(charts, "series", "Series"),
        Section.of(points, "points", "Points", folded=True),
    ]
    return [section for section in sections if section.blocks]


def terminal_text(document: HistoryDocument, last: int = 0) -> str:
    """Returns a history for a terminal, with the last points of each time series (0: all)."""
    return sections_to_text(blocks(document, last=last, drawn=False))


def render(
    path: str, document: HistoryDocument, commit_url: str = "", progress: ProgressLine | None = None
) -> bytes:
    """Returns a page or picture of a history. The suffix of `path` determines the format."""
    suffix = Path(path).suffix.lower()
    if suffix in DOCUMENTS:
        text = render_report(build_page(document, commit_url), DOCUMENTS[suffix], progress)
        return text.encode("utf-8", "backslashreplace")
    charts = series_charts(document.series, document.metric)
    return draw.render_chart_file(charts, suffix.lstrip("."), f"history of {document.metric.name}")


def build_page(document: HistoryDocument, commit_url: str = "") -> Report:
    """Returns the page of a history. For `commit_url`, see `commit_link`."""
    trends, metric = document.series, document.metric
    _, *sections = blocks(document, most=_MOST_LISTED, commit_url=commit_url)
    days = sorted(f"{point.started:%Y-%m-%d}" for trend in trends for point in trend.series.points)
    period = " to ".join(dict.fromkeys((*days[:1], *days[-1:])))
    return Report(
        title=f"History of {metric.name}{f', {period}' if period else ''}",
        subtitle=f"Measured with cnnbench; page of version {__version__}",
        answers=history_answers(document),
        highlights=(
            ("values", phrases.values_text(metric)),
            ("series", count_text(trends, "configuration", "configurations and machines")),
            ("points", integer(sum(len(trend.series.points) for trend in trends))),
        ),
        sections=tuple(sections),
    )


def history_section(document: HistoryDocument, commit_url: str = "") -> Section:
    """Returns the section of a report about records of several commits: level changes, remarks, and
    a chart for each time series. For `commit_url`, see `commit_link`.
    """
    name = document.metric.name
    contents = [*_level_changes(document, commit_url), _charts(document, commit_url)]
    return Section.of(contents, f"commits_{name}", f"Over commits: {name}")


def _answer_contents(document: HistoryDocument) -> Iterator[Content]:
    yield Paragraph(phrases.values_text(document.metric), whole=True)
    for answer in history_answers(document):
        yield Paragraph(f"{answer.name}: {answer.text}", answer.tone)
        yield Items(texts=tuple(f"- {detail}" for detail in answer.details))


def history_answers(document: HistoryDocument) -> tuple[Answer, ...]:
    """Returns the answers of a history: about regressions that have not been undone and, if there
    are any, about outliers.
    """
    return (_regressions_answer(document), *_outlier_answers(document))


def _regressions_answer(document: HistoryDocument) -> Answer:
    """Returns the answer about lasting regressions and, with --fail_on=faster, lasting gains."""
    shared, trends, metric = document.shared_steps, document.series, document.metric
    regressions, gains = document.regressions, document.gains
    accepted = document.accepted
    places = (*regressions, *gains)
    text, tone = phrases.lasting(len(regressions), len(gains)), "bad"
    if not places:
        places, tone = tuple(range(len(shared))), "good"
        text = "No regression"
        if any(shared_step.worse for shared_step in shared):
            text = "Every regression was undone"
        if accepted:
            text = count_text(accepted, "regression is accepted", "regressions are accepted")
        if not any(trend.enough for trend in trends):
            names = [trend.series.configuration for trend in trends]
            listed = first_lines(names, phrases.MOST_NAMED)
            return Answer("Steps", f"Too few points: {phrases.MORE_POINTS}", "unsure", listed)
    texts = [phrases.shared_step_text(shared[place], trends, metric) for place in places]
    return Answer("Steps", text, tone, first_lines(texts, phrases.MOST_NAMED))


def _outlier_answers(document: HistoryDocument) -> list[Answer]:
    trends, outliers = document.series, document.shared_outliers
    texts = [phrases.outlier_text(outlier, trends, document.metric) for outlier in outliers]
    text = count_text(outliers, "outlier", "outliers")
    listed = first_lines(texts, phrases.MOST_NAMED)
    return [Answer("Outliers", text, "unsure", listed)] if texts else []


def _level_changes(
    document: HistoryDocument, commit_url: str, answered: bool = False
) -> list[Content]:
    """Returns a table of the level changes, and remarks. `answered` is whether an answer says that
    all time series are too short.
    """
    trends, metric = document.series, document.metric
    said = answered and not any(trend.enough for trend in trends)
    steps = [(trend, step) for trend in trends for step in trend.steps]
    rows = (_change_row(trend, step, metric, commit_url) for trend, step in steps)
    notes = tuple(phrases.step_note(step) for _, step in steps)
    few = [trend.series.configuration for trend in trends if not trend.enough]
    listed = first_few(few, phrases.MOST_NAMED)
    noises = [
        f"{trend.series.configuration}: {noise}"
        for trend in trends
        for noise in phrases.noise_texts(trend, metric)
    ]
    return [
        make_table(rows, notes=notes) or (None if said else "No step was found."),
        Paragraph(f"Too few points for steps: {listed}.", "unsure") if few and not said else None,
        Items(texts=tuple(noises), about="remarks on noise"),
        Items(texts=tuple(document.remarks), about="remarks"),
    ]


def _change_row(trend: Trend, step: LevelChange, metric: Metric, commit_url: str) -> Row:
    tone, mark, word = ("bad", "-", "worse") if step.worse else ("good", "+", "better")
    return {
        "configuration": trend.series.configuration,
        "step": TableCell(word, tone=tone, mark=mark),
        "change": numeric_cell(step.change, metric.change_text),
        "levels": TableCell(phrases.levels_text(step, metric, unit=False), kinds="steady"),
        "last before": _point_cell(step.last_good, commit_url),
        "first after": _point_cell(step.first_bad, commit_url),
        "since": phrases.undone_text(step) or "stands",
        "95 %: between": TableCell(phrases.range_text(step), kinds="code steady"),
        "measured (UTC)": TableCell(phrases.time_text(step.first_bad), kinds="steady"),
        "machine": trend.series.machine,
    }


def _charts(document: HistoryDocument, commit_url: str) -> Content:
    trends = document.series
    drawn = trends_to_draw(trends)
    which = ""
    if len(drawn) < len(trends):
        which = f"The charts show {len(drawn)} of {integer(len(trends))} series: those with steps, "
        which += "and the newest."
    charts = series_charts(drawn, document.metric, commit_url, _MOST_MARKS)
    return ChartGroup(charts, note=which) if charts else None


def _point_tables(
    document: HistoryDocument, last: int, most: int | None, commit_url: str
) -> Iterator[Content]:
    """Yields a table of points for each time series, oldest first, those without a value last."""
    pairs = [
        (number, point)
        for number, trend in enumerate(document.series)
        for point in (*trend.series.points[-last:], *trend.series.empty)
    ]
    if most is not None and len(pairs) > most:
        shown = f"The newest {integer(most)} of {integer(len(pairs))} are listed"
        yield f"{shown}; --format=csv writes all."
        by_time = sorted(range(len(pairs)), key=lambda place: pairs[place][1].started)
        pairs = [pairs[place] for place in sorted(by_time[-most:])]
    for number, members in group_by(pairs, itemgetter(0)).items():
        trend, points = document.series[number], [point for _, point in members]
        hidden = len(trend.series.points) - last if last else 0
        yield make_table(
            (_point_row(trend, point, document.metric, commit_url) for point in points),
            title=f"{trend.series.configuration} on {trend.series.machine}",
            notes=tuple(phrases.no_value_text(point) for point in points),
        )
        if hidden > 0:
            earlier = count_text(hidden, "earlier point", "earlier points")
            yield Paragraph(f"... {earlier}; --last=0 lists all")


def _point_row(trend: Trend, point: SeriesPoint, metric: Metric, commit_url: str) -> Row:
    ends = (min(point.values), max(point.values)) if point.values[1:] else None
    text = partial(metric.value_text, unit=False)
    return {
        "point": _point_cell(point, commit_url),
        "started (UTC)": TableCell(phrases.time_text(point), kinds="steady"),
        f"median, {metric.unit_text}": quantity_cell(
            point.value if point.values else None, metric.unit
        ),
        "range": interval_cell(ends, text, why="needs two processes"),
        "processes": numeric_cell(len(point.values)),
        "failed": numeric_cell(point.failed or None, why="no process failed"),
        "mark": _mark_cell(trend, point, metric),
    }


def _mark_cell(trend: Trend, point: SeriesPoint, metric: Metric) -> TableCell:
    """Returns a cell that says whether a level begins at the point, or it is an outlier."""
    marks = [
        TableCell(
            f"{'trend' if step.is_trend else 'step'} {metric.change_text(step.change)}",
            tone="bad" if step.worse else "good",
            mark="-" if step.worse else "+",
        )
        for step in trend.steps
        if step.first_bad is point
    ]
    marks += [
        TableCell(f"outlier {metric.change_text(outlier.change)}", tone="unsure", mark="?")
        for outlier in trend.outliers
        if trend.series.points[outlier.index] is point
    ]
    if not marks:
        return TableCell("")
    first, *others = marks
    return replace(first, text=", ".join((first.text, *(other.marked_text for other in others))))


def _point_cell(point: SeriesPoint, commit_url: str) -> TableCell:
    """Returns a cell with the name of a point, which links to the commit (see `commit_link`)."""
    link = commit_link(point, commit_url)
    return TableCell(point.short_title, link=link, kinds="code steady")


# Charts of time series.

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
    over = "a point's processes" if len(groups) == len(points) else "consecutive points"
    centres = [(group[0] + group[-1]) / 2 for group in groups]
    medians = [median(points[i].value for i in group) * scale for group in groups]
    # A mark in a chart can stand for several commits; such a mark has no link.
    alone = [points[group[0]] if len(group) == 1 else None for group in groups]
    measured = ChartSeries(
        name=f"median over {over}; the stroke is their range",
        points=tuple(zip(centres, medians, strict=True)),
        hints=tuple(_group_hint(trend, group, metric) for group in groups),
        links=tuple("" if point is None else commit_link(point, commit_url) for point in alone),
        spans=tuple(_value_range(points, group, scale) for group in groups),
    )
    level = [
        (float(place), trend.fitted[place] * scale)
        for level in trend.levels
        for place in (level.start, level.stop - 1)
    ]
    texts = [phrases.step_text(step, metric) for step in trend.steps]
    share = metric.unit.startswith("share")
    axis = _point_axis(points)
    series = [measured, ChartSeries(name="level", points=tuple(level), reference=True)]
    if trend.outliers:
        series.append(_outlier_series(trend, metric, scale, commit_url))
    values = Axis(
        label=metric.title if not share else metric.name,
        format="percent" if share else "number",
        better=HIGHER if metric.higher_is_better else LOWER,
        least_span=_LEAST_SPAN if metric.relative else 0.0,
    )
    events = []
    for step, text in zip(trend.steps, texts, strict=True):
        mark = "- worse" if step.worse else "+ better"
        place = step.index - 0.5
        events.append(ChartEvent(x=place, label=text, mark=mark, gain=not step.worse))
    return LineChart(
        title=f"{trend.series.configuration} on {trend.series.machine}",
        x=axis,
        y=values,
        series=tuple(series),
        labels=axis.tick_texts,
        events=tuple(events),
        note="; ".join(filter(None, (*texts, phrases.no_step_text(trend, metric)))),
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
    # Outliers have marks with hover texts of their own.
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
    return f"{point.short_title}, {phrases.time_text(point)} UTC: {value}, {values}"
