"""The history as a JSON document, schema 1; described in docs/history.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from cnnbench.judge.history.series import SeriesPoint
from cnnbench.judge.history.steps import ChangedFact, LevelChange, SeriesLevel, Trend
from cnnbench.judge.metrics.registry import Metric
from cnnbench.records.codec import ABSENT, TIME, Document
from cnnbench.records.load import SkippedFile
from cnnbench.records.subject import Subject


@dataclass(frozen=True, kw_only=True)
class PointDocument:
    """The runs of one commit, day or label with the same side, code, TensorFlow and machine.

    Attributes:
      name: name, unique in its series.
      commit: commit; None if unknown.
      started_at: start of the first run, ISO 8601.
      value: median over the processes; None if no process has a value.
      values: values, one per process.
      failed: number of processes that did not succeed.
      labels: labels of the first run, of --result_label.
      hostnames: names of the hosts, sorted.
      run_ids: run_ids of all processes.
      subject: subject of the first run's record; absent if it has none.
    """

    name: str
    commit: str | None
    started_at: str = field(metadata=TIME)
    value: float | None
    values: tuple[float, ...]
    failed: int
    labels: Mapping[str, str]
    hostnames: tuple[str, ...]
    run_ids: tuple[str, ...]
    subject: Subject | None = field(metadata=ABSENT)


@dataclass(frozen=True, kw_only=True)
class StepDocument:
    """A change of level.

    Attributes:
      index: index in `points` of the first point of the new level.
      change: change as a share of the level before, or a difference if the metric is not relative.
      before, after: values of the levels.
      worse: whether the change is for the worse.
      stands: whether the change persists in the last level.
      last_good, first_bad: names of the last point before and the first point after the change,
        also if it is for the better.
      earliest, latest: points between which the new level begins with 95 % probability.
      facts: other facts that changed between these two points.
    """

    index: int
    change: float
    before: float
    after: float
    worse: bool
    stands: bool
    last_good: str
    first_bad: str
    earliest: str
    latest: str
    facts: tuple[ChangedFact, ...]


@dataclass(frozen=True, kw_only=True)
class OutlierDocument:
    """A point far from its level.

    Attributes:
      index: index in `points`.
      change: difference from its level, in the unit of a step's change.
    """

    index: int
    change: float


@dataclass(frozen=True, kw_only=True)
class SeriesDocument:
    """One configuration on one machine.

    Attributes:
      configuration: name of the configuration.
      key: hash of its flags.
      machine: name of the machine.
      points: points with a value, in order.
      without_value: points without a successful run.
      enough_points: whether there are enough points to look for steps.
      levels: levels in order.
      steps: steps between levels.
      outliers: points far from their level.
    """

    configuration: str
    key: str
    machine: str
    points: tuple[PointDocument, ...]
    without_value: tuple[PointDocument, ...]
    enough_points: bool
    levels: tuple[SeriesLevel, ...]
    steps: tuple[StepDocument, ...]
    outliers: tuple[OutlierDocument, ...]


@dataclass(frozen=True, kw_only=True)
class HistoryDocument(Document):
    """What ``cnnbench history`` found, schema 1.

    Attributes:
      metric: name of the metric.
      unit: unit of its values.
      higher_is_better: whether higher values are better.
      relative: whether changes are shares of the level before; otherwise they are differences.
      series: series, each of one configuration on one machine.
      skipped: files that gave no record.
    """

    kind: ClassVar[str] = "history"
    schema: ClassVar[int] = 1

    metric: str
    unit: str
    higher_is_better: bool
    relative: bool
    series: tuple[SeriesDocument, ...]
    skipped: tuple[SkippedFile, ...]


def json_text(trends: Sequence[Trend], metric: Metric, skipped: Sequence[SkippedFile] = ()) -> str:
    """The document, indented."""
    document = HistoryDocument(
        metric=metric.name,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        relative=metric.relative,
        series=tuple(map(_series, trends)),
        skipped=tuple(skipped),
    )
    return json.dumps(document.to_dict(), indent=1, allow_nan=False) + "\n"


def _series(found: Trend) -> SeriesDocument:
    series = found.series
    return SeriesDocument(
        configuration=series.configuration,
        key=series.key,
        machine=series.machine,
        points=tuple(map(_point, series.points)),
        without_value=tuple(map(_point, series.empty)),
        enough_points=found.enough,
        levels=found.levels,
        steps=tuple(map(_step, found.steps)),
        outliers=tuple(
            OutlierDocument(index=index, change=change) for index, change in found.outliers.items()
        ),
    )


def _point(point: SeriesPoint) -> PointDocument:
    first = point.runs[0]
    return PointDocument(
        name=point.title,
        commit=first.commit or None,
        started_at=point.started.isoformat(),
        value=point.value if point.values else None,
        values=point.values,
        failed=point.failed,
        labels=first.labels,
        hostnames=tuple(sorted({run.hostname for run in point.runs if run.hostname})),
        run_ids=tuple(run.run_id for run in point.runs),
        subject=first.subject,
    )


def _step(step: LevelChange) -> StepDocument:
    ends = ("last_good", "first_bad", "earliest", "latest")
    points = {name: getattr(step, name).title for name in ends}
    levels = {"before": step.before.value, "after": step.after.value}
    return StepDocument(**{**vars(step), **points, **levels})
