"""The document of a history, its CSV file, and its values for other programs.

`blocks` turns it into text, tables and charts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from cnnbench.base import terminal as tables
from cnnbench.base.notebook import Displayed, short_repr
from cnnbench.base.stats import ValuesByProcess
from cnnbench.base.text import count_text, item_count
from cnnbench.judge.history.steps import (
    LevelChange,
    SharedOutlier,
    SharedStep,
    Trend,
    group_level_changes_by_commit,
    group_outliers_by_point,
)
from cnnbench.judge.metrics.rules import Rules
from cnnbench.judge.report.exports import ExportedMetric, shared_labels
from cnnbench.records.codec import NOT_EMPTY, Document, JsonKeys, Key
from cnnbench.records.documents import json_document
from cnnbench.records.metric import Metric
from cnnbench.records.result_files import SkippedFile


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
