"""Writes a history as text, CSV or JSON, and as a web page, Markdown or a picture with a chart for
each time series.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from cnnbench.base import terminal as tables
from cnnbench.base.charts import HIGHER, LOWER, Axis, ChartEvent, ChartSeries, LineChart, draw
from cnnbench.base.document import (
    Answer,
    Content,
    Paragraph,
    Report,
    Row,
    Section,
    TableCell,
    counted_remarks,
    make_table,
    numeric_cell,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.document.formats import render_report
from cnnbench.base.levels import MIN_SERIES, TWO_MACHINES
from cnnbench.base.notebook import Displayed, short_repr
from cnnbench.base.stats import ValuesByProcess, median
from cnnbench.base.terminal import ProgressLine
from cnnbench.base.text import count_text, first_few, integer, item_count
from cnnbench.judge.compare.configuration import IMPORTED, imported_measurements_note
from cnnbench.judge.history.series import SeriesPoint
from cnnbench.judge.history.steps import (
    LevelChange,
    SharedOutlier,
    SharedStep,
    Trend,
    group_level_changes_by_commit,
    group_outliers_by_point,
)
from cnnbench.judge.metrics import readable_fact
from cnnbench.judge.metrics.rules import Rules
from cnnbench.judge.report.exports import ExportedMetric, shared_labels
from cnnbench.machine.repository import CommitGraph
from cnnbench.records.codec import NOT_EMPTY, Document, JsonKeys, Key
from cnnbench.records.documents import json_document
from cnnbench.records.files import PICTURES
from cnnbench.records.metric import Metric
from cnnbench.records.result_files import SkippedFile
from cnnbench.version import __version__

# Writes a history as text, CSV and JSON, and converts it to metrics for other programs.

_MOST_FACTS = 4
_MOST_SERIES = 2
"""If a level change occurs in only some of the time series, at most this many are named."""


@json_document("cnnbench history --format=json")
@dataclass(frozen=True)
class HistoryDocument(Document, Displayed):
    """The result of ``cnnbench history``: all time series with their level changes and outliers,
    schema 1.

    Attributes:
      metric: name of the metric.
      unit: unit of the metric's values.
      higher_is_better: whether higher values are better.
      relative: whether changes are shares of the level before; otherwise they are differences.
      series: all time series. Each contains measurements of one configuration on one machine.
      shared_steps: the level changes of all time series, grouped by the commit that explains them.
      remarks: sentences about machines and commits, such as commits that are no longer on any
        branch.
      skipped: files that contain no valid record.
      fail_on: words of --fail_on; absent without the flag.
      failed_on: words of --fail_on whose level changes set exit code 1; absent if there are none.
      regressions: indices in `shared_steps` of regressions that were neither undone nor accepted.
      accepted: indices in `shared_steps` of regressions that rules accept; absent if none.
      shared_outliers: outliers of all time series, grouped by point.
    """

    kind: ClassVar[str] = "history"
    schema: ClassVar[int] = 1
    indented: ClassVar[bool] = True

    json_keys: ClassVar[JsonKeys] = (
        Key("metric", "metric.name"),
        Key("unit", "metric.unit"),
        Key("higher_is_better", "metric.higher_is_better"),
        Key("relative", "metric.relative"),
        "series",
        "shared_steps",
        "remarks",
        "skipped",
        "fail_on",
        Key("failed_on", rules=NOT_EMPTY),
        Key("regressions", "lasting_regression_indices"),
        Key("accepted", "accepted_regression_indices", NOT_EMPTY),
        "shared_outliers",
    )

    metric: Metric
    series: Sequence[Trend]
    remarks: Sequence[str] = ()
    skipped: Sequence[SkippedFile] = ()
    fail_on: tuple[str, ...] = field(default=(), metadata=NOT_EMPTY)
    rules: Rules = field(default_factory=Rules)

    def __repr__(self) -> str:
        points = sum(item_count(trend.series.points) for trend in self.series)
        counts = (
            count_text(self.series, "series", "series"),
            count_text(points, "point", "points"),
            count_text(self.shared_steps, "step", "steps"),
        )
        return short_repr(self, f"{self.metric.name}, {', '.join(counts)}")

    @cached_property
    def shared_steps(self) -> tuple[SharedStep, ...]:
        """The level changes of all time series, grouped by the commit that caused them."""
        return tuple(group_level_changes_by_commit(self.series))

    @cached_property
    def lasting_regression_indices(self) -> tuple[int, ...]:
        """Indices in `shared_steps` of regressions that were neither undone nor accepted by
        rules.
        """
        return tuple(
            place
            for place in self._lasting_step_indices(worse=True)
            if place not in self.accepted_regression_indices
        )

    @cached_property
    def accepted_regression_indices(self) -> tuple[int, ...]:
        """Indices in `shared_steps` of regressions that the rules accept in all affected time
        series.
        """
        return tuple(
            place
            for place in (self._lasting_step_indices(worse=True) if self.rules.accepts else ())
            if all(self._is_accepted(*pair) for pair in self.shared_steps[place].steps)
        )

    def _is_accepted(self, trend: Trend, step: LevelChange) -> bool:
        ends = (step.last_good.name,), (step.first_bad.name,)
        acceptance = self.rules.acceptance_between(
            trend.series.configuration, self.metric, "slower", *ends
        )
        return acceptance is not None and not acceptance.has_ended

    @property
    def failing_gain_indices(self) -> tuple[int, ...]:
        """Indices in `shared_steps` of gains that have not been undone, if --fail_on contains
        `faster`; otherwise ().
        """
        return self._lasting_step_indices(worse=False) if "faster" in self.fail_on else ()

    @property
    def failed_on(self) -> tuple[str, ...]:
        """The words of --fail_on that set exit code 1, because a regression (or gain) has not been
        undone.
        """
        failing = {"faster": self.failing_gain_indices}
        return tuple(
            word for word in self.fail_on if failing.get(word, self.lasting_regression_indices)
        )

    def _lasting_step_indices(self, worse: bool) -> tuple[int, ...]:
        shared = enumerate(self.shared_steps)
        return tuple(
            place
            for place, shared_step in shared
            if shared_step.stands and shared_step.worse is worse
        )

    @cached_property
    def shared_outliers(self) -> tuple[SharedOutlier, ...]:
        """The outliers of all time series, grouped by point. A group may contain a single
        outlier.
        """
        return tuple(group_outliers_by_point(self.series))


def terminal_text(document: HistoryDocument, last: int = 0) -> str:
    """Returns a history as text for a terminal: for each time series, its last `last` points (0
    means all) and its level changes.

    The text ends with level changes that several time series share, and remarks about commits.
    """
    metric = document.metric
    direction = "higher" if metric.higher_is_better else "lower"
    head = f"{metric.title}, median over the processes of a point; {direction} is better"
    shared = [shared_step for shared_step in document.shared_steps if len(shared_step.steps) > 1]
    texts = (
        Paragraph(
            f"{_change_sign(shared_step.steps[0][1])} "
            f"{shared_level_change_text(shared_step, document)}",
            hanging=2,
        )
        for shared_step in shared
    )
    ends = [*texts, *(Paragraph(remark, hanging=2) for remark in document.remarks)]
    blocks = [_series_section(trend, metric, last) for trend in document.series]
    return sections_to_text([[Paragraph(head, whole=True)], *blocks, *([ends] if ends else [])])


def _series_section(trend: Trend, metric: Metric, last: int) -> Section:
    series = trend.series
    hidden = max(0, len(series.points) - last) if last else 0
    more = f"... {count_text(hidden, 'earlier point', 'earlier points')}; --last=0 lists all"
    rows = (_terminal_row(trend, point, metric) for point in series.points[hidden:])
    contents: list[Content] = [
        Paragraph(more, indent=2) if hidden else None,
        make_table(rows, whole=True, missing="", has_head=False, indent=2),
    ]
    for point in series.empty:
        error = point.runs[0].error[:120]
        runs = count_text(len(point.runs), "run", "runs")
        text = f"no value: {point.short_title}, {runs}{': ' if error else ''}{error}"
        contents.append(Paragraph(text, indent=2, whole=True))
    for step in trend.steps:
        contents.append(
            Paragraph(
                f"{_change_sign(step)} {level_change_text(step, metric)}", indent=2, hanging=4
            )
        )
        if facts := changed_facts_text(step):
            contents.append(Paragraph(f"changed there too: {facts}", indent=4, hanging=6))
    if summary := no_change_and_noise_text(trend, metric):
        contents.append(Paragraph(f"= {summary}", indent=2, hanging=4))
    return Section.from_contents("", f"{series.configuration} on {series.machine}", contents)


def _terminal_row(trend: Trend, point: SeriesPoint, metric: Metric) -> Row:
    cells = point_row(trend, point, metric)
    failed = f", {point.failed} failed" if point.failed else ""
    return {
        **{
            title: cells[title] for title in ("started (UTC)", "point", _median_of(metric), "range")
        },
        "processes": f"n={item_count(point.values)}{failed}",
        "mark": cells["mark"],
    }


def point_row(trend: Trend, point: SeriesPoint, metric: Metric, commit_url: str = "") -> Row:
    """Returns the table row of a point of a time series: name, value, range, number of processes
    and so on. For `commit_url`, see `linked_name_cell`.
    """
    value, *ends = (
        metric.value_text(statistic(point.values) if point.values else None, unit=False)
        for statistic in (median, min, max)
    )
    mark = _point_mark(trend, point, metric)
    return {
        "configuration": trend.series.configuration,
        "point": linked_name_cell(point, commit_url),
        _median_of(metric): numeric_cell(point.value if point.values else None, value),
        "mark": TableCell(mark, tone=_TONES.get(mark[:1], "")),
        "started (UTC)": TableCell(time_text(point), kinds="steady"),
        "range": TableCell(" to ".join(ends) if point.values[1:] else "", kinds="number"),
        "processes": numeric_cell(item_count(point.values), integer),
        "failed": numeric_cell(point.failed or None, integer),
        "error": TableCell(point.runs[0].error if point.failed else "", kinds="prose"),
        "machine": trend.series.machine,
    }


def _median_of(metric: Metric) -> str:
    return f"median {metric.title}"


_TONES = {"-": "bad", "+": "good", "?": "unsure"}


def _point_mark(trend: Trend, point: SeriesPoint, metric: Metric) -> str:
    """Returns text that marks a point in a table, such as "- step -5.1 %", if a new level begins at
    the point or the point is an outlier; otherwise "".
    """
    marks = [
        f"{_change_sign(step)} {'trend' if step.is_trend else 'step'} "
        f"{metric.change_text(step.change)}"
        for step in trend.steps
        if step.first_bad is point
    ]
    marks += [
        f"? outlier {metric.change_text(outlier.change)}"
        for outlier in trend.outliers
        if trend.series.points[outlier.index] is point
    ]
    return ", ".join(marks)


def linked_name_cell(point: SeriesPoint, commit_url: str) -> TableCell:
    """Returns a table cell with the name of a point, which links to the commit (see
    `commit_link`).
    """
    link = commit_link(point, commit_url)
    return TableCell(point.short_title, link=link, kinds="code steady")


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


def time_text(point: SeriesPoint) -> str:
    """Returns text with the start time of a point's first run: "2026-01-31 12:00"."""
    return point.started.strftime("%Y-%m-%d %H:%M")


