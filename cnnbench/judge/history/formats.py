"""The history as text, as CSV and as figures for other programs; only CSV imports pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cnnbench.base.text.escape import plain, spreadsheet
from cnnbench.base.text.numbers import count
from cnnbench.base.text.table import fitted, wrapped
from cnnbench.judge.history.series import SeriesPoint
from cnnbench.judge.history.steps import MIN_SERIES, LevelChange, Trend
from cnnbench.judge.metrics.measurement import Origin, readable_fact, titles
from cnnbench.judge.metrics.registry import Metric
from cnnbench.judge.report.figures import Figure, shared_labels
from cnnbench.judge.report.results import ProcessValues

_MOST_FACTS = 4


def table_text(trends: Sequence[Trend], metric: Metric, last: int = 0) -> str:
    """A block per series with the last points (0: all) and the steps between them."""
    direction = "higher" if metric.higher_is_better else "lower"
    lines = [f"{metric.title}; {direction} is better"]
    for found in trends:
        lines += ["", *_block(found, metric, last)]
    return "\n".join(lines) + "\n"


def _block(found: Trend, metric: Metric, last: int) -> list[str]:
    series = found.series
    lines = [f"{plain(series.configuration)} on {plain(series.machine)}"]
    hidden = max(0, len(series.points) - last) if last else 0
    if hidden:
        points = count(hidden, "earlier point", "earlier points")
        lines.append(f"  ... {points}; --last=0 lists all")
    rows = [
        _row(point, metric, mark_text(found, index, metric))
        for index, point in enumerate(series.points)
        if index >= hidden
    ]
    lines += [f"  {line}" for line in fitted(rows, (0, 1, 4, 5), indent=2, has_head=False)]
    for point in series.empty:
        error = plain(point.runs[0].error)[:120]
        runs = count(len(point.runs), "run", "runs")
        lines.append(f"  no value: {plain(point.short)}, {runs}{': ' if error else ''}{error}")
    for step in found.steps:
        sign = "-" if step.worse else "+"
        lines += wrapped(f"{sign} {plain(step_text(step, metric))}", "  ", "    ")
        facts = facts_text(step)
        if facts:
            lines += wrapped(f"changed there too: {plain(facts)}", "    ", "      ")
    summary = outcome(found)
    return [*lines, f"  = {summary}"] if summary else lines


def mark_text(found: Trend, index: int, metric: Metric) -> str:
    """Mark of a point that begins a step or is an outlier; else ""."""
    marks = [
        f"{'-' if step.worse else '+'} step {metric.change_text(step.change)}"
        for step in found.steps
        if step.index == index
    ]
    if index in found.outliers:
        marks.append(f"? outlier {metric.change_text(found.outliers[index])}")
    return ", ".join(marks)


def _row(point: SeriesPoint, metric: Metric, mark: str) -> tuple[str, ...]:
    return (
        time_text(point),
        plain(point.short),
        metric.value_text(point.value, unit=False),
        range_text(point.values, metric),
        f"n={len(point.values)}" + (f", {point.failed} failed" if point.failed else ""),
        mark,
    )


def range_text(values: Sequence[float], metric: Metric) -> str:
    """Smallest to largest value of the processes of a point; "" for a single one."""
    if len(values) < 2:
        return ""
    low, high = (metric.value_text(end, unit=False) for end in (min(values), max(values)))
    return f"{low} to {high}"


def time_text(point: SeriesPoint) -> str:
    """Start of a point's first run."""
    return point.started.strftime("%Y-%m-%d %H:%M")


def step_text(step: LevelChange, metric: Metric) -> str:
    """A step in a sentence."""
    kind, *ends = (
        ("worse", "last good", "first bad")
        if step.worse
        else ("better", "last without", "first with")
    )
    change = metric.change_text(step.change)
    before = metric.value_text(step.before.value, unit=False)
    text = f"{kind}: {change} ({before} -> {metric.value_text(step.after.value)}); "
    text += f"{ends[0]} {step.last_good.short}, {ends[1]} {step.first_bad.short}"
    if step.earliest is not step.latest:
        text += f" (95 %: {step.earliest.short} to {step.latest.short})"
    return text + ("" if step.stands else "; undone since")


def facts_text(step: LevelChange) -> str:
    """Other facts that changed at a step, or ""."""
    shown = [
        f"{one.fact} {readable_fact(one.fact, one.before)} -> {readable_fact(one.fact, one.after)}"
        for one in step.facts[:_MOST_FACTS]
    ]
    more = len(step.facts) - _MOST_FACTS
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def outcome(found: Trend) -> str:
    """The reason why a series has no steps; "" if it has some."""
    if not found.enough:
        points = count(len(found.series.points), "point", "points")
        return f"{points}; steps are looked for from {MIN_SERIES} on"
    return "" if found.steps else "no step"


_COLUMNS = (
    *("configuration", "machine", "point", "commit", "started_at", "metric", "unit", "value"),
    *("low", "high", "processes", "failed", "level", "step", "change", "worse", "stands"),
    *("side", "repository", "dirty", "tensorflow_version", "outlier"),
)


def csv_text(trends: Sequence[Trend], metric: Metric) -> str:
    """CSV with a header and a row per point; no cell is a formula."""
    import pandas

    rows = [row for found in trends for row in _rows(found, metric)]
    frame = pandas.DataFrame(rows, columns=list(_COLUMNS))
    frame = frame.map(lambda cell: spreadsheet(cell) if isinstance(cell, str) else cell)
    return str(frame.to_csv(index=False, lineterminator="\n"))


def _rows(found: Trend, metric: Metric) -> list[dict[str, Any]]:
    steps = {step.index: step for step in found.steps}
    rows = []
    for index, point in enumerate(found.series.points):
        step = steps.get(index)
        level = next(one for one in found.levels if one.start <= index < one.stop)
        rows.append(
            {
                "configuration": found.series.configuration,
                "machine": found.series.machine,
                "point": point.title,
                "commit": point.runs[0].commit,
                "started_at": point.started.isoformat(),
                "metric": metric.name,
                "unit": metric.unit,
                "value": point.value,
                "low": min(point.values),
                "high": max(point.values),
                "processes": len(point.values),
                "failed": point.failed,
                "level": level.value,
                "step": step is not None,
                **{n: getattr(step, n, None) for n in ("change", "worse", "stands")},
                "side": point.origin.side or None,
                "repository": point.origin.repository or None,
                "dirty": point.origin.dirty,
                "tensorflow_version": point.origin.tensorflow or None,
                "outlier": index in found.outliers,
            }
        )
    return rows


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
