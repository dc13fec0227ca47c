"""Metrics that commands offer: those of runs (`cnnbench.records.metrics`) and of reductions."""

from __future__ import annotations

from collections.abc import Container
from operator import attrgetter, itemgetter
from typing import Any

from cnnbench.judge.metrics.measurement import (
    ALL_REDUCE,
    BUILD,
    COPY,
    PEER,
    MeasuredReduction,
)
from cnnbench.records.metric import (
    ALL,
    BOUNDS,
    FASTER,
    HISTORY,
    METRICS,
    QUICKER,
    Metric,
    load_metrics,
    register_metric,
)

__all__ = ["ALL", "BOUNDS", "HISTORY", "METRICS", "Metric"]

load_metrics()
THROUGHPUT, STARTUP, CPU_TIME = (METRICS[name] for name in ("throughput", "startup", "cpu_time"))
_GIGA = 1e9


def _bandwidth(row: MeasuredReduction) -> float | None:
    """Bus bandwidth in GB/s; of a copy, what all devices write together."""
    return None if row.bytes_per_sec is None else row.bytes_per_sec / _GIGA


def _speed(name: str, about: str, of: str, *others: str, **rules: Any) -> Metric:
    """A bandwidth, by which compare judges measurements of a kind as their throughput."""
    rules |= {"about": about, "kinds": (of, *others), "judged": {of: THROUGHPUT.name}, **FASTER}
    register_metric("GB/s", name=name, **rules)(_bandwidth)
    return ALL[name]


def _build(unit: str, **rules: Any) -> None:
    rules |= {"about": "Tracing of the reduction and its first call", **QUICKER}
    register_metric(unit, threshold=STARTUP.threshold, **rules)(attrgetter("build_seconds"))


BUS_BANDWIDTH = _speed(
    "bus_bandwidth", "Bus bandwidth of the median reduction", ALL_REDUCE, PEER, gates=True
)
_BOTH: dict[str, Any] = {"kinds": (ALL_REDUCE, PEER), "judged": {}, **QUICKER}
register_metric("s", name="reduction_seconds", about="The median reduction", **_BOTH)(
    attrgetter("seconds")
)
_build("s", name="build_seconds", kinds=(ALL_REDUCE, BUILD, PEER), judged={})
_build(
    "seconds",
    name="build",
    kinds=(ALL_REDUCE, BUILD),
    judged=dict.fromkeys((ALL_REDUCE, BUILD), STARTUP.name),
    followed=False,
)
_speed("peer_bandwidth", "Bus bandwidth of another library", PEER, followed=False)
_speed("copy_bandwidth", "Bytes that all devices write together", COPY)

SPEEDS = (THROUGHPUT, BUS_BANDWIDTH)
"""The main metrics of runs and all-reduces; their changes have a geometric mean."""

DEFAULT_METRICS = tuple(name for name, metric in METRICS.items() if metric.by_default)
"""The default of --metrics."""


def judged(names: Container[str], kinds: Container[str]) -> tuple[Metric, ...]:
    """Metrics by which compare judges measurements of these kinds, by their names in --metrics.

    They are in the order of `METRICS`: that of the names changes nothing.
    """
    places = {name: place for place, name in enumerate(METRICS)}
    found = [
        (min(places[name] for name in own), metric)
        for metric in ALL.values()
        if (
            own := {name for kind, name in metric.judged.items() if kind in kinds and name in names}
        )
    ]
    return tuple(metric for _, metric in sorted(found, key=itemgetter(0)))