def level_change_text(step: LevelChange, metric: Metric) -> str:
    """Returns a sentence about a level change: whether it is a regression or a gain, its size, the
    levels before and after, and the points between which the level changed.
    """
    kind, *ends = (
        ("worse", "last good", "first bad")
        if step.worse
        else ("better", "last without", "first with")
    )
    change = metric.change_text(step.change)
    before = metric.value_text(step.before.value, unit=False)
    levels = f"levels {before} -> {metric.value_text(step.after.value)}"
    text = f"{kind}: {change} ({levels}); "
    if step.is_trend:
        text += f"a trend from {step.earliest.short_title} to {step.latest.short_title}"
    else:
        text += f"{ends[0]} {step.last_good.short_title}, {ends[1]} {step.first_bad.short_title}"
        if step.earliest is not step.latest:
            text += f" (95 %: between {step.range_start.short_title} and {step.latest.short_title})"
    text += undone_text(step)
    if step.slow is None:
        return text
    return f"{text}; {'then' if step.worse else 'before'} {step.slow.text}"


def undone_text(step: LevelChange) -> str:
    """Returns text that says where a change was undone, such as "; undone at 1a2b3c4"; "" if the
    change was not undone.
    """
    if step.stands:
        return ""
    return f"; undone at {step.undone.short_title}" if step.undone else "; undone since"


