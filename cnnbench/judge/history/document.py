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
    """The runs of one commit, day or label that are of one origin.

    Attributes:
      name: unique in its series.
      commit: None where it is unknown.
      started_at: of the first run, ISO 8601.
      value: the median of its processes; None where none has a value.
      values: one per process.
      failed: number of processes that did not succeed.
      labels: of --result_label, of the first run.
      hostnames: in order.
      run_ids: of all processes.
      subject: what the first run says it measured; absent if it does not.
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
      index: of the first point of the new level.
      change: as a share of the level before, or a difference where the metric is not relative.
      before, after: the levels.
      worse: for the worse.
      stands: whether the change persists in the last level.
      last_good, first_bad: names of the points before and after it, also of one for the better.
      earliest, latest: the new level begins between these points with 95 % probability.
      facts: what else changed there.
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
      index: of the point.
      change: against its level, as a step's.
    """

    index: int
    change: float


@dataclass(frozen=True, kw_only=True)
class SeriesDocument:
    """One configuration on one machine.

    Attributes:
      configuration: its name.
      key: a hash of its flags.
      machine: its name.
      points: those with a value, in order.
      without_value: those without a successful run.
      enough_points: whether steps were looked for.
      levels: of the points, in order.
      steps: between levels.
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
      metric: what was followed.
      unit: of its values.
      higher_is_better: direction.
      relative: changes are shares of the level before.
      series: a configuration on a machine each.
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
