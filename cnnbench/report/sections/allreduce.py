"""All-reduce measurements: bandwidth over size, and wrong sums."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.charts import HIGHER, Axis, Chart, Lines, Series
from cnnbench.records.allreduce import AllReduceRecord, Point
from cnnbench.report.document import (
    Cell,
    Charts,
    Column,
    Section,
    Text,
    number,
    section,
    table,
    text_cell,
)
from cnnbench.report.results import Results, time_text
from cnnbench.text import numbers
from cnnbench.text.numbers import binary

_GIGA = 1e9

_COLUMNS = (
    Column("algorithm"),
    Column("packing"),
    Column("of"),
    Column("size", number=True),
    Column("tensors", number=True),
    Column("format"),
    Column("devices", number=True),
    Column("median time, µs", number=True),
    Column("99 %, µs", number=True),
    Column("algbw, GB/s", number=True),
    Column("busbw, GB/s", number=True),
    Column("of the copy bound", number=True),
    Column("#wrong", number=True),
    Column("error"),
    Column("measured (UTC)", steady=True),
)


def allreduce(results: Results) -> Section | None:
    """Charts and a row per point, of all measurements."""
    if not results.allreduces:
        return None
    several = len(results.allreduces) > 1
    charts: list[Chart] = []
    rows: list[tuple[Cell, ...]] = []
    for record in results.allreduces:
        charts += _charts(record, several)
        rows += [_row(record, point, several) for point in record.rows]
    text = (
        "As nccl-tests counts them: algorithm bandwidth (algbw) is the bytes of all tensors of one "
        "device over the median time of a reduction; bus bandwidth (busbw) is algbw · 2(n−1)/n on "
        "n devices, comparable with the speed of a link. 1 GB is 10⁹ bytes. #wrong counts elements "
        "with a wrong sum: a speed without it is no result. The copy bound is the time that the "
        "machine needs to copy what must be moved; devices that share a memory may be faster."
    )
    wrong = sum(point.failed for record in results.allreduces for point in record.rows)
    message = f"{wrong} reductions failed or summed wrongly."
    warning = Text(text=message, tone="bad") if wrong else None
    blocks = (Text(text=text), warning, Charts(charts=tuple(charts)), table(_COLUMNS, rows))
    return section("allreduce", "All-reduce", *blocks)


def _charts(record: AllReduceRecord, several: bool) -> list[Chart]:
    """Bus and algorithm bandwidth, for each number of devices, format and packing."""
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


def _curves(points: Sequence[Point], name: str) -> list[Series]:
    specs: dict[str, dict[int, float]] = {}
    for point in points:
        # Of a size with several numbers of tensors, the fastest.
        best = specs.setdefault(point.spec, {})
        best[point.bytes] = max(_speed(point, name), best.get(point.bytes, 0.0))
    return [
        Series(
            name=spec,
            points=tuple((float(size), best[size]) for size in sorted(best)),
            hints=tuple(
                f"{spec}, {binary(size)}: {numbers.number(best[size])} GB/s"
                for size in sorted(best)
            ),
        )
        for spec, best in specs.items()
    ]


def _bound(record: AllReduceRecord, points: Sequence[Point], name: str) -> list[Series]:
    bounds: dict[int, float] = {}
    for point in points:
        share = record.share_of_bound(point)
        if share:
            bounds[point.bytes] = _speed(point, name) / share
    if len(bounds) < 2:
        return []
    line = tuple((float(size), bounds[size]) for size in sorted(bounds))
    return [Series(name="bound: copying what must be moved", points=line, reference=True)]


def _speed(point: Point, name: str) -> float:
    """In GB/s."""
    speed = point.bus_bandwidth if name == "busbw" else point.algorithm_bandwidth
    return (speed or 0.0) / _GIGA


def _row(record: AllReduceRecord, point: Point, several: bool) -> tuple[Cell, ...]:
    share = record.share_of_bound(point)
    wrong = f"{point.wrong:,}" if point.checked else "not checked"
    peer = " (peer)" if point in record.peers else ""
    packing = str(point.packing)
    return (
        text_cell(f"{point.spec}{peer}"),
        text_cell("" if packing == "-" else packing),
        text_cell("" if point.workload == str(point.bytes) else point.workload),
        number(point.bytes, binary(point.bytes)),
        number(point.tensors, f"{point.tensors:,}"),
        text_cell(point.dtype),
        number(point.devices, str(point.devices)),
        number(point.median, scale=1e6),
        number(point.p99, scale=1e6),
        number(point.algorithm_bandwidth, scale=1 / _GIGA),
        number(point.bus_bandwidth, scale=1 / _GIGA),
        number(share, lambda value: numbers.percent(value, 0)),
        number(point.wrong, wrong, tone="bad" if point.wrong else ""),
        text_cell(point.error or "", tone="bad" if point.error else ""),
        text_cell(time_text(record.started_at) if several else ""),
    )