def series_names_text(named_trends: Sequence[Trend], all_trends: Sequence[Trend]) -> str:
    """Returns text that names some of the time series: the only name, "all 5 series", or "3 of 5
    series (a; b; c)".
    """
    names = [trend.series.configuration for trend in named_trends]
    if len(named_trends) == 1:
        return names[0]
    if len(named_trends) < len(all_trends):
        return f"{len(named_trends)} of {len(all_trends)} series ({first_few(names, _MOST_SERIES)})"
    return "both series" if len(named_trends) == 2 else f"all {len(named_trends)} series"


def change_range_text(shared: SharedStep | SharedOutlier, metric: Metric) -> str:
    """Returns text with the smallest and the largest change in a group of level changes or
    outliers; a single number if they are equal.
    """
    ends = shared.smallest, shared.largest
    texts = {metric.change_text(end) for end in ends}
    return texts.pop() if len(texts) == 1 else metric.range_text(*ends)


def shared_level_change_text(shared: SharedStep, document: HistoryDocument) -> str:
    """Returns a sentence about level changes that one commit caused in one or more time series,
    with the names of the time series.
    """
    (trend, step), *others = shared.steps
    if not others:
        return f"{trend.series.configuration}: {level_change_text(step, document.metric)}"
    who = series_names_text([trend for trend, _ in shared.steps], document.series)
    text = f"{'worse' if step.worse else 'better'} in {who} at {shared.first_bad.short_title}: "
    text += change_range_text(shared, document.metric)
    last = {change.last_good.short_title for _, change in shared.steps}
    if len(last) == 1:
        text += f"; {'last good' if step.worse else 'last without'} {last.pop()}"
    return text + undone_text(step)


