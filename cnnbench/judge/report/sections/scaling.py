"""Scaling: curves of configurations that differ only in the number of devices."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cnnbench.base.charts import HIGHER, Axis, ChartSeries, Lines
from cnnbench.base.document import Content, Row, Text, introduced, numeric, table
from cnnbench.base.grouping import grouped
from cnnbench.base.text.numbers import integer, number, percent
from cnnbench.flags.declare import named, specs_of
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import Role
from cnnbench.judge.compare.configuration import labels
from cnnbench.judge.metrics.comparable_facts import GROUPS
from cnnbench.judge.report.results import Configured, ProcessValues, ReportSubject, apart
from cnnbench.records.prediction import Predictions

_FOLLOWING = frozenset((*GROUPS["num_gpus"], *named(FLAGS, Role.ITEMS), "per_gpu_thread_count"))
"""Flags that follow from the number of devices."""

_AGGREGATION = frozenset(spec.name for spec in specs_of(VariableUpdateParams))
"""Flags of the aggregation, unused on a single device."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One configuration on several numbers of devices, ascending.

    Attributes:
      base: reference of the efficiency, on one device if possible.
      predicted: images/sec by the links of a prediction and the number of devices.
    """

    name: str
    members: tuple[Configured, ...]
    base: Configured
    predicted: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def points(self) -> list[tuple[float, float, Configured]]:
        """Devices and images/sec of the base and of the members."""
        each = dict.fromkeys((self.base, *self.members))
        return [(float(one.devices or 1), one.throughput.median or 0.0, one) for one in each]

    def efficiency(self, one: Configured) -> float | None:
        """Images/sec per device relative to that of the base."""
        each = [(of.throughput.median or 0.0) / (of.devices or 1) for of in (one, self.base)]
        return each[0] / each[1] if all(each) else None


def curves(
    configured: Sequence[Configured], predictions: Sequence[Predictions] = ()
) -> list[Curve]:
    """Curves with at least two numbers of devices, including the base."""
    measured = [one for one in configured if one.throughput.values and one.devices]
    singles = {_key(one, _AGGREGATION): one for one in measured if one.devices == 1}
    drawn = []
    for members in grouped(measured, _key).values():
        members.sort(key=lambda one: one.devices or 0)
        base = members[0]
        if base.devices != 1:
            # All modes are equal on one device.
            base = singles.get(_key(base, _AGGREGATION), base)
        if len({one.devices for one in (base, *members)}) > 1:
            predicted = _predicted(base, predictions)
            drawn.append(Curve(_name(members), tuple(members), base, predicted))
    return drawn


def _predicted(
    base: Configured, predictions: Iterable[Predictions]
) -> Mapping[str, Mapping[int, float]]:
    """`Curve.predicted`: a step of one device, and after it the fastest reduction."""
    speed = base.throughput.median
    images = next((one.batch.global_ for one in base.good if one.batch is not None), None)
    if not speed or not images or base.devices != 1 or base.work != "training":
        return {}
    found: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in (row for one in predictions if one.model == base.model for row in one.rows):
        if row.allreduce_seconds is not None:
            new = images * row.devices / (images / speed + row.allreduce_seconds)
            of_links = found[row.parameters]
            of_links[row.devices] = max(new, of_links.get(row.devices, 0.0))
    return found


@introduced
def scaling(results: ReportSubject) -> Iterable[Content]:
    """Efficiency is images/sec per device over images/sec of one device in the same configuration,
    medians over processes; where a mode was not run on one device, one device in any mode, and
    where none was, the smallest number of devices. Batch sizes are per device (weak scaling).
    """
    drawn = curves(results.configured, results.predictions)
    if any(curve.predicted for curve in drawn):
        yield (
            "Predicted are a step of one device and, after it, the fastest reduction of cnnbench "
            "allreduce --predict, which no backward pass hides."
        )
    if any(one.device == "cpu" for curve in drawn for one in curve.members):
        message = "CPU devices are logical: n of them share the cores of a machine, and cannot be "
        message += "n times as fast. The cost of aggregation is the difference to 1/n."
        yield Text(message, "unsure")
    families = grouped(drawn, lambda curve: curve.members[0].family)
    yield [chart for family in families.items() for chart in _charts(*family)]
    yield table(_row(curve, *point) for curve in drawn for point in curve.points)


def _key(one: Configured, without: frozenset[str] = frozenset()) -> str:
    ignored = _FOLLOWING | without
    flags = one.configuration.flags
    kept = [(name, flags[name]) for name in sorted(flags) if name not in ignored]
    return json.dumps([kept, repr(one.origin)])


def _name(members: Sequence[Configured]) -> str:
    last = members[-1]
    devices = f"{last.flag('num_gpus')} {last.device}"
    named = labels(one.configuration for one in members)[last.configuration.key]
    parts = [part for part in last.name.split(", ") if part != devices]
    return ", ".join(parts) or named


def _charts(family: str, drawn: Sequence[Curve]) -> list[Lines]:
    shared, names = apart([curve.name.split(", ") for curve in drawn])
    named = [*zip(names, drawn, strict=True)]
    speeds = [
        ChartSeries(
            name=name,
            points=tuple((devices, speed) for devices, speed, _ in curve.points),
            hints=tuple(f"{of.name}: {number(speed)} images/sec" for _, speed, of in curve.points),
            spans=tuple(one.throughput.interval for _, _, one in curve.points),
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
    spans = any(span for one in speeds for span in one.spans)
    return [
        Lines(
            title=f"{shared or family}: median images/sec over devices",
            x=devices,
            y=Axis(label="median images/sec, all devices", zero=True, better=HIGHER),
            series=(*speeds, *_references(drawn, ticks)),
            note=f"A vertical stroke is the {ProcessValues.INTERVAL}." if spans else "",
        ),
        Lines(
            title=f"{shared or family}: scaling efficiency",
            x=devices,
            y=share,
            series=tuple(efficiencies),
        ),
    ]


def _references(drawn: Sequence[Curve], devices: Sequence[float]) -> list[ChartSeries]:
    """Linear and predicted scaling, if all curves have the same base."""
    first, speed, base = drawn[0].points[0]
    if any(curve.base is not base for curve in drawn) or first >= devices[-1]:
        return []
    # On a logarithmic axis this is no straight line, so it has a point at each number of devices.
    linear = tuple((many, speed * many / first) for many in devices)
    found = [ChartSeries(name="linear scaling", points=linear, reference=True)]
    for links, speeds in drawn[0].predicted.items():
        points = sorted({1: speed, **speeds}.items())
        shown = tuple((float(count), value) for count, value in points if count <= devices[-1])
        hints = tuple(f"predicted, {links}: {number(value)} images/sec" for _, value in shown)
        found.append(ChartSeries(name=f"predicted, {links}", points=shown, hints=hints))
    return found


def _row(curve: Curve, devices: float, speed: float, one: Configured) -> Row:
    predicted = [of[int(devices)] for of in curve.predicted.values() if devices in of]
    texts = " or ".join(map(number, predicted))
    return {
        "configuration": curve.name,
        "devices": numeric(devices, integer),
        "median images/sec": numeric(speed),
        "median images/sec per device": numeric(speed / devices),
        "predicted images/sec": numeric(max(predicted, default=None), texts),
        "efficiency": numeric(curve.efficiency(one), percent),
        "against": curve.base.name,
    }
