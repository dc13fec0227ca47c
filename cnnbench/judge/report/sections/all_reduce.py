"""All-reduce measurements: bandwidth over size, and wrong sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from cnnbench.base.charts import (
    HIGHER,
    Axis,
    Chart,
    ChartSeries,
    DistributionRow,
    Lines,
    Rows,
    key_of,
)
from cnnbench.base.document import Content, Row, TableCell, Text, introduced, numeric, table
from cnnbench.base.grouping import grouped
from cnnbench.base.text import numbers
from cnnbench.base.text.numbers import binary, number
from cnnbench.judge.report.results import ReportSubject, time_text
from cnnbench.records.all_reduce import AllReduceRecord, Point

_GIGA = 1e9
_ESTIMATE = "estimate: copying what must be moved"


@introduced
def all_reduce(results: ReportSubject) -> Iterable[Content]:
    """As nccl-tests counts them: algorithm bandwidth (algbw) is the bytes of all tensors of one
    device over the median time of a reduction; bus bandwidth (busbw) is algbw · 2(n−1)/n on n
    devices, comparable with the speed of a link. 1 GB is 10⁹ bytes. #wrong counts elements with a
    wrong sum: a speed without it is no result. The copy estimate is the time that the machine needs
    to copy what must be moved. It is no bound: devices that share a memory may be faster.
    """
    rows = [(record, point) for record in results.allreduces for point in record.rows]
    if wrong := sum(point.failed for _, point in rows):
        yield Text(f"{wrong} reductions failed or summed wrongly.", "bad")
    several = len(results.allreduces) > 1
    yield [chart for record in results.allreduces for chart in _charts(record, several)]
    yield table(_row(record, point, several) for record, point in rows)


def _charts(record: AllReduceRecord, several: bool) -> Iterator[Chart]:
    """Bandwidth per number of devices, format and packing: curves, or bars of one size."""
    good = (one for one in record.rows if one.median is not None and not one.failed)
    kinds = grouped(
        (one for one in good if one.devices > 1),
        lambda one: (one.devices, one.dtype, str(one.packing).removeprefix("-")),
    )
    kind = "" if record.placement is None else f" {record.placement.device}"
    for (devices, dtype, packing), points in kinds.items():
        when = time_text(record.started_at) if several else ""
        title = ", ".join(filter(None, (f"{devices}{kind} devices", dtype, packing, when)))
        if len({point.bytes for point in points}) == 1:
            yield _bars(record, points, title)
            continue
        size = Axis(label="bytes of all tensors of a device", format="bytes", log=True, base=4)
        for name, unit in (("busbw", "bus"), ("algbw", "algorithm")):
            yield Lines(
                title=f"{title}: {unit} bandwidth",
                x=size,
                y=Axis(label=f"{name}, GB/s", log=True, better=HIGHER),
                series=tuple(_curves(record, points, name)),
            )


def _bars(record: AllReduceRecord, points: Sequence[Point], title: str) -> Rows:
    rows = []
    for point in sorted(points, key=lambda point: -_speed(point, "busbw")):
        speed, median = _speed(point, "busbw"), point.median or 0.0
        slower, faster = np.quantile(point.seconds, (0.75, 0.25)).tolist()
        label = point.spec if point.tensors == 1 else f"{point.spec}, {point.tensors} tensors"
        rows.append(
            DistributionRow(
                label=label,
                centre=speed,
                low=speed * median / slower,
                high=speed * median / faster,
                hint=f"{label}: {number(speed)} GB/s",
                text=number(speed),
            )
        )
    estimates = _estimates(record, points, "busbw").values()
    return Rows(
        title=f"{title}, {binary(points[0].bytes)}: bus bandwidth",
        x=Axis(label="busbw, GB/s", zero=True, better=HIGHER),
        rows=tuple(rows),
        limit=(max(estimates), _ESTIMATE) if estimates else None,
        note=key_of(rows, centre="the median reduction", band="the middle half of all reductions"),
        bars=True,
    )


def _curves(record: AllReduceRecord, points: Sequence[Point], name: str) -> Iterator[ChartSeries]:
    specs: dict[str, dict[int, float]] = {point.spec: {} for point in points}
    for point in sorted(points, key=lambda point: (point.bytes, _speed(point, name))):
        specs[point.spec][point.bytes] = _speed(point, name)  # the last one is the fastest
    for spec, best in specs.items():
        hints = (f"{spec}, {binary(size)}: {number(speed)} GB/s" for size, speed in best.items())
        yield ChartSeries(name=spec, points=tuple(best.items()), hints=tuple(hints))
    estimates = _estimates(record, points, name)
    if len(estimates) > 1:
        yield ChartSeries(name=_ESTIMATE, points=tuple(sorted(estimates.items())), reference=True)


def _estimates(record: AllReduceRecord, points: Iterable[Point], name: str) -> dict[int, float]:
    """Bandwidth in GB/s of copies by size, as far as it is known."""
    shares = ((point, record.share_of_estimate(point)) for point in points)
    return {point.bytes: _speed(point, name) / share for point, share in shares if share}


def _speed(point: Point, name: str) -> float:
    """Bandwidth in GB/s."""
    speed = point.bus_bandwidth if name == "busbw" else point.algorithm_bandwidth
    return (speed or 0.0) / _GIGA


def _row(record: AllReduceRecord, point: Point, several: bool) -> Row:
    wrong = f"{point.wrong:,}" if point.checked else "not checked"
    measured = {"measured (UTC)": TableCell(time_text(record.started_at), kinds="steady")}
    return {
        "algorithm": f"{point.spec}{' (peer)' if point in record.peers else ''}",
        "packing": str(point.packing).removeprefix("-"),
        "of": "" if point.workload == str(point.bytes) else point.workload,
        "size": numeric(point.bytes, binary),
        "tensors": numeric(point.tensors, numbers.integer),
        "format": point.dtype,
        "devices": numeric(point.devices, numbers.integer),
        "median time, µs": numeric(point.median, scale=1e6),
        "99 %, µs": numeric(point.p99, scale=1e6),
        "longest, µs": numeric(point.longest, scale=1e6),
        "algbw, GB/s": numeric(point.algorithm_bandwidth, scale=1 / _GIGA),
        "busbw, GB/s": numeric(point.bus_bandwidth, scale=1 / _GIGA),
        "of the copy estimate": numeric(
            record.share_of_estimate(point), lambda share: numbers.percent(share, digits=0)
        ),
        "#wrong": numeric(point.wrong, wrong, tone="bad" if point.wrong else ""),
        "error": TableCell(point.error, tone="bad") if point.error else "",
        **(measured if several else {}),
    }