def _change_sign(step: LevelChange) -> str:
    return "-" if step.worse else "+"


def changed_facts_text(step: LevelChange) -> str:
    """Returns text about recorded properties, such as the TensorFlow version, that changed together
    with a level; "" if none changed.
    """
    shown = [
        f"{fact.fact} {readable_fact(fact.fact, fact.before)} "
        f"-> {readable_fact(fact.fact, fact.after)}"
        for fact in step.facts[:_MOST_FACTS]
    ]
    more = len(step.facts) - _MOST_FACTS
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def no_change_and_noise_text(trend: Trend, metric: Metric) -> str:
    """Returns text that says why a time series has no level changes, and which noise could hide or
    imitate level changes; "" if there is nothing to say.
    """
    parts = []
    if not trend.enough:
        points = count_text(trend.series.points, "point", "points")
        parts = [points, f"steps are looked for from {MIN_SERIES} on"]
    elif not trend.steps:
        parts = ["no step"]
    parts += noise_texts(trend, metric)
    if trend.series.before:
        parts.append(f"another network before: {trend.series.before}, not compared")
    return "; ".join(parts)


def noise_texts(trend: Trend, metric: Metric) -> list[str]:
    """Returns texts about recognized kinds of noise in a time series. Because of such noise, a
    level change is found only after more points are measured.
    """
    texts = []
    states = trend.noise.states
    if states and states.kind == TWO_MACHINES:
        texts.append(
            f"two machines: {metric.change_text(states.change)} on {', '.join(states.hosts)} "
            f"({states.runs} of {states.total} runs); a step of about this size needs more points"
        )
    elif states:
        texts.append(
            f"noise of two states: {metric.change_text(states.change)} in {states.runs} of "
            f"{states.total} runs, alternating; a step of about this size needs more points"
        )
    if correlation := trend.noise.correlation:
        texts.append(
            f"neighbouring points are correlated ({correlation:.1f}): a step needs more points, "
            "and its place is less certain"
        )
    return texts


