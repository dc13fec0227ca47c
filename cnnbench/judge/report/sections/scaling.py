"""The section of a report about the scaling of configurations that differ only in the number of
devices of a run, or of workers of a job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from cnnbench.base.charts import HIGHER, Axis, ChartSeries, LineChart
from cnnbench.base.document import Content, Paragraph, Row, make_table, numeric_cell
from cnnbench.base.stats import ValuesByProcess, group_by
from cnnbench.base.text import integer, number, percent
from cnnbench.flags import specs_of
from cnnbench.flags.groups.cluster import ClusterParams
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.judge.compare.configuration import number_of_workers_text, unique_names
from cnnbench.judge.compare.facts import GROUPS
from cnnbench.judge.report.results import ReportSubject, RunGroup, split_common

_FOLLOWING = frozenset((*GROUPS["num_gpus"], "gpu_indices", "per_gpu_thread_count"))
"""The number of devices, and flags whose values depend on the number of devices of a job."""

_AGGREGATION = frozenset(spec.name for spec in specs_of(VariableUpdateParams))
"""Flags of the aggregation of gradients. They have no effect on a single device."""

_JOB = frozenset(spec.name for spec in specs_of(ClusterParams))
"""Flags of jobs. They have no effect on a single worker."""

_ABOUT = (
    "Scaling efficiency is images/sec per {one}, divided by the images/sec of one {one} in the "
    "same configuration (medians over processes). If the mode was not run on one {one}, one {one} "
    "in any mode is the reference; if there is none, the smallest number of {many} is the "
    "reference. Batch sizes are per device (weak scaling)."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Scaled:
    """What scales: the devices of a run, or the workers of a job.

    Attributes:
      one, many: its name, in singular and plural.
      count: returns the number in a group of runs; None if unknown.
      name_part: returns the part of a group's name that says the number.
      following: flags whose values depend on the number.
      unused: flags without effect if the number is 1.
      shares_cores: whether all share the cores of a machine in the runs of a group.
      shared: what efficiency then means.
    """

    one: str
    many: str
    count: Callable[[RunGroup], int | None]
    name_part: Callable[[RunGroup], str]
    following: frozenset[str]
    unused: frozenset[str]
    shares_cores: Callable[[RunGroup], bool]
    shared: str


def _workers_share_cores(group: RunGroup) -> bool:
    addresses = str(group.records[0].config.get("worker_hosts") or "").split(",")
    hosts = {address.rpartition(":")[0] for address in addresses}
    return group.device_kind == "cpu" and len(hosts) < len(addresses)


DEVICES = Scaled(
    one="device",
    many="devices",
    count=attrgetter("device_count"),
    name_part=lambda group: f"{group.flag('num_gpus')} {group.device_kind}",
    following=_FOLLOWING,
    unused=_AGGREGATION,
    shares_cores=lambda group: group.device_kind == "cpu",
    shared="CPU devices are logical: n of them share the cores of a machine, and cannot be n times "
    "as fast. The cost of aggregation is the difference to 1/n.",
)
WORKERS = Scaled(
    one="worker",
    many="workers",
    count=attrgetter("worker_count"),
    name_part=lambda group: number_of_workers_text(group.flag("worker_hosts")),
    following=(_FOLLOWING - {"num_gpus"}) | {"worker_hosts", "job_name"},
    unused=_AGGREGATION | _JOB,
    shares_cores=_workers_share_cores,
    shared="Workers on one machine share its cores: n of them cannot be n times as fast. If one "
    "worker alone keeps all cores busy, the cost of communication is the difference to 1/n.",
)


@dataclass(frozen=True, eq=False)
class ScalingCurve:
    """One configuration with different numbers of devices or workers, in ascending order.

    Attributes:
      base: the runs with which efficiencies are compared, on one device or worker if possible.
    """

    scaled: Scaled
    name: str
    members: tuple[RunGroup, ...]
    base: RunGroup

    @property
    def points(self) -> list[tuple[float, float, RunGroup]]:
        """The number of devices or workers, the median images/sec and the group of runs, for the
        base and each member of the curve.
        """
        groups = dict.fromkeys((self.base, *self.members))
        return [
            (float(self.scaled.count(group) or 1), group.throughput.median or 0.0, group)
            for group in groups
        ]

    def efficiency(self, group: RunGroup) -> float | None:
        """Returns the images/sec per device or worker of a group, divided by the images/sec per
        device or worker of the base; None if unknown.
        """
        speeds = [
            (of.throughput.median or 0.0) / (self.scaled.count(of) or 1)
            for of in (group, self.base)
        ]
        return speeds[0] / speeds[1] if all(speeds) else None


def scaling_curves(configured: Sequence[RunGroup], scaled: Scaled) -> list[ScalingCurve]:
    """Returns a scaling curve for each configuration that was run on at least two different numbers
    of devices or workers, including its base.
    """
    measured = [group for group in configured if group.throughput.values and scaled.count(group)]
    # A job of one worker precedes a run that is no job, as it comes last.
    in_order = sorted(measured, key=lambda group: bool(group.flag("worker_hosts")))
    singles = {
        _curve_key(group, scaled.following | scaled.unused): group
        for group in in_order
        if scaled.count(group) == 1
    }
    drawn = []
    for members in group_by(measured, lambda of: _curve_key(of, scaled.following)).values():
        members.sort(key=lambda group: scaled.count(group) or 0)
        base = members[0]
        if scaled.count(base) != 1:
            # On one device, nothing is aggregated, so a run in any mode can be the base.
            base = singles.get(_curve_key(base, scaled.following | scaled.unused), base)
        if len({scaled.count(group) for group in (base, *members)}) > 1:
            drawn.append(ScalingCurve(scaled, _curve_name(members, scaled), tuple(members), base))
    return drawn


def scaling_section(results: ReportSubject) -> Iterable[Content]:
    """Shows speeds and efficiencies over the number of devices, and over that of workers."""
    for scaled in (DEVICES, WORKERS):
        if drawn := scaling_curves(results.configured, scaled):
            yield from _contents(scaled, drawn)


def _contents(scaled: Scaled, drawn: Sequence[ScalingCurve]) -> Iterable[Content]:
    yield _ABOUT.format(one=scaled.one, many=scaled.many)
    if any(scaled.shares_cores(group) for curve in drawn for group in curve.members):
        yield Paragraph(scaled.shared, "unsure")
    workloads = group_by(drawn, lambda curve: curve.members[0].workload)
    yield [chart for workload in workloads.items() for chart in _charts(*workload)]
    yield make_table(_row(curve, *point) for curve in drawn for point in curve.points)


def _curve_key(group: RunGroup, ignored: frozenset[str]) -> str:
    flags = group.configuration.flags
    kept = [(name, flags[name]) for name in sorted(flags) if name not in ignored]
    return json.dumps([kept, repr(group.origin), group.opponent])


def _curve_name(members: Sequence[RunGroup], scaled: Scaled) -> str:
    last = members[-1]
    number_part = scaled.name_part(last)
    names = unique_names(group.configuration for group in members)
    parts = [part for part in last.name.split(", ") if part != number_part]
    return ", ".join(parts) or names[last.configuration.key]


def _charts(workload: str, drawn: Sequence[ScalingCurve]) -> list[LineChart]:
    scaled = drawn[0].scaled
    shared, names = split_common([curve.name.split(", ") for curve in drawn])
    named = [*zip(names, drawn, strict=True)]
    speeds = [
        ChartSeries(
            name=name,
            points=tuple((count, speed) for count, speed, _ in curve.points),
            hints=tuple(f"{of.name}: {number(speed)} images/sec" for _, speed, of in curve.points),
            spans=tuple(group.throughput.interval for _, _, group in curve.points),
        )
        for name, curve in named
    ]
    efficiencies = [
        ChartSeries(
            name=name,
            points=tuple((count, curve.efficiency(of) or 0.0) for count, _, of in curve.points),
            hints=tuple(f"{of.name}: {percent(curve.efficiency(of))}" for *_, of in curve.points),
        )
        for name, curve in named
    ]
    ticks = sorted({count for curve in drawn for count, _, _ in curve.points})
    counts = Axis(label=scaled.many, log=True, base=2, ticks=tuple(ticks))
    against = f"efficiency against one {scaled.one}"
    share = Axis(label=against, format="percent", zero=True, better=HIGHER)
    spans = any(span for series in speeds for span in series.spans)
    return [
        LineChart(
            title=f"{shared or workload}: median images/sec over {scaled.many}",
            x=counts,
            y=Axis(label=f"median images/sec, all {scaled.many}", zero=True, better=HIGHER),
            series=(*speeds, *_reference_series(drawn, ticks)),
            note=f"A vertical stroke is the {ValuesByProcess.INTERVAL}." if spans else "",
        ),
        LineChart(
            title=f"{shared or workload}: scaling efficiency",
            x=counts,
            y=share,
            series=tuple(efficiencies),
        ),
    ]


def _reference_series(drawn: Sequence[ScalingCurve], counts: Sequence[float]) -> list[ChartSeries]:
    """Returns the line of linear scaling if all curves have the same base, otherwise nothing."""
    first, speed, base = drawn[0].points[0]
    if any(curve.base is not base for curve in drawn) or first >= counts[-1]:
        return []
    # On a logarithmic axis, the line is curved, so it has a point at each number.
    linear = tuple((many, speed * many / first) for many in counts)
    return [ChartSeries(name="linear scaling", points=linear, reference=True)]


def _row(curve: ScalingCurve, count: float, speed: float, group: RunGroup) -> Row:
    return {
        "configuration": curve.name,
        curve.scaled.many: numeric_cell(count, integer),
        "median images/sec": numeric_cell(speed),
        f"median images/sec per {curve.scaled.one}": numeric_cell(speed / count),
        "efficiency": numeric_cell(curve.efficiency(group), percent),
        "against": curve.base.name,
    }
