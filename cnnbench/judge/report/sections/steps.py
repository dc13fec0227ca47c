"""Step times: in order, and their distribution."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import starmap

import numpy as np

from cnnbench.base.charts import LOWER, Axis, ChartSeries, DistributionRow, Lines, Rows
from cnnbench.base.document import Charts, Content, Row, Text, introduced, numeric, table
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


@introduced
def steps(results: ReportSubject) -> Iterable[Content]:
    """Wall time of every step: on the left in order, warm-up on grey ground; on the right the timed
    steps of each process: the box holds the middle half, the stroke is the median, whiskers reach
    from the 1st to the 99th percentile, dots are beyond. Arrows at an edge are steps beyond the
    axis.
    """
    timed = [one for one in results.configured if any(r.step_seconds for r in one.good)]
    drawn = newest(timed, _DRAWN)
    if len(drawn) < len(timed):
        yield Text(f"The charts are of the newest {_DRAWN} of {integer(len(timed))} rows.")
    charts = (chart for one in drawn for chart in _charts(one))
    yield Charts(tuple(charts), pairs=True) if timed else None
    yield table(map(_row, timed), hints=_HINTS)


def _charts(one: Configured) -> tuple[Lines, Rows]:
    """The steps of all processes, or of some at equal distances, in order and as distributions."""
    timed = [(f"process {n}", run) for n, run in enumerate(one.good, start=1) if run.step_seconds]
    chosen = timed
    if len(timed) > _SHOWN:
        chosen = [timed[round(i * (len(timed) - 1) / (_SHOWN - 1))] for i in range(_SHOWN)]
    warmup = max(len(record.warmup_step_seconds) for _, record in chosen)
    most = max(float(np.quantile(record.step_seconds, 0.95)) for _, record in chosen)
    axis = Axis(label="step time, ms", zero=True, better=LOWER, limit=_HEADROOM * 1000 * most)
    some = len(chosen) < len(timed)
    series = Lines(
        title=f"{one.name}: steps in order",
        x=Axis(label="step; up to 0 warm-up"),
        y=axis,
        series=tuple(starmap(_series, chosen)),
        shaded=(-warmup + 0.5, 0.5, "warm-up") if warmup else None,
        note=f"{len(chosen)} of {len(timed)} processes are shown." if some else "",
    )
    distribution = Rows(
        title=f"{one.name}: distribution",
        x=replace(axis, label="time of a timed step, ms"),
        rows=tuple(_box(*each, style) for style, each in enumerate(chosen)),
    )
    return series, distribution


def _series(name: str, record: RunRecord) -> ChartSeries:
    seconds = (*record.warmup_step_seconds, *record.step_seconds)
    first = 1 - len(record.warmup_step_seconds)
    return ChartSeries(
        name=f"{name}, {time_text(record.started_at)} UTC",
        points=_thinned([(float(step), 1000 * s) for step, s in enumerate(seconds, first)]),
        marks=False,
    )


def _thinned(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most `_POINTS` parts, each with the median and, if it stands out, the maximum."""
    size = math.ceil(len(points) / _POINTS)
    if size == 1:
        return tuple(points)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        middle = median(y for _, y in part)
        kept.append((part[0][0], middle))
        x, highest = max(part, key=lambda point: point[1])
        if highest > 1.2 * middle and x > part[0][0]:
            kept.append((x, highest))
    return tuple(kept)


def _box(name: str, record: RunRecord, style: int) -> DistributionRow:
    times = sorted(1000 * seconds for seconds in record.step_seconds)
    low, first, middle, third, high = np.quantile(times, (0.01, 0.25, 0.5, 0.75, 0.99)).tolist()
    beyond = [(value, "") for value in times if value < low or value > high]
    half = f"half of the steps between {number(first)} and {number(third)} ms"
    return DistributionRow(
        label=name,
        values=(*beyond[:3], *beyond[3:][-12:]),
        centre=middle,
        low=low,
        high=high,
        box=(first, third),
        hint=f"{name}: median {number(middle)} ms, {half}",
        style=style,
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
