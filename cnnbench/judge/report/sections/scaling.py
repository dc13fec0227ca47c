"""Sections of a report about all-reduces, and about scaling to several devices."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
from cnnbench.base.stats import ValuesByProcess, group_by
from cnnbench.base.text import (
    alternatives,
    count_text,
    first_lines,
    format_bytes,
    integer,
    milliseconds,
    number,
    percent,
)
from cnnbench.flags.declare import ComparedBy, names_of_flags, specs_of
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.flags.params import FLAGS
from cnnbench.judge.compare.configuration import GROUPS, unique_configuration_names
from cnnbench.judge.report.results import ReportSubject, RunGroup, split_common, start_time_text
from cnnbench.records.all_reduce import AllReduceRecord, Point, Prediction, Predictions

if TYPE_CHECKING:
    import numpy as np
else:
    from cnnbench.base import lazy_numpy as np

# Shows measurements of all-reduces: bandwidth over size, and wrong sums.

_GIGA = 1e9
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
    yield [chart for record in results.allreduces for chart in _bandwidth_charts(record, several)]
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


def prediction_answers(results: ReportSubject) -> Iterator[Answer]:
    """Yields an answer for each prediction of `cnnbench allreduce --predict`: the fastest algorithm
    for each number of devices.
    """
    for document in results.predictions:
        lines = [
            f"{row.spec} is the fastest on {row.devices} devices: "
            f"{milliseconds(row.allreduce_seconds or 0.0)} ms"
            for row in fastest_predictions(document.rows).values()
        ]
        if lines:
            links = ", ".join(dict.fromkeys(row.parameters for row in document.rows))
            *others, last = lines
            shown = tuple(reversed(others[-_MOST_NAMED:]))
            yield Answer(f"Predicted all-reduce of {document.model}, {links}", last, "", shown)


def fastest_predictions(rows: Iterable[Prediction]) -> dict[int, Prediction]:
    """Returns the prediction with the shortest reduction time for each number of devices, in
    ascending order; with ties, the first prediction.
    """
    known = [row for row in rows if row.allreduce_seconds is not None]
    known.sort(key=lambda row: (row.devices, row.allreduce_seconds or 0.0))
    best: dict[int, Prediction] = {}
    for row in known:
        best.setdefault(row.devices, row)
    return best


@prepend_docstring
def predictions_section(results: ReportSubject) -> Iterable[Content]:
    """Times of all-reduces that the cost model predicts (cnnbench allreduce --predict). The step
    and its efficiency are given without overlap of computing and reducing, and with full overlap.
    """
    for document in results.predictions:
        fastest = fastest_predictions(document.rows).values()
        yield make_table(
            (_prediction_row(row, row in fastest) for row in document.rows), title=document.model
        )


def step_cells(row: Prediction) -> Row:
    """Returns the table cells of a predicted step, without overlap and with full overlap."""
    return {
        "reduction, ms": numeric_cell(row.allreduce_seconds, scale=1e3),
        "step, ms": numeric_cell(row.step_seconds, scale=1e3),
        "efficiency": numeric_cell(row.efficiency, percent),
        "images/sec": numeric_cell(row.images_per_sec),
        "overlapped step, ms": numeric_cell(row.overlapped_step_seconds, scale=1e3),
        "overlapped efficiency": numeric_cell(row.overlapped_efficiency, percent),
        "overlapped images/sec": numeric_cell(row.overlapped_images_per_sec),
    }


def _prediction_row(row: Prediction, is_fastest: bool) -> Row:
    return {
        "links": row.parameters,
        "devices": numeric_cell(row.devices, integer),
        "algorithm": row.spec,
        "fastest": TableCell("yes" if is_fastest else "", tone="good" if is_fastest else ""),
        **step_cells(row),
        "not predicted": TableCell(row.not_predicted or "", kinds="prose"),
    }


def _sizes_text(fastest: Sequence[Point]) -> str:
    sizes = count_text({point.bytes for point in fastest}, "size", "sizes")
    devices = sorted({point.devices for point in fastest})
    return f"{sizes} on {alternatives(list(map(str, devices)))} devices"


def _fastest_text(point: Point) -> str:
    speed = number(_gigabytes(point, "busbw"))
    packing = str(point.packing).removeprefix("-")
    name = f"{point.spec} {packing}".strip()
    size = format_bytes(point.bytes)
    return f"{size} on {point.devices} devices: {name}, {speed} GB/s bus bandwidth (median)"


def _bandwidth_charts(record: AllReduceRecord, several: bool) -> Iterator[Chart]:
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
            yield _bandwidth_bars(record, points, title)
            continue
        size = Axis(label="bytes of all tensors of a device", format="bytes", log=True, base=4)
        for name, unit in (("busbw", "bus"), ("algbw", "algorithm")):
            yield LineChart(
                title=f"{title}: {unit} bandwidth",
                x=size,
                y=Axis(label=f"{name}, GB/s", log=True, better=HIGHER),
                series=tuple(_bandwidth_curves(record, points, name)),
            )


def _bandwidth_bars(record: AllReduceRecord, points: Sequence[Point], title: str) -> RowChart:
    rows = []
    for point in sorted(points, key=lambda point: -_gigabytes(point, "busbw")):
        speed, median = _gigabytes(point, "busbw"), point.median_seconds or 0.0
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
    return RowChart(
        title=f"{title}, {format_bytes(points[0].bytes)}: bus bandwidth",
        x=Axis(label="busbw, GB/s", zero=True, better=HIGHER),
        rows=tuple(rows),
        limit=(max(estimates), _ESTIMATE) if estimates else None,
        note=legend_text(
            rows, centre="the median reduction", band="the middle half of all reductions"
        ),
        bars=True,
    )


def _bandwidth_curves(
    record: AllReduceRecord, points: Sequence[Point], name: str
) -> Iterator[ChartSeries]:
    specs: dict[str, dict[int, float]] = {point.spec: {} for point in points}
    for point in sorted(points, key=lambda point: (point.bytes, _gigabytes(point, name))):
        # Points are sorted by speed, so the fastest measurement of each size is kept.
        specs[point.spec][point.bytes] = _gigabytes(point, name)
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
    shares = ((point, record.copy_time_ratio(point)) for point in points)
    return {point.bytes: _gigabytes(point, name) / share for point, share in shares if share}


def _gigabytes(point: Point, name: str) -> float:
    """Returns the bus bandwidth (`name` is "busbw") or algorithm bandwidth ("algbw") of a
    measurement in GB/s; 0 if unknown.
    """
    speed = point.bus_bandwidth if name == "busbw" else point.algorithm_bandwidth
    return (speed or 0.0) / _GIGA


def _bandwidth_row(record: AllReduceRecord, point: Point, several: bool) -> Row:
    wrong = integer(point.wrong) if point.checked else "not checked"
    measured = {"measured (UTC)": TableCell(start_time_text(record.started_at), kinds="steady")}
    return {
        "algorithm": f"{point.spec}{' (peer)' if point in record.peers else ''}",
        "packing": str(point.packing).removeprefix("-"),
        "of": "" if point.workload == str(point.bytes) else point.workload,
        "size": numeric_cell(point.bytes, format_bytes),
        "tensors": numeric_cell(point.tensors, integer),
        "format": point.dtype,
        "devices": numeric_cell(point.devices, integer),
        "median time, µs": numeric_cell(point.median_seconds, scale=1e6),
        "99 %, µs": numeric_cell(point.p99_seconds, scale=1e6),
        "longest, µs": numeric_cell(point.longest_seconds, scale=1e6),
        "algbw, GB/s": numeric_cell(point.algorithm_bandwidth, scale=1 / _GIGA),
        "busbw, GB/s": numeric_cell(point.bus_bandwidth, scale=1 / _GIGA),
        "of the copy estimate": numeric_cell(
            record.copy_time_ratio(point), lambda share: percent(share, digits=0)
        ),
        "#wrong": numeric_cell(point.wrong, wrong, tone="bad" if point.wrong else ""),
        "error": TableCell(point.error, tone="bad") if point.error else "",
        **(measured if several else {}),
    }


# Shows the scaling of configurations that differ only in the number of devices.

_FOLLOWING = frozenset(
    (*GROUPS["num_gpus"], *names_of_flags(FLAGS, ComparedBy.NUMBER), "per_gpu_thread_count")
)
"""Flags whose values depend on the number of devices."""

_AGGREGATION = frozenset(spec.name for spec in specs_of(VariableUpdateParams))
"""Flags of the aggregation of gradients. They have no effect on a single device."""


@dataclass(frozen=True, eq=False)
class ScalingCurve:
    """One configuration on different numbers of devices, in ascending order.

    Attributes:
      base: the runs with which efficiencies are compared, on one device if possible.
      predicted: predicted images/sec, by the parameters of the links and the number of devices.
    """

    name: str
    members: tuple[RunGroup, ...]
    base: RunGroup
    predicted: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def points(self) -> list[tuple[float, float, RunGroup]]:
        """The number of devices, the median images/sec and the group of runs, for the base and each
        member of the curve.
        """
        groups = dict.fromkeys((self.base, *self.members))
        return [
            (float(group.device_count or 1), group.throughput.median or 0.0, group)
            for group in groups
        ]

    def efficiency(self, group: RunGroup) -> float | None:
        """Returns the images/sec per device of a group, divided by the images/sec per device of the
        base; None if unknown.
        """
        speeds = [
            (of.throughput.median or 0.0) / (of.device_count or 1) for of in (group, self.base)
        ]
        return speeds[0] / speeds[1] if all(speeds) else None


def scaling_curves(
    configured: Sequence[RunGroup], predictions: Sequence[Predictions] = ()
) -> list[ScalingCurve]:
    """Returns a scaling curve for each configuration that was run on at least two different numbers
    of devices, including its base.
    """
    measured = [group for group in configured if group.throughput.values and group.device_count]
    singles = {
        _curve_key(group, _AGGREGATION): group for group in measured if group.device_count == 1
    }
    drawn = []
    for members in group_by(measured, _curve_key).values():
        members.sort(key=lambda group: group.device_count or 0)
        base = members[0]
        if base.device_count != 1:
            # On one device, all modes of aggregation are equal, so any mode can be the base.
            base = singles.get(_curve_key(base, _AGGREGATION), base)
        if len({group.device_count for group in (base, *members)}) > 1:
            predicted = _predicted_speeds(base, predictions)
            drawn.append(ScalingCurve(_curve_name(members), tuple(members), base, predicted))
    return drawn


def _predicted_speeds(
    base: RunGroup, predictions: Iterable[Predictions]
) -> Mapping[str, Mapping[int, float]]:
    """Returns predicted images/sec (see `ScalingCurve.predicted`). A predicted step takes the time
    on one device plus the time of the fastest predicted reduction.
    """
    speed = base.throughput.median
    images = next((run.batch.global_ for run in base.successful if run.batch is not None), None)
    if not speed or not images or base.device_count != 1 or base.work_kind != "training":
        return {}
    speeds: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in (row for one in predictions if one.model == base.model for row in one.rows):
        if row.allreduce_seconds is not None:
            new = images * row.devices / (images / speed + row.allreduce_seconds)
            of_links = speeds[row.parameters]
            of_links[row.devices] = max(new, of_links.get(row.devices, 0.0))
    return speeds


@prepend_docstring
def scaling_section(results: ReportSubject) -> Iterable[Content]:
    """Scaling efficiency is images/sec per device, divided by the images/sec of one device in the
    same configuration (medians over processes). If the mode was not run on one device, one device
    in any mode is the reference; if there is none, the smallest number of devices is the reference.
    Batch sizes are per device (weak scaling).
    """
    drawn = scaling_curves(results.configured, results.predictions)
    if any(curve.predicted for curve in drawn):
        yield (
            "The predicted time of a step is the time on one device, plus the time of the fastest "
            "reduction of cnnbench allreduce --predict. The prediction does not overlap the two."
        )
    if any(group.device_kind == "cpu" for curve in drawn for group in curve.members):
        message = "CPU devices are logical: n of them share the cores of a machine, and cannot be "
        message += "n times as fast. The cost of aggregation is the difference to 1/n."
        yield Paragraph(message, "unsure")
    workloads = group_by(drawn, lambda curve: curve.members[0].workload)
    yield [chart for workload in workloads.items() for chart in _scaling_charts(*workload)]
    yield make_table(_scaling_row(curve, *point) for curve in drawn for point in curve.points)


def _curve_key(group: RunGroup, without: frozenset[str] = frozenset()) -> str:
    ignored = _FOLLOWING | without
    flags = group.configuration.flags
    kept = [(name, flags[name]) for name in sorted(flags) if name not in ignored]
    return json.dumps([kept, repr(group.origin), group.opponent])


def _curve_name(members: Sequence[RunGroup]) -> str:
    last = members[-1]
    devices = f"{last.flag('num_gpus')} {last.device_kind}"
    names = unique_configuration_names(group.configuration for group in members)
    parts = [part for part in last.name.split(", ") if part != devices]
    return ", ".join(parts) or names[last.configuration.key]


def _scaling_charts(workload: str, drawn: Sequence[ScalingCurve]) -> list[LineChart]:
    shared, names = split_common([curve.name.split(", ") for curve in drawn])
    named = [*zip(names, drawn, strict=True)]
    speeds = [
        ChartSeries(
            name=name,
            points=tuple((devices, speed) for devices, speed, _ in curve.points),
            hints=tuple(f"{of.name}: {number(speed)} images/sec" for _, speed, of in curve.points),
            spans=tuple(group.throughput.interval for _, _, group in curve.points),
        )
        for name, curve in named
    ]
    efficiencies = [
        ChartSeries(
            name=name,
            points=tuple((devices, curve.efficiency(of) or 0.0) for devices, _, of in curve.points),
            hints=tuple(f"{of.name}: {percent(curve.efficiency(of))}" for *_, of in curve.points),
        )
        for name, curve in named
    ]
    ticks = sorted({devices for curve in drawn for devices, _, _ in curve.points})
    devices = Axis(label="devices", log=True, base=2, ticks=tuple(ticks))
    share = Axis(label="efficiency against one device", format="percent", zero=True, better=HIGHER)
    spans = any(span for series in speeds for span in series.spans)
    return [
        LineChart(
            title=f"{shared or workload}: median images/sec over devices",
            x=devices,
            y=Axis(label="median images/sec, all devices", zero=True, better=HIGHER),
            series=(*speeds, *_reference_series(drawn, ticks)),
            note=f"A vertical stroke is the {ValuesByProcess.INTERVAL}." if spans else "",
        ),
        LineChart(
            title=f"{shared or workload}: scaling efficiency",
            x=devices,
            y=share,
            series=tuple(efficiencies),
        ),
    ]


def _reference_series(drawn: Sequence[ScalingCurve], devices: Sequence[float]) -> list[ChartSeries]:
    """Returns the lines of linear scaling and of predicted scaling if all curves have the same
    base; otherwise an empty list.
    """
    first, speed, base = drawn[0].points[0]
    if any(curve.base is not base for curve in drawn) or first >= devices[-1]:
        return []
    # The line has a point at each number of devices, because it is curved on a logarithmic axis.
    linear = tuple((many, speed * many / first) for many in devices)
    references = [ChartSeries(name="linear scaling", points=linear, reference=True)]
    for links, speeds in drawn[0].predicted.items():
        points = sorted({1: speed, **speeds}.items())
        shown = tuple((float(count), value) for count, value in points if count <= devices[-1])
        hints = tuple(f"predicted, {links}: {number(value)} images/sec" for _, value in shown)
        references.append(ChartSeries(name=f"predicted, {links}", points=shown, hints=hints))
    return references


def _scaling_row(curve: ScalingCurve, devices: float, speed: float, group: RunGroup) -> Row:
    predicted = [of[int(devices)] for of in curve.predicted.values() if devices in of]
    texts = alternatives([number(value) for value in predicted])
    return {
        "configuration": curve.name,
        "devices": numeric_cell(devices, integer),
        "median images/sec": numeric_cell(speed),
        "median images/sec per device": numeric_cell(speed / devices),
        "predicted images/sec": numeric_cell(max(predicted, default=None), texts),
        "efficiency": numeric_cell(curve.efficiency(group), percent),
        "against": curve.base.name,
    }
