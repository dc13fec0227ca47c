"""The metrics by which measurements are judged. Registers those of all-reduces;
`cnnbench.records.metrics` contains the metrics of runs.
"""

from __future__ import annotations

from collections.abc import Container
from operator import attrgetter, itemgetter
from typing import Any

from cnnbench.judge.metrics.measurement import ALL_REDUCE, BUILD, COPY, PEER, MeasuredReduction
from cnnbench.records.metric import ALL, FASTER, METRICS, QUICKER, Metric, register_metric

ALL.load_own()
THROUGHPUT, STARTUP, CPU_TIME = (METRICS[name] for name in ("throughput", "startup", "cpu_time"))
_GIGA = 1e9


def _gb_per_sec(row: MeasuredReduction) -> float | None:
    """Returns the bus bandwidth in GB/s; for a memory copy, what all devices write together."""
    return None if row.bytes_per_sec is None else row.bytes_per_sec / _GIGA


def _register_bandwidth(
    name: str, about: str, measurement_kind: str, *other_kinds: str, **rules: Any
) -> Metric:
    """Registers the bandwidth of measurements of kind `measurement_kind` as a metric, which is
    judged if --metrics contains the throughput.
    """
    rules |= {
        "about": about,
        "kinds": (measurement_kind, *other_kinds),
        "judged": {measurement_kind: THROUGHPUT.name},
        **FASTER,
    }
    register_metric(name, "GB/s", **rules)(_gb_per_sec)
    return ALL[name]


def _register_build_time(name: str, unit: str, **rules: Any) -> None:
    rules |= {"about": "Tracing of the reduction and its first call", **QUICKER}
    build = attrgetter("build_seconds")
    register_metric(name, unit, threshold=STARTUP.threshold, **rules)(build)


BUS_BANDWIDTH = _register_bandwidth(
    "bus_bandwidth", "Bus bandwidth of the median reduction", ALL_REDUCE, PEER, gates=True
)
_BOTH: dict[str, Any] = {"kinds": (ALL_REDUCE, PEER), "judged": {}, **QUICKER}
register_metric("reduction_seconds", "s", about="The median reduction", **_BOTH)(
    attrgetter("seconds")
)
_register_build_time("build_seconds", "s", kinds=(ALL_REDUCE, BUILD, PEER), judged={})
_register_build_time(
    "build",
    "seconds",
    kinds=(ALL_REDUCE, BUILD),
    judged=dict.fromkeys((ALL_REDUCE, BUILD), STARTUP.name),
    followed=False,
)
_register_bandwidth("peer_bandwidth", "Bus bandwidth of another library", PEER, followed=False)
_register_bandwidth("copy_bandwidth", "Bytes that all devices write together", COPY)

SPEEDS = (THROUGHPUT, BUS_BANDWIDTH)
"""The main metrics of runs and all-reduces. Comparisons report their geometric means."""

DEFAULT_METRICS = tuple(name for name, metric in METRICS.items() if metric.by_default)
"""The default of --metrics."""


def metrics_to_judge(names: Container[str], kinds: Container[str]) -> tuple[Metric, ...]:
    """Returns the metrics by which measurements of the given kinds are judged, if --metrics
    contains `names`.

    The metrics are in the order of `METRICS`. The order of the names has no effect.
    """
    places = {name: place for place, name in enumerate(METRICS)}
    ranked = [
        (min(places[name] for name in own), metric)
        for metric in ALL.values()
        if (
            own := {name for kind, name in metric.judged.items() if kind in kinds and name in names}
        )
    ]
    return tuple(metric for _, metric in sorted(ranked, key=itemgetter(0)))