def other_metric_remarks(trends: Sequence[Trend], other: Metric) -> list[str]:
    """Returns sentences about the level changes of another metric, for a history whose own metric
    has none. `trends` are the time series of the other metric.
    """
    return [
        f"{trend.series.configuration}: only {other.name} has a step: "
        f"{level_change_text(step, other)}; --metric={other.name} shows it."
        for trend in trends
        for step in trend.steps
        if step.stands
    ]


def accepted_commit_remarks(trends: Sequence[Trend], rules: Rules) -> list[str]:
    """Returns a sentence about accepted commits that neither the time series nor the repository of
    the current folder contains; [] if there are none.
    """
    measured = {point.runs[0].commit for trend in trends for point in trend.series.points}
    text = rules.unknown_commits_text(measured)
    return [f"{text}."] if text else []


def history_remarks(
    trends: Sequence[Trend], metric: Metric, commits: CommitGraph | None
) -> list[str]:
    """Returns sentences about the machines, imported measurements and commits of all time series.
    `commits` is None without --git.
    """
    machines: dict[str, set[str]] = {}
    names: dict[str, None] = {}
    for trend in trends:
        for point in trend.series.points:
            machines.setdefault(trend.series.machine, set()).add(point.name)
            names |= {point.runs[0].commit: None} if point.runs[0].commit else {}
    texts = []
    if len(machines) > 1:
        shares = [
            f"{count_text(len(at), 'point', 'points')} on {name}" for name, at in machines.items()
        ]
        listed = first_few(shares, _MOST_NAMED)
        texts.append(f"{len(machines)} machines are not compared with each other: {listed}.")
    flags = [
        run.configuration.flags
        for trend in trends
        for point in trend.series.points
        for run in point.runs
    ]
    programs = [of.get(IMPORTED) for of in flags]
    unknown = {name for of in flags if IMPORTED in of for name in of if of[name] is None}
    if imported := imported_measurements_note(programs, unknown):
        texts.append(imported)
    if commits is None:
        return texts
    for shared in group_level_changes_by_commit(trends):
        texts += _merge_or_branch_sentences(*shared.steps[0], metric, commits)
    return [*texts, *commits.remarks_on_measured_commits([*names])]


def _merge_or_branch_sentences(
    trend: Trend, step: LevelChange, metric: Metric, commits: CommitGraph
) -> Iterator[str]:
    """Yields a sentence if a level change is at a merge commit or between two branches. For a
    merge, the sentence contains the values that were measured on the merged branches.
    """
    before, after = step.last_good.runs[0].commit, step.first_bad.runs[0].commit
    last = []
    for parent in commits.parents(after):
        within = [
            p
            for p in trend.series.points
            if commits.is_same_or_descendant(parent, p.runs[0].commit)
        ]
        last += [max(within, key=lambda p: commits.places[p.runs[0].commit])] if within else []
    name = step.first_bad.short_title
    if len(last) > 1:
        yield (
            f"{name} is a merge. Before it, its branches had "
            f"{' and '.join(f'{metric.value_text(p.value)} at {p.short_title}' for p in last)} "
            f"({trend.series.configuration})."
        )
    elif commits.is_same_or_descendant(after, before) is False:
        yield (
            f"{name} does not contain {step.last_good.short_title}, the point before it: the step "
            "is a difference between two branches."
        )


