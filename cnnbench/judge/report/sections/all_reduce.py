"""All-reduce measurements: bandwidth over size, and wrong sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
from cnnbench.base.document import Content, Row, TableCell, Text, numeric, table
from cnnbench.base.text import numbers
from cnnbench.base.text.numbers import binary
from cnnbench.judge.report.results import ReportSubject, time_text
from cnnbench.records.all_reduce import AllReduceRecord, Point

_GIGA = 1e9


def all_reduce(results: ReportSubject) -> Iterable[Content]:
    """Charts and a row per point, of all measurements."""
    if not results.allreduces:
        return
    yield (
        "As nccl-tests counts them: algorithm bandwidth (algbw) is the bytes of all tensors of one "
        "device over the median time of a reduction; bus bandwidth (busbw) is algbw · 2(n−1)/n on "
        "n devices, comparable with the speed of a link. 1 GB is 10⁹ bytes. #wrong counts elements "
        "with a wrong sum: a speed without it is no result. The copy bound is the time that the "
        "machine needs to copy what must be moved; devices that share a memory may be faster."
    )
    rows = [(record, point) for record in results.allreduces for point in record.rows]
    if wrong := sum(point.failed for _, point in rows):
        yield Text(f"{wrong} reductions failed or summed wrongly.", "bad")
    several = len(results.allreduces) > 1
    yield [chart for record in results.allreduces for chart in _charts(record, several)]
    yield table(_row(record, point, several) for record, point in rows)


def _charts(record: AllReduceRecord, several: bool) -> list[Chart]:
    """Bandwidth per number of devices, format and packing: curves, or bars of one size."""
    kinds: dict[tuple[int, str, str], list[Point]] = {}
    for point in record.rows:
        if point.median is not None and not point.failed and point.devices > 1:
            kinds.setdefault((point.devices, point.dtype, str(point.packing)), []).append(point)
    charts: list[Chart] = []
    for (devices, dtype, packing), points in kinds.items():
        kind = "" if record.placement is None else f" {record.placement.device}"
        title = f"{devices}{kind} devices, {dtype}"
        title += "" if packing == "-" else f", {packing}"
        title += f", {time_text(record.started_at)}" if several else ""
        if len({point.bytes for point in points}) == 1:
            charts.append(_bars(record, points, title))
            continue
        for name, unit in (("busbw", "bus"), ("algbw", "algorithm")):
            charts.append(
                Lines(
                    title=f"{title}: {unit} bandwidth",
                    x=Axis(
                        label="bytes of all tensors of a device", format="bytes", log=True, base=4
                    ),
                    y=Axis(label=f"{name}, GB/s", log=True, better=HIGHER),
                    series=(*_curves(points, name), *_bound(record, points, name)),
                )
            )
    return charts


def _bars(record: AllReduceRecord, points: Sequence[Point], title: str) -> Rows:
    rows = tuple(
        DistributionRow(
            label=_name(point),
            centre=_speed(point, "busbw"),
            low=_quartile(point, 0.75),
            high=_quartile(point, 0.25),
            hint=f"{_name(point)}: {numbers.number(_speed(point, 'busbw'))} GB/s",
            text=numbers.number(_speed(point, "busbw")),
        )
        for point in sorted(points, key=lambda point: -_speed(point, "busbw"))
    )
    bounds = [
        _speed(one, "busbw") / share for one in points if (share := record.share_of_bound(one))
    ]
    return Rows(
        title=f"{title}, {binary(points[0].bytes)}: bus bandwidth",
        x=Axis(label="busbw, GB/s", zero=True, better=HIGHER),
        rows=rows,
        limit=max(bounds, default=None),
        limit_label="bound: copying what must be moved",
        note=key_of(rows, centre="the median reduction", band="the middle half of all reductions"),
        bars=True,
    )


def _curves(points: Sequence[Point], name: str) -> list[ChartSeries]:
    specs: dict[str, dict[int, float]] = {point.spec: {} for point in points}
    for point in sorted(points, key=lambda point: (point.bytes, _speed(point, name))):
        specs[point.spec][point.bytes] = _speed(point, name)  # the last one is the fastest
    return [
        ChartSeries(
            name=spec,
            points=tuple((float(size), speed) for size, speed in best.items()),
            hints=tuple(
                f"{spec}, {binary(size)}: {numbers.number(speed)} GB/s"
                for size, speed in best.items()
            ),
        )
        for spec, best in specs.items()
    ]


def _name(point: Point) -> str:
    tensors = numbers.count(point.tensors, "tensor", "tensors")
    return point.spec if point.tensors == 1 else f"{point.spec}, {tensors}"


def _bound(record: AllReduceRecord, points: Sequence[Point], name: str) -> list[ChartSeries]:
    bounds = {
        point.bytes: _speed(point, name) / share
        for point in points
        if (share := record.share_of_bound(point))
    }
    if len(bounds) < 2:
        return []
    line = tuple((float(size), bounds[size]) for size in sorted(bounds))
    return [ChartSeries(name="bound: copying what must be moved", points=line, reference=True)]


def _speed(point: Point, name: str) -> float:
    """Bandwidth in GB/s."""
    speed = point.bus_bandwidth if name == "busbw" else point.algorithm_bandwidth
    return (speed or 0.0) / _GIGA


def _quartile(point: Point, share: float) -> float:
    """Bus bandwidth in GB/s of a reduction that takes longer than this share of all."""
    seconds = float(np.quantile(point.seconds, share))
    return _speed(point, "busbw") * (point.median or 0.0) / seconds


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
        "of the copy bound": numeric(
            record.share_of_bound(point), lambda share: numbers.percent(share, digits=0)
        ),
        "#wrong": numeric(point.wrong, wrong, tone="bad" if point.wrong else ""),
        "error": TableCell(point.error, tone="bad") if point.error else "",
        **(measured if several else {}),
    }
