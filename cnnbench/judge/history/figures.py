"""Points of a history for export to other programs."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.judge.history.series import SeriesPoint
from cnnbench.judge.history.steps import Trend
from cnnbench.judge.metrics.origin import Origin, titles
from cnnbench.judge.metrics.registry import Metric
from cnnbench.judge.report.exports.figures import Figure, shared_labels
from cnnbench.judge.report.results import ProcessValues


def figures(trends: Sequence[Trend], metric: Metric) -> list[Figure]:
    """A figure for each point of each series, in their order."""
    found = [(one.series, point) for one in trends for point in one.series.points]
    alike: dict[tuple[object, ...], list[Origin]] = {}
    for series, point in found:
        alike.setdefault((series, _revision(point)), []).append(point.origin)
    details = {key: titles(origins, without=("machine",)) for key, origins in alike.items()}
    return [
        Figure(
            metric=metric,
            sample=ProcessValues(point.values),
            configuration=series.configuration,
            key=series.key,
            flags=point.runs[0].configuration.not_default(),
            origin=point.origin,
            machine=series.machine,
            started=point.started,
            point=point.name,
            detail=details[series, _revision(point)][point.origin],
            labels=shared_labels(run.labels for run in point.runs),
            current=point.newest,
        )
        for series, point in found
    ]


def _revision(point: SeriesPoint) -> tuple[object, ...]:
    origin = point.origin
    return (origin.repository, origin.revision, origin.dirty)