_COLUMNS = (
    *("configuration", "machine", "point", "commit", "started_at", "metric", "unit", "value"),
    *("low", "high", "processes", "failed", "level", "step", "change", "worse", "stands"),
    *("side", "repository", "dirty", "tensorflow_version", "outlier", "kind"),
)


def csv_text(document: HistoryDocument) -> str:
    """Returns a history as CSV, with a header and one row for each point. Cells that would be
    formulas in a spreadsheet are escaped.
    """
    return tables.csv_text(_COLUMNS, (row.values() for row in csv_rows(document)))


def csv_rows(document: HistoryDocument) -> Iterator[dict[str, object]]:
    """Yields the values of each point of a history by column of the CSV file. Times are in UTC."""
    for trend in document.series:
        for values in _series_rows(trend, document.metric):
            yield dict(zip(_COLUMNS, values, strict=True))


def _series_rows(trend: Trend, metric: Metric) -> Iterator[tuple[object, ...]]:
    steps = {step.index: step for step in trend.steps}
    outliers = {outlier.index: outlier for outlier in trend.outliers}
    for index, point in enumerate(trend.series.points):
        step = steps.get(index)
        yield (
            trend.series.configuration,
            trend.series.machine,
            point.title,
            point.runs[0].commit,
            point.started,
            metric.name,
            metric.unit,
            point.value,
            min(point.values),
            max(point.values),
            item_count(point.values),
            point.failed,
            trend.fitted[index],
            step is not None,
            *(getattr(step, name, None) for name in ("change", "worse", "stands")),
            point.origin.side or None,
            point.origin.repository or None,
            point.origin.dirty,
            point.origin.tensorflow or None,
            index in outliers,
            getattr(step or outliers.get(index), "kind", None),
        )


def exported_metrics_of_history(document: HistoryDocument) -> list[ExportedMetric]:
    """Returns an `ExportedMetric` for each point of each time series, in order."""
    return [
        ExportedMetric(
            metric=document.metric,
            sample=ValuesByProcess(point.values),
            configuration=point.runs[0].configuration,
            origin=point.origin,
            started=point.started,
            point=point.name,
            labels=shared_labels(run.labels for run in point.runs),
            current=point.newest,
        )
        for trend in document.series
        for point in trend.series.points
    ]


DOCUMENTS = {".html": "html", ".md": "markdown"}
"""Maps the suffix of a file to the format of the page. Files with other suffixes are pictures."""

SUFFIXES = (*DOCUMENTS, *PICTURES)
_MOST_DRAWN, _MOST_DRAWN_POINTS, _MOST_LISTED = 12, 1000, 1000
"""Maximum numbers of charts in a page, of marks in all charts together, and of rows in the table of
points.
"""

_OPEN = {
    "regression": ("regression has not been undone", "regressions have not been undone"),
    "gain": ("gain has not been undone", "gains have not been undone"),
}
"""Words that follow a number of steps, in the singular and in the plural."""

_TICKS = 6
_DIGITS = 7
_MOST_NAMED = 5
_LEAST_SPAN = 0.1
"""Minimum length of the value axis, as a share of the values, so that small noise does not fill the
chart.
"""


def render(
    path: str, document: HistoryDocument, commit_url: str = "", progress: ProgressLine | None = None
) -> bytes:
    """Returns the content of a page or picture of a history. The suffix of `path` determines the
    format.
    """
    suffix = Path(path).suffix.lower()
    if suffix in DOCUMENTS:
        text = render_report(build_page(document, commit_url), DOCUMENTS[suffix], progress)
        return text.encode("utf-8", "backslashreplace")
    charts = _series_charts(document.series, document.metric)
    return draw.render_chart_file(charts, suffix.lstrip("."), f"history of {document.metric.name}")


