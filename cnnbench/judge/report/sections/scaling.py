"""Scaling: curves of configurations that differ only in the number of devices."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cnnbench.base.charts import HIGHER, Axis, ChartSeries, Lines
from cnnbench.base.document import Content, Row, Text, numeric, table
from cnnbench.base.text.numbers import integer, number, percent
from cnnbench.flags.declare import named, specs_of
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import Role
from cnnbench.judge.compare.configuration import labels
from cnnbench.judge.metrics.comparable_facts import GROUPS
from cnnbench.judge.report.results import (
    INTERVAL,
    Configured,
    ReportSubject,
    apart,
    by_family,
)
from cnnbench.records.prediction import Predictions

_FOLLOWING = frozenset(
    (
        *GROUPS["num_gpus"],
        *named(FLAGS, Role.ITEMS),
        "per_gpu_thread_count",
    )
)
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

    def efficiency(self, one: Configured) -> float | None:
        """Images/sec per device relative to that of the base."""
        speed, reference = one.throughput.median, self.base.throughput.median
        if not speed or not reference or not one.devices or not self.base.devices:
            return None
        return speed / one.devices / (reference / self.base.devices)


def curves(
    configured: Sequence[Configured], predictions: Sequence[Predictions] = ()
) -> list[Curve]:
    """Curves with at least two numbers of devices, including the base."""
    measured = [one for one in configured if one.throughput.values and one.devices]
    singles = {_key(one, _AGGREGATION): one for one in measured if one.devices == 1}
    found: dict[str, list[Configured]] = {}
    for one in measured:
        found.setdefault(_key(one), []).append(one)
    drawn = []
    for members in found.values():
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


def scaling(results: ReportSubject) -> Iterable[Content]:
    """Images/sec and efficiency over devices."""
    drawn = curves(results.configured, results.predictions)
    if not drawn:
        return
    text = (
        "Efficiency is images/sec per device over images/sec of one device in the same "
        "configuration, medians over processes; where a mode was not run on one device, one "
        "device in any mode, and where none was, the smallest number of devices. Batch sizes are "
        "per device (weak scaling)."
    )
    if any(curve.predicted for curve in drawn):
        text += " Predicted are a step of one device and, after it, the fastest reduction of "
        text += "cnnbench allreduce --predict, which no backward pass hides."
    yield text
    if any(one.device == "cpu" for curve in drawn for one in curve.members):
        message = "CPU devices are logical: n of them share the cores of a machine, and cannot be "
        message += "n times as fast. The cost of aggregation is the difference to 1/n."
        yield Text(message, "unsure")
    yield [
        chart
        for family in by_family(curve.members[0] for curve in drawn)
        for chart in _charts(family, [c for c in drawn if c.members[0].family == family])
    ]
    yield table(_row(curve, *point) for curve in drawn for point in _points(curve))


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
    speeds, efficiencies = [], []
    shared, names = apart([curve.name.split(", ") for curve in drawn])
    title = shared or family
    for curve, name in zip(drawn, names, strict=True):
        points = _points(curve)
        speeds.append(
            ChartSeries(
                name=name,
                points=tuple((devices, speed) for devices, speed, _ in points),
                hints=tuple(f"{one.name}: {number(speed)} images/sec" for _, speed, one in points),
                spans=tuple(one.throughput.interval for _, _, one in points),
            )
        )
        shares = [(devices, curve.efficiency(one) or 0.0, one.name) for devices, _, one in points]
        efficiencies.append(
            ChartSeries(
                name=name,
                points=tuple((devices, share) for devices, share, _ in shares),
                hints=tuple(f"{of}: {percent(share)}" for _, share, of in shares),
            )
        )
    spans = any(span for one in speeds for span in one.spans)
    seen = {one.devices or 1 for curve in drawn for one in (curve.base, *curve.members)}
    ticks = tuple(float(count) for count in sorted(seen))
    devices = Axis(label="devices", log=True, base=2, ticks=ticks)
    share = Axis(label="efficiency against one device", format="percent", zero=True, better=HIGHER)
    return [
        Lines(
            title=f"{title}: median images/sec over devices",
            x=devices,
            y=Axis(label="median images/sec, all devices", zero=True, better=HIGHER),
            series=(*speeds, *_references(drawn)),
            note=f"A vertical stroke is the {INTERVAL}." if spans else "",
        ),
        Lines(title=f"{title}: scaling efficiency", x=devices, y=share, series=tuple(efficiencies)),
    ]


def _references(drawn: Sequence[Curve]) -> list[ChartSeries]:
    """Linear and predicted scaling, if all curves have the same base."""
    base = drawn[0].base
    counts = sorted({one.devices or 1 for curve in drawn for one in (base, *curve.members)})
    most = counts[-1]
    speed, devices = base.throughput.median or 0.0, base.devices or 1
    if any(curve.base is not base for curve in drawn) or devices >= most:
        return []
    # On a logarithmic axis this is no straight line, so it has a point at each number of devices.
    linear = tuple((float(count), speed * count / devices) for count in counts)
    found = [ChartSeries(name="linear scaling", points=linear, reference=True)]
    for links, speeds in drawn[0].predicted.items():
        points = sorted({1: speed, **speeds}.items())
        shown = tuple((float(count), value) for count, value in points if count <= most)
        hints = tuple(f"predicted, {links}: {number(value)} images/sec" for _, value in shown)
        found.append(ChartSeries(name=f"predicted, {links}", points=shown, hints=hints))
    return found


def _points(curve: Curve) -> list[tuple[float, float, Configured]]:
    members = curve.members
    if curve.base is not members[0]:
        members = (curve.base, *members)
    return [
        (float(one.devices), one.throughput.median, one)
        for one in members
        if one.devices and one.throughput.median is not None
    ]


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
