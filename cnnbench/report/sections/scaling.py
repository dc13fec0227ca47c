"""Scaling: curves of configurations that differ only in the number of devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.charts import HIGHER, Axis, Lines, Series
from cnnbench.compare.configuration import labels
from cnnbench.flags.declare import specs_of
from cnnbench.flags.groups.variable_update import VariableUpdateParams
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
from cnnbench.report.results import Configured, Results, by_family
from cnnbench.text.numbers import percent

_FOLLOWING = frozenset(
    (
        *("num_gpus", "gpu_indices", "num_epochs", "num_intra_threads", "num_inter_threads"),
        *("datasets_num_private_threads", "per_gpu_thread_count", "worker_hosts", "ps_hosts"),
    )
)
"""Flags that follow from the number of devices."""

_AGGREGATION = frozenset(spec.name for spec in specs_of(VariableUpdateParams))
"""Flags of the aggregation; a single device aggregates nothing."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One configuration on several numbers of devices.

    Attributes:
      name: of the configuration without its devices.
      members: by number of devices, ascending.
      base: the reference of the efficiency: on one device if there is such a run.
    """

    name: str
    members: tuple[Configured, ...]
    base: Configured

    def efficiency(self, one: Configured) -> float | None:
        """Images/sec per device over that of the base."""
        speed, reference = one.throughput.median, self.base.throughput.median
        if not speed or not reference or not one.devices or not self.base.devices:
            return None
        return speed / one.devices / (reference / self.base.devices)


def curves(configured: Sequence[Configured]) -> list[Curve]:
    """The curves that can be drawn: at least two numbers of devices, counting the base."""
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
            drawn.append(Curve(_name(members), tuple(members), base))
    return drawn


def scaling(results: Results) -> Section | None:
    """Images/sec and efficiency over devices."""
    drawn = curves(results.configured)
    if not drawn:
        return None
    families = by_family([curve.members[0] for curve in drawn])
    charts = []
    for family in families:
        mine = [curve for curve in drawn if curve.members[0].family == family]
        charts += [_speeds(family, mine), _efficiencies(family, mine)]
    text = (
        "Efficiency is images/sec per device over images/sec of one device in the same "
        "configuration, medians over processes; where a mode was not run on one device, one "
        "device in any mode, and where none was, the smallest number of devices. Batch sizes are "
        "per device (weak scaling)."
    )
    logical = None
    if any(one.device == "cpu" for curve in drawn for one in curve.members):
        message = "CPU devices are logical: n of them share the cores of a machine, and cannot be "
        message += "n times as fast. The cost of aggregation is what efficiency lacks below 1/n."
        logical = Text(text=message, tone="unsure")
    return section(
        "scaling", "Scaling", Text(text=text), logical, Charts(charts=tuple(charts)), _table(drawn)
    )


def _key(one: Configured, without: frozenset[str] = frozenset()) -> str:
    ignored = _FOLLOWING | without
    flags = one.configuration.flags
    return json.dumps([(name, flags[name]) for name in sorted(flags) if name not in ignored])


def _name(members: Sequence[Configured]) -> str:
    last = members[-1]
    devices = f"{last.flag('num_gpus')} {last.device}"
    named = labels(one.configuration for one in members)[last.configuration.key]
    parts = [part for part in last.name.split(", ") if part != devices]
    return ", ".join(parts) or named


def _speeds(family: str, drawn: Sequence[Curve]) -> Lines:
    series = [
        Series(
            name=curve.name.removeprefix(f"{family}, "),
            points=tuple((devices, speed) for devices, speed, _ in _points(curve)),
            hints=tuple(f"{one.name}: {number(v).text} images/sec" for _, v, one in _points(curve)),
            spans=tuple(one.throughput.interval for _, _, one in _points(curve)),
        )
        for curve in drawn
    ]
    most = max(one.devices or 1 for curve in drawn for one in curve.members)
    bases = {curve.base.configuration.key: curve.base for curve in drawn}
    base = drawn[0].base
    speed, devices = base.throughput.median or 0.0, base.devices or 1
    if len(bases) == 1 and devices < most:
        ideal = ((float(devices), speed), (float(most), speed * most / devices))
        series.append(Series(name="linear scaling", points=ideal, reference=True))
    return Lines(
        title=f"{family}: images/sec over devices",
        x=_devices_axis(drawn),
        y=Axis(label="images/sec, all devices", zero=True, better=HIGHER),
        series=tuple(series),
    )


def _efficiencies(family: str, drawn: Sequence[Curve]) -> Lines:
    series = []
    for curve in drawn:
        points = [
            (devices, value, f"{one.name}: {percent(value)}")
            for devices, _, one in _points(curve)
            if (value := curve.efficiency(one)) is not None
        ]
        series.append(
            Series(
                name=curve.name.removeprefix(f"{family}, "),
                points=tuple((devices, value) for devices, value, _ in points),
                hints=tuple(hint for _, _, hint in points),
            )
        )
    return Lines(
        title=f"{family}: scaling efficiency",
        x=_devices_axis(drawn),
        y=Axis(label="efficiency against one device", format="percent", zero=True, better=HIGHER),
        series=tuple(series),
    )


def _points(curve: Curve) -> list[tuple[float, float, Configured]]:
    members = curve.members
    if curve.base is not members[0]:
        members = (curve.base, *members)
    return [
        (float(one.devices), one.throughput.median, one)
        for one in members
        if one.devices and one.throughput.median is not None
    ]


def _devices_axis(drawn: Sequence[Curve]) -> Axis:
    seen = {one.devices or 1 for curve in drawn for one in (curve.base, *curve.members)}
    ticks = tuple(float(count) for count in sorted(seen))
    return Axis(label="devices", log=True, base=2, ticks=ticks)


def _table(drawn: Sequence[Curve]) -> Table:
    rows = []
    for curve in drawn:
        for devices, speed, one in _points(curve):
            efficiency = curve.efficiency(one)
            rows.append(
                (
                    text_cell(curve.name),
                    number(devices, f"{devices:g}"),
                    number(speed),
                    number(speed / devices),
                    number(efficiency, percent),
                    text_cell(curve.base.name),
                )
            )
    columns = (
        Column("configuration"),
        Column("devices", number=True),
        Column("median images/sec", number=True),
        Column("median images/sec per device", number=True),
        Column("efficiency", number=True),
        Column("against"),
    )
    return table(columns, rows)