def build_page(document: HistoryDocument, commit_url: str = "") -> Report:
    """Returns the page of a history: its level changes, then a chart for each time series, then a
    table of all points.

    The names of commits link to `commit_url`, in which {commit} is replaced. If it is "", there are
    no links.
    """
    trends, metric = document.series, document.metric
    valued = [(trend, point) for trend in trends for point in trend.series.points]
    points = [*valued, *((trend, point) for trend in trends for point in trend.series.empty)]
    by_time = sorted(range(len(points)), key=lambda place: points[place][1].started)
    newest = [points[place] for place in sorted(by_time[-_MOST_LISTED:], reverse=True)]
    listed = f"The newest {integer(_MOST_LISTED)} of {integer(len(points))} are listed; "
    return Report(
        title=f"History of {metric.name}{_period_text(trends)}",
        subtitle=f"Measured with cnnbench; page of version {__version__}",
        answers=history_answers(document),
        highlights=(
            ("series", count_text(trends, "configuration", "configurations and machines")),
            ("points", integer(sum(item_count(trend.series.points) for trend in trends))),
        ),
        sections=(
            Section.from_contents("steps", "Steps", _level_changes_contents(document, commit_url)),
            Section.from_contents("series", "Series", _series_contents(trends, metric, commit_url)),
            Section.from_contents(
                "points",
                "Points",
                [
                    f"{listed}--format=csv writes all." if len(points) > _MOST_LISTED else None,
                    make_table(point_row(*pair, metric, commit_url) for pair in newest),
                ],
                folded=True,
            ),
        ),
    )


def history_answers(document: HistoryDocument) -> tuple[Answer, ...]:
    """Returns the answers at the top of a page: about regressions that have not been undone and, if
    there are any, about outliers.
    """
    return (_regressions_answer(document), *_outlier_answers(document))


def history_section(document: HistoryDocument, commit_url: str = "") -> Section:
    """Returns the section of a report about records of several commits: level changes, remarks, and
    a chart for each time series. For `commit_url`, see `linked_name_cell`.
    """
    name = document.metric.name
    contents = [
        *_level_changes_contents(document, commit_url),
        *_series_contents(document.series, document.metric, commit_url),
    ]
    return Section.from_contents(f"commits_{name}", f"Over commits: {name}", contents)


def _series_contents(trends: Sequence[Trend], metric: Metric, commit_url: str) -> list[Content]:
    drawn = _trends_to_draw(trends)
    which = (
        f"The charts show {len(drawn)} of {integer(len(trends))} series: those with steps, and the "
    )
    charts = _series_charts(drawn, metric, commit_url, _MOST_DRAWN_POINTS)
    return [f"{which}newest." if len(drawn) < len(trends) else None, charts]


def _period_text(trends: Sequence[Trend]) -> str:
    days = sorted(f"{point.started:%Y-%m-%d}" for trend in trends for point in trend.series.points)
    ends = " to ".join(dict.fromkeys((*days[:1], *days[-1:])))
    return f", {ends}" if ends else ""


def _regressions_answer(document: HistoryDocument) -> Answer:
    """Returns the answer about regressions that have not been undone and, if --fail_on contains
    `faster`, about gains.
    """
    shared = document.shared_steps
    numbers = {
        "regression": document.lasting_regression_indices,
        "gain": document.failing_gain_indices,
    }
    if steps := [shared[place] for places in numbers.values() for place in places]:
        parts = [count_text(places, *_OPEN[kind]) for kind, places in numbers.items() if places]
        texts = [shared_level_change_text(step, document) for step in steps]
        return Answer("Steps", ", ".join(parts), "bad", _shorten_texts(texts))
    if not any(trend.enough for trend in document.series):
        text = f"Too few points: steps are looked for from {MIN_SERIES} on"
        return Answer("Steps", text, "unsure")
    is_undone = any(shared_step.worse for shared_step in shared)
    text = "Every regression was undone" if is_undone else "No regression"
    if document.accepted_regression_indices:
        text = count_text(
            document.accepted_regression_indices,
            "regression is accepted",
            "regressions are accepted",
        )
    texts = [shared_level_change_text(step, document) for step in shared]
    return Answer("Steps", text, "good", _shorten_texts(texts))


