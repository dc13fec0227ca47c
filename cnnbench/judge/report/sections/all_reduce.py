"""Sections of a report about all-reduces: measured bandwidths and wrong sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cnnbench.base.charts import (
    HIGHER,
    Axis,
    Chart,
    ChartSeries,
    DistributionRow,
    LineChart,
    RowChart,
    legend_text,
)
from cnnbench.base.document import (
    Answer,
    Content,
    Paragraph,
    Row,
    TableCell,
    make_table,
    numeric_cell,
    prepend_docstring,
)
from cnnbench.base.lazy_numpy import np
from cnnbench.base.stats import group_by
from cnnbench.base.text import (
    alternatives,
    count_text,
    first_lines,
    format_bytes,
    integer,
    number,
    percent,
)
from cnnbench.judge.report.results import ReportSubject, start_time_text
from cnnbench.records.all_reduce import AllReduceRecord, Point

_ESTIMATE = "estimate: time to copy the bytes that must be moved"


@prepend_docstring
def all_reduce_section(results: ReportSubject) -> Iterable[Content]:
    """Bandwidths of all-reduces, which are defined as in nccl-tests. Algorithm bandwidth (algbw) is
    the bytes of all tensors of one device, divided by the median time of a reduction. Bus bandwidth
    (busbw) is algbw · 2(n−1)/n on n devices; you can compare it with the speed of a link. 1 GB is
    10⁹ bytes. #wrong is the number of elements with a wrong sum; a speed with wrong sums is not a
    result. The copy estimate is the time in which the machine copies the bytes that must be moved.
    It is not a limit, because devices that share a memory may be faster.
    """
    rows = [(record, point) for record in results.allreduces for point in record.rows]
    if wrong := sum(point.failed for _, point in rows):
        yield Paragraph(f"{_failures_text(wrong)}.", "bad")
    several = len(results.allreduces) > 1
    yield [chart for record in results.allreduces for chart in _charts(record, several)]
    yield make_table(_bandwidth_row(record, point, several) for record, point in rows)


def _failures_text(failed: int) -> str:
    return f"{count_text(failed, 'reduction', 'reductions')} failed or summed wrongly"


_MOST_NAMED = 3


def all_reduce_answers(results: ReportSubject) -> Iterator[Answer]:
    """Yields an answer for each all-reduce record: the fastest reduction of each size and number of
    devices. If many records are compared, only records with wrong sums or failures have an answer.
    """
    many = results.comparison is not None and len(results.allreduces) > _MOST_NAMED
    for record in results.allreduces:
        fastest = [point for point, _ in record.fastest_points() if point.devices > 1]
        wrong = sum(point.failed for point in record.rows)
        if (many or not fastest) and not wrong:
            continue
        lines = [_fastest_text(point) for point in fastest]
        answer = f"The fastest of {_sizes_text(fastest)}"
        if len(lines) < 2:
            answer, lines = "".join(lines), []
        if wrong:
            lines = [answer, *lines] if answer else lines
            answer = _failures_text(wrong)
        details = first_lines(lines, _MOST_NAMED, "and {} more, under All-reduce")
        when = f", {start_time_text(record.started_at)}" if results.allreduces[1:] else ""
        yield Answer(f"All-reduce{when}", answer, "bad" if wrong else "", details)


def _sizes_text(fastest: Sequence[Point]) -> str:
    sizes = count_text({point.bytes for point in fastest}, "size", "sizes")
    devices = sorted({point.devices for point in fastest})
    return f"{sizes} on {alternatives(list(map(str, devices)))} devices"


def _fastest_text(point: Point) -> str:
    speed = number(_gb_per_sec(point, "busbw"))
    packing = str(point.packing).removeprefix("-")
    name = f"{point.spec} {packing}".strip()
    size = format_bytes(point.bytes)
    return f"{size} on {point.devices} devices: {name}, {speed} GB/s bus bandwidth (median)"


def _charts(record: AllReduceRecord, several: bool) -> Iterator[Chart]:
    """Yields charts of the bandwidth for each number of devices, number format and packing: curves
    over the size, or bars if there is one size.
    """
    good = (row for row in record.rows if row.median_seconds is not None and not row.failed)
    kinds = group_by(
        (row for row in good if row.devices > 1),
        lambda row: (row.devices, row.dtype, str(row.packing).removeprefix("-")),
    )
    kind = "" if record.placement is None else f" {record.placement.device}"
    for (devices, dtype, packing), points in kinds.items():
        when = start_time_text(record.started_at) if several else ""
        title = ", ".join(filter(None, (f"{devices}{kind} devices", dtype, packing, when)))
        if len({point.bytes for point in points}) == 1:
            yield _bars(record, points, title)
            continue
        size = Axis(label="bytes of all tensors of a device", format="bytes", log=True, base=4)
        for name, unit in (("busbw", "bus"), ("algbw", "algorithm")):
            yield LineChart(
                title=f"{title}: {unit} bandwidth",
                x=size,
                y=Axis(label=f"{name}, GB/s", log=True, better=HIGHER),
                series=tuple(_curves(record, points, name)),
            )


def _bars(record: AllReduceRecord, points: Sequence[Point], title: str) -> RowChart:
    rows = []
    for point in sorted(points, key=lambda point: -_gb_per_sec(point, "busbw")):
        speed, median = _gb_per_sec(point, "busbw"), point.median_seconds or 0.0
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
    estimates = _copy_bandwidths(record, points, "busbw").values()
    middle = "the middle half of all reductions"
    return RowChart(
        title=f"{title}, {format_bytes(points[0].bytes)}: bus bandwidth",
        x=Axis(label="busbw, GB/s", zero=True, better=HIGHER),
        rows=tuple(rows),
        limit=(max(estimates), _ESTIMATE) if estimates else None,
        note=legend_text(rows, centre="the median reduction", band=middle),
        bars=True,
    )


def _curves(record: AllReduceRecord, points: Sequence[Point], name: str) -> Iterator[ChartSeries]:
    specs: dict[str, dict[int, float]] = {point.spec: {} for point in points}
    for point in sorted(points, key=lambda point: (point.bytes, _gb_per_sec(point, name))):
        # Points are sorted by speed, so a faster point of the same size replaces a slower one.
        specs[point.spec][point.bytes] = _gb_per_sec(point, name)
    for spec, best in specs.items():
        hints = (
            f"{spec}, {format_bytes(size)}: {number(speed)} GB/s" for size, speed in best.items()
        )
        yield ChartSeries(name=spec, points=tuple(best.items()), hints=tuple(hints))
    estimates = _copy_bandwidths(record, points, name)
    if len(estimates) > 1:
        yield ChartSeries(name=_ESTIMATE, points=tuple(sorted(estimates.items())), reference=True)


def _copy_bandwidths(
    record: AllReduceRecord, points: Iterable[Point], name: str
) -> dict[int, float]:
    """Maps sizes in bytes to the bandwidth in GB/s that corresponds to the copy estimate. Sizes
    without a copy estimate are left out.
    """
    shares = ((point, record.copy_time_share(point)) for point in points)
    return {point.bytes: _gb_per_sec(point, name) / share for point, share in shares if share}


def _gb_per_sec(point: Point, name: str) -> float:
    """Returns the bus bandwidth (`name` is "busbw") or algorithm bandwidth ("algbw") of a
    measurement in GB/s; 0 if unknown.
    """
    speed = point.bus_bandwidth if name == "busbw" else point.algorithm_bandwidth
    return (speed or 0.0) / 1e9


def _bandwidth_row(record: AllReduceRecord, point: Point, several: bool) -> Row:
    wrong = integer(point.wrong) if point.checked else "not checked"
    measured = {"measured (UTC)": TableCell(start_time_text(record.started_at), kinds="steady")}
    return {
        "algorithm": f"{point.spec}{' (peer)' if point in record.peers else ''}",
        "packing": str(point.packing).removeprefix("-"),
        "of": "" if point.workload == str(point.bytes) else point.workload,
        "size": numeric_cell(point.bytes, format_bytes),
        "tensors": numeric_cell(point.tensors),
        "format": point.dtype,
        "devices": numeric_cell(point.devices),
        "median time, µs": numeric_cell(point.median_seconds, scale=1e6),
        "99 %, µs": numeric_cell(point.p99_seconds, scale=1e6),
        "longest, µs": numeric_cell(point.longest_seconds, scale=1e6),
        "algbw, GB/s": numeric_cell(point.algorithm_bandwidth, scale=1e-9),
        "busbw, GB/s": numeric_cell(point.bus_bandwidth, scale=1e-9),
        "of the copy estimate": numeric_cell(
            record.copy_time_share(point), lambda share: percent(share, digits=0)
        ),
        "#wrong": numeric_cell(point.wrong, wrong, tone="bad" if point.wrong else ""),
        "error": TableCell(point.error, tone="bad") if point.error else "",
        **(measured if several else {}),
    }
