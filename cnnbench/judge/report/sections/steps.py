"""Step times: in order, and their distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from cnnbench.base.charts import LOWER, Axis, ChartSeries, DistributionRow, Lines, Rows
from cnnbench.base.document import Charts, Content, Row, numeric, table
from cnnbench.base.stats.descriptive import FEWEST_FOR_P99, median
from cnnbench.base.text.numbers import integer, number, percent
from cnnbench.judge.report.results import Configured, ReportSubject, newest, time_text
from cnnbench.records.run import RunRecord

_SHOWN = 8
"""Most processes in a chart."""

_DRAWN = 8
"""Most configurations with a pair of charts."""

_POINTS = 160
"""Most points of a curve; longer series are drawn as medians and maxima of parts."""

_HEADROOM = 1.6
"""The axis ends at this multiple of the 95th percentile."""


def steps(results: ReportSubject) -> Iterable[Content]:
    """Series and distributions, a pair of charts per configuration."""
    timed = [one for one in results.configured if any(r.step_seconds for r in one.good)]
    if timed:
        yield (
            "Wall time of every step: on the left in order, warm-up on grey ground; on the right "
            "the timed steps of each process: the box holds the middle half, the stroke is the "
            "median, whiskers reach from the 1st to the 99th percentile, dots are beyond. Arrows "
            "at an edge are steps beyond the axis."
        )
        drawn = newest(timed, _DRAWN)
        if len(drawn) < len(timed):
            yield f"The charts are of the newest {_DRAWN} of {integer(len(timed))} rows."
        charts = (chart for one in drawn for chart in (_series(one), _distribution(one)))
        yield Charts(tuple(charts), pairs=True)
        yield table(map(_row, timed), hints=_HINTS)


def _chosen(one: Configured) -> list[tuple[int, RunRecord]]:
    """Processes to show with their numbers: all, or some at equal distances."""
    timed = [(n, r) for n, r in enumerate(one.good, start=1) if r.step_seconds]
    if len(timed) <= _SHOWN:
        return timed
    return [timed[round(i * (len(timed) - 1) / (_SHOWN - 1))] for i in range(_SHOWN)]


def _limit(records: Sequence[RunRecord]) -> float:
    """End of the axis in milliseconds."""
    return _HEADROOM * 1000 * max(float(np.quantile(r.step_seconds, 0.95)) for r in records)


def _series(one: Configured) -> Lines:
    chosen = _chosen(one)
    warmup = max(len(record.warmup_step_seconds) for _, record in chosen)
    series = []
    for process, record in chosen:
        seconds = (*record.warmup_step_seconds, *record.step_seconds)
        first = 1 - len(record.warmup_step_seconds)
        points = _thinned([(first + i, 1000 * s) for i, s in enumerate(seconds)])
        series.append(
            ChartSeries(
                name=f"process {process}, {time_text(record.started_at)} UTC",
                points=points,
                marks=False,
            )
        )
    shown = len(chosen)
    count = sum(bool(record.step_seconds) for record in one.good)
    return Lines(
        title=f"{one.name}: steps in order",
        x=Axis(label="step; up to 0 warm-up"),
        y=Axis(
            label="step time, ms",
            zero=True,
            better=LOWER,
            limit=_limit([record for _, record in chosen]),
        ),
        series=tuple(series),
        shaded=(-warmup + 0.5, 0.5, "warm-up") if warmup else None,
        note=f"{shown} of {count} processes are shown." if shown < count else "",
    )


def _thinned(points: list[tuple[int, float]]) -> tuple[tuple[float, float], ...]:
    """At most `_POINTS` parts, each with the median and, if it stands out, the maximum."""
    size = math.ceil(len(points) / _POINTS)
    if size == 1:
        return tuple((float(x), y) for x, y in points)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        middle = median(y for _, y in part)
        kept.append((float(part[0][0]), middle))
        x, highest = max(part, key=lambda point: point[1])
        if highest > 1.2 * middle and x > part[0][0]:
            kept.append((float(x), highest))
    return tuple(kept)


def _distribution(one: Configured) -> Rows:
    chosen = _chosen(one)
    limit = _limit([record for _, record in chosen])
    rows = []
    for index, (process, record) in enumerate(chosen):
        times = [1000 * seconds for seconds in record.step_seconds]
        low, first, middle, third, high = np.quantile(times, (0.01, 0.25, 0.5, 0.75, 0.99)).tolist()
        beyond = [value for value in sorted(times) if value < low or value > high]
        hint = f"median {number(middle)} ms, half of the steps between {number(first)} and "
        hint += f"{number(third)} ms"
        rows.append(
            DistributionRow(
                label=f"process {process}",
                values=tuple((value, "") for value in (*beyond[:3], *beyond[3:][-12:])),
                centre=middle,
                low=low,
                high=high,
                box=(first, third),
                hint=f"process {process}: {hint}",
                style=index,
            )
        )
    return Rows(
        title=f"{one.name}: distribution",
        x=Axis(label="time of a timed step, ms", zero=True, better=LOWER, limit=limit),
        rows=tuple(rows),
    )


_HINTS = {
    "within a process": "interquartile range over median",
    "between processes": "from the fastest process to the slowest, over the median",
}


def _row(one: Configured) -> Row:
    """Numbers of the timed steps of all processes."""
    steps = [1000 * seconds for record in one.good for seconds in record.step_seconds]
    middle, high, highest, slowest = np.quantile(steps, (0.5, 0.9, 0.99, 1.0)).tolist()
    return {
        "configuration": one.name,
        "timed steps": numeric(len(steps), integer),
        "median, ms": numeric(middle),
        "90 %, ms": numeric(high),
        # Of fewer steps the 99th percentile would be the slowest one.
        "99 %, ms": numeric(highest if len(steps) >= FEWEST_FOR_P99 else None),
        "slowest, ms": numeric(slowest),
        "within a process": numeric(one.sample(_scatter).median, percent),
        "between processes": numeric(one.sample("step_seconds").spread, percent),
    }


def _scatter(record: RunRecord) -> float | None:
    if not record.step_seconds:
        return None
    first, middle, third = np.quantile(record.step_seconds, (0.25, 0.5, 0.75))
    return float((third - first) / middle)