def _outlier_answers(document: HistoryDocument) -> list[Answer]:
    texts = []
    for outlier in document.shared_outliers:
        who = series_names_text([document.series[at] for at in outlier.series], document.series)
        change = change_range_text(outlier, document.metric)
        place = f"at {outlier.point.short_title}, {time_text(outlier.point)} UTC"
        texts.append(f"{who}: {change} {place}")
    text = count_text(document.shared_outliers, "outlier", "outliers")
    return [Answer("Outliers", text, "unsure", _shorten_texts(texts))] if texts else []


def _shorten_texts(texts: Sequence[str]) -> tuple[str, ...]:
    more = len(texts) - _MOST_NAMED
    return (*texts[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else []))


def _trends_to_draw(trends: Sequence[Trend]) -> list[Trend]:
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


def _series_charts(
    trends: Sequence[Trend], metric: Metric, commit_url: str = "", most: int | None = None
) -> tuple[LineChart, ...]:
    """Returns a chart for each time series. All charts together have about `most` marks. If `most`
    is None, every point is drawn. For `commit_url`, see `commit_link`.
    """
    there = [trend for trend in trends if trend.series.points]
    share = most and most // len(there)
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
    texts = [level_change_text(step, metric) for step in trend.steps]
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
            ChartEvent(x=step.index - 0.5, label=text, mark=_change_mark(step), gain=not step.worse)
            for step, text in zip(trend.steps, texts, strict=True)
        ),
        note="; ".join(filter(None, (*texts, no_change_and_noise_text(trend, metric)))),
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


def _level_changes_contents(document: HistoryDocument, commit_url: str) -> list[Content]:
    metric = document.metric
    rows = (
        _level_change_row(trend, step, metric, commit_url)
        for trend in document.series
        for step in trend.steps
    )
    few = [trend.series.configuration for trend in document.series if not trend.enough]
    text = f"Too few points for steps: {first_few(few, _MOST_NAMED)}."
    noises = [
        f"{trend.series.configuration}: {noise}"
        for trend in document.series
        for noise in noise_texts(trend, metric)
    ]
    return [
        make_table(rows) or "No step was found.",
        Paragraph(text, "unsure") if few else None,
        *counted_remarks(noises, "remarks on noise", "unsure"),
        *counted_remarks(document.remarks, "remarks"),
    ]


def _change_mark(step: LevelChange) -> str:
    return "- worse" if step.worse else "+ better"


def _level_change_row(trend: Trend, step: LevelChange, metric: Metric, commit_url: str) -> Row:
    first, last = step.earliest, step.latest
    likely = "" if first is last else f"{step.range_start.short_title} and {last.short_title}"
    if step.is_trend:
        likely = f"trend from {first.short_title} to {last.short_title}"
    return {
        "configuration": trend.series.configuration,
        "step": TableCell(_change_mark(step), tone="bad" if step.worse else "good"),
        "change": numeric_cell(step.change, metric.change_text),
        "last before": linked_name_cell(step.last_good, commit_url),
        "first after": linked_name_cell(step.first_bad, commit_url),
        "95 %: between": TableCell(likely, kinds="code steady"),
        "measured (UTC)": TableCell(time_text(step.first_bad), kinds="steady"),
        "since": "stands" if step.stands else undone_text(step).removeprefix("; "),
        "changed there too": TableCell(changed_facts_text(step), kinds="prose"),
        "machine": trend.series.machine,
    }
