"""The document of a history, its CSV file, and its values for other programs.

`blocks` turns it into text, tables and charts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from cnnbench.base import tables
from cnnbench.base.notebook import Displayed, short_repr
from cnnbench.base.stats import ValuesByProcess
from cnnbench.base.text import count_text
from cnnbench.judge.history.phrases import (
    accepted_commit_remarks,
    history_remarks,
    other_metric_remarks,
)
from cnnbench.judge.history.series import TimeSeries
from cnnbench.judge.history.steps import (
    LevelChange,
    SharedOutlier,
    SharedStep,
    Trend,
    shared_outliers,
    shared_steps,
)
from cnnbench.judge.history.steps import trend as find_trend
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT
from cnnbench.judge.metrics.rules import Rules
from cnnbench.judge.report.exports import ExportedMetric, shared_labels
from cnnbench.machine.repository import CommitGraph
from cnnbench.records.codec import NOT_EMPTY, Document, JsonKeys, Key, json_document
from cnnbench.records.load import SkippedFile
from cnnbench.records.metric import Metric


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
        "regressions",
        Key("accepted", rules=NOT_EMPTY),
        "shared_outliers",
    )

    metric: Metric
    series: Sequence[Trend]
    remarks: Sequence[str] = ()
    skipped: Sequence[SkippedFile] = ()
    fail_on: tuple[str, ...] = field(default=(), metadata=NOT_EMPTY)
    rules: Rules = field(default_factory=Rules)

    def __repr__(self) -> str:
        points = sum(len(trend.series.points) for trend in self.series)
        counts = (
            count_text(self.series, "series", "series"),
            count_text(points, "point", "points"),
            count_text(self.shared_steps, "step", "steps"),
        )
        return short_repr(self, f"{self.metric.name}, {', '.join(counts)}")

    @cached_property
    def shared_steps(self) -> tuple[SharedStep, ...]:
        """The level changes of all time series, grouped by the commit that caused them."""
        return tuple(shared_steps(self.series))

    @cached_property
    def regressions(self) -> tuple[int, ...]:
        """Indices in `shared_steps` of regressions that are neither undone nor accepted."""
        return tuple(at for at in self._lasting_indices(worse=True) if at not in self.accepted)

    @cached_property
    def accepted(self) -> tuple[int, ...]:
        """Indices in `shared_steps` of regressions that rules accept in all their series."""
        lasting = self._lasting_indices(worse=True) if self.rules.accepts else ()
        return tuple(
            place
            for place in lasting
            if all(self._is_accepted(*pair) for pair in self.shared_steps[place].steps)
        )

    def _is_accepted(self, trend: Trend, step: LevelChange) -> bool:
        ends = (step.last_good.name,), (step.first_bad.name,)
        acceptance = self.rules.acceptance_between(
            trend.series.configuration, self.metric, "slower", *ends
        )
        return acceptance is not None and not acceptance.has_ended

    @property
    def gains(self) -> tuple[int, ...]:
        """Indices in `shared_steps` of lasting gains if --fail_on contains `faster`, or ()."""
        return self._lasting_indices(worse=False) if "faster" in self.fail_on else ()

    @property
    def failed_on(self) -> tuple[str, ...]:
        """The words of --fail_on for which a regression (or gain) sets exit code 1."""
        failing = {"faster": self.gains}
        return tuple(word for word in self.fail_on if failing.get(word, self.regressions))

    def _lasting_indices(self, worse: bool) -> tuple[int, ...]:
        shared = enumerate(self.shared_steps)
        return tuple(place for place, step in shared if step.stands and step.worse is worse)

    @cached_property
    def shared_outliers(self) -> tuple[SharedOutlier, ...]:
        """The outliers of all time series, grouped by point; some groups contain only one."""
        return tuple(shared_outliers(self.series))


def make_history(
    series: Iterable[TimeSeries],
    metric: Metric,
    rules: Rules,
    commits: CommitGraph | None,
    *,
    threshold: float | None = None,
    **parts: Any,
) -> HistoryDocument:
    """Finds the level changes of a metric, and returns them with remarks. If the throughput has no
    level changes, remarks name those of the CPU time, which load does not hide.

    Args:
      commits: the commits of the measured repository; None if they are unknown.
      threshold: value of --threshold; None to use the thresholds of the rules and of the metric.
      parts: other attributes of the document.
    """

    def trends_of(series: Iterable[TimeSeries], metric: Metric) -> tuple[Trend, ...]:
        given = None if threshold is None else threshold * metric.threshold_scale
        limits = ((one, rules.threshold(one.configuration, metric)) for one in series)
        return tuple(
            find_trend(one, metric, limit if given is None else given) for one, limit in limits
        )

    trends = trends_of(series, metric)
    remarks = history_remarks(trends, metric, commits)
    if metric is THROUGHPUT and not any(found.steps for found in trends):
        hidden = trends_of((found.series.of_metric(CPU_TIME) for found in trends), CPU_TIME)
        remarks += other_metric_remarks(hidden, CPU_TIME)
    remarks += accepted_commit_remarks(trends, rules)
    return HistoryDocument(metric, trends, remarks, rules=rules, **parts)


_COLUMNS = (
    "configuration machine point commit started_at metric unit value low high processes failed "
    "level step change worse stands side repository dirty tensorflow_version outlier kind"
)


def csv_text(document: HistoryDocument) -> str:
    """Returns a history as CSV, with a header and one row for each point. Cells that would be
    formulas in a spreadsheet are escaped.
    """
    return tables.csv_text(_COLUMNS.split(), (row.values() for row in csv_rows(document)))


def csv_rows(document: HistoryDocument) -> Iterator[dict[str, object]]:
    """Yields the values of each point of a history by column of the CSV file. Times are in UTC."""
    columns = _COLUMNS.split()
    for trend in document.series:
        steps = {step.index: step for step in trend.steps}
        outliers = {outlier.index: outlier for outlier in trend.outliers}
        for index, point in enumerate(trend.series.points):
            step = steps.get(index)
            values = (
                trend.series.configuration,
                trend.series.machine,
                point.title,
                point.runs[0].commit,
                point.started,
                document.metric.name,
                document.metric.unit,
                point.value,
                min(point.values),
                max(point.values),
                len(point.values),
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
            yield dict(zip(columns, values, strict=True))


def history_metrics(document: HistoryDocument) -> list[ExportedMetric]:
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
