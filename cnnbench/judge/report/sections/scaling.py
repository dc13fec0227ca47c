"""The section of a report about the scaling of configurations that differ only in the number of
devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cnnbench.base.charts import HIGHER, Axis, ChartSeries, LineChart
from cnnbench.base.document import (
    Content,
    Paragraph,
    Row,
    make_table,
    numeric_cell,
    prepend_docstring,
)
from cnnbench.base.stats import ValuesByProcess, group_by
from cnnbench.base.text import integer, number, percent
from cnnbench.flags import FLAGS, ComparedBy, names_of_flags, specs_of
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.judge.compare.configuration import unique_names
from cnnbench.judge.compare.facts import GROUPS
from cnnbench.judge.report.results import ReportSubject, RunGroup, split_common

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
    """

    name: str
    members: tuple[RunGroup, ...]
    base: RunGroup

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


def scaling_curves(configured: Sequence[RunGroup]) -> list[ScalingCurve]:
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
            # On one device, nothing is aggregated, so a run in any mode can be the base.
            base = singles.get(_curve_key(base, _AGGREGATION), base)
        if len({group.device_count for group in (base, *members)}) > 1:
            drawn.append(ScalingCurve(_curve_name(members), tuple(members), base))
    return drawn


@prepend_docstring
def scaling_section(results: ReportSubject) -> Iterable[Content]:
    """Scaling efficiency is images/sec per device, divided by the images/sec of one device in the
    same configuration (medians over processes). If the mode was not run on one device, one device
    in any mode is the reference; if there is none, the smallest number of devices is the reference.
    Batch sizes are per device (weak scaling).
    """
    drawn = scaling_curves(results.configured)
    if any(group.device_kind == "cpu" for curve in drawn for group in curve.members):
        message = "CPU devices are logical: n of them share the cores of a machine, and cannot be "
        message += "n times as fast. The cost of aggregation is the difference to 1/n."
        yield Paragraph(message, "unsure")
    workloads = group_by(drawn, lambda curve: curve.members[0].workload)
    yield [chart for workload in workloads.items() for chart in _charts(*workload)]
    yield make_table(_row(curve, *point) for curve in drawn for point in curve.points)


def _curve_key(group: RunGroup, without: frozenset[str] = frozenset()) -> str:
    ignored = _FOLLOWING | without
    flags = group.configuration.flags
    kept = [(name, flags[name]) for name in sorted(flags) if name not in ignored]
    return json.dumps([kept, repr(group.origin), group.opponent])


def _curve_name(members: Sequence[RunGroup]) -> str:
    last = members[-1]
    devices = f"{last.flag('num_gpus')} {last.device_kind}"
    names = unique_names(group.configuration for group in members)
    parts = [part for part in last.name.split(", ") if part != devices]
    return ", ".join(parts) or names[last.configuration.key]


def _charts(workload: str, drawn: Sequence[ScalingCurve]) -> list[LineChart]:
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
    """Returns the line of linear scaling if all curves have the same base, otherwise nothing."""
    first, speed, base = drawn[0].points[0]
    if any(curve.base is not base for curve in drawn) or first >= devices[-1]:
        return []
    # On a logarithmic axis, the line is curved, so it has a point at each number of devices.
    linear = tuple((many, speed * many / first) for many in devices)
    return [ChartSeries(name="linear scaling", points=linear, reference=True)]


def _row(curve: ScalingCurve, devices: float, speed: float, group: RunGroup) -> Row:
    return {
        "configuration": curve.name,
        "devices": numeric_cell(devices, integer),
        "median images/sec": numeric_cell(speed),
        "median images/sec per device": numeric_cell(speed / devices),
        "efficiency": numeric_cell(curve.efficiency(group), percent),
        "against": curve.base.name,
    }
