"""Step times: in order, and their distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cnnbench.charts import LOWER, Axis, Box, Boxes, Lines, Series
from cnnbench.records.run import RunRecord
from cnnbench.report.document import (
    Charts,
    Column,
    Section,
    Table,
    Text,
    number,
    section,
    table,
    text_cell,
)
from cnnbench.report.results import Configured, Results, time_text
from cnnbench.stats.descriptive import median
from cnnbench.text.numbers import percent

_COLUMNS = (
    Column("configuration"),
    *(
        Column(title, number=True)
        for title in (
            *("timed steps", "median, ms", "90 %, ms", "99 %, ms", "slowest, ms"),
            *("within a process", "between processes"),
        )
    ),
)
_SHOWN = 8
"""Processes in a chart; more hide each other."""

_POINTS = 160
"""Of a curve; longer series are drawn as medians and maxima of parts."""

_HEADROOM = 1.6
"""The axis ends at this multiple of the 95th percentile."""


def steps(results: Results) -> Section | None:
    """Series and distributions, a pair of charts per configuration."""
    timed = [one for one in results.configured if any(r.step_seconds for r in one.good)]
    if not timed:
        return None
    text = (
        "Wall time of every step: on the left in order, warm-up on grey ground; on the right the "
        "timed steps of each process: the box holds the middle half, the stroke is the median, "
        "whiskers reach from the 1st to the 99th percentile, dots are beyond. Arrows at an edge "
        "are steps beyond the axis."
    )
    charts = Charts(charts=tuple(chart for one in timed for chart in (_series(one), _boxes(one))))
    return section("steps", "Step times", Text(text=text), charts, _table(timed))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at a share of an ascending sequence, between neighbours by proportion."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _chosen(one: Configured) -> list[tuple[int, RunRecord]]:
    """Processes to show with their numbers: all, or some at even distances."""
    timed = [(n, r) for n, r in enumerate(one.good, start=1) if r.step_seconds]
    if len(timed) <= _SHOWN:
        return timed
    return [timed[round(i * (len(timed) - 1) / (_SHOWN - 1))] for i in range(_SHOWN)]


def _limit(records: Sequence[RunRecord]) -> float:
    """Milliseconds up to which the axis goes."""
    return _HEADROOM * max(1000 * percentile(sorted(r.step_seconds), 0.95) for r in records)


def _series(one: Configured) -> Lines:
    chosen = _chosen(one)
    warmup = max(len(record.warmup_step_seconds) for _, record in chosen)
    series = []
    for process, record in chosen:
        seconds = (*record.warmup_step_seconds, *record.step_seconds)
        first = 1 - len(record.warmup_step_seconds)
        points = _thinned([(first + i, 1000 * s) for i, s in enumerate(seconds)])
        series.append(
            Series(
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
    """At most so many points; of each part the median and, if it stands out, the maximum."""
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


def _boxes(one: Configured) -> Boxes:
    chosen = _chosen(one)
    boxes = []
    for index, (process, record) in enumerate(chosen):
        ordered = sorted(1000 * s for s in record.step_seconds)
        low, first, middle, third, high = (
            percentile(ordered, share) for share in (0.01, 0.25, 0.5, 0.75, 0.99)
        )
        beyond = [value for value in ordered if value < low or value > high]
        boxes.append(
            Box(
                label=f"process {process}",
                low=low,
                first=first,
                middle=middle,
                third=third,
                high=high,
                outermost=tuple(beyond[:3] + beyond[3:][-12:]),
                hint=f"process {process}: median {middle:.3g} ms, half of the steps between "
                f"{first:.3g} and {third:.3g} ms",
                series=index,
            )
        )
    return Boxes(
        title=f"{one.name}: distribution",
        x=Axis(
            label="time of a timed step, ms",
            zero=True,
            better=LOWER,
            limit=_limit([record for _, record in chosen]),
        ),
        boxes=tuple(boxes),
    )


def _table(timed: Sequence[Configured]) -> Table:
    rows = []
    for one in timed:
        series = [sorted(record.step_seconds) for record in one.good if record.step_seconds]
        everything = sorted(value for ordered in series for value in ordered)
        medians = sorted(median(ordered) for ordered in series)
        between = (medians[-1] - medians[0]) / median(medians) if len(medians) > 1 else None
        within = median(map(_relative_spread, series))
        slowest = "from the fastest process to the slowest, over the median"
        rows.append(
            (
                text_cell(one.name),
                number(len(everything), str(len(everything))),
                *(number(percentile(everything, p), scale=1000) for p in (0.5, 0.9, 0.99, 1.0)),
                number(within, percent, hint="interquartile range over median"),
                number(between, percent, hint=slowest),
            )
        )
    return table(_COLUMNS, rows)


def _relative_spread(ordered: Sequence[float]) -> float:
    return (percentile(ordered, 0.75) - percentile(ordered, 0.25)) / percentile(ordered, 0.5)
