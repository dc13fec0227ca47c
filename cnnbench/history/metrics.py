"""What can be followed over time: a value per process, its unit and its direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cnnbench.compare.measurement import RUN
from cnnbench.compare.reductions import ALLREDUCE, BUILD, COPY, PEER, Reduction
from cnnbench.metrics.registry import bandwidth, build
from cnnbench.sweep.metrics import METRICS as VALUES


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric.

    Attributes:
      name: as in --metric.
      unit: of the values.
      higher_is_better: direction.
      relative: changes are shares; where values may be zero or negative they are
        differences.
      threshold: smallest change that counts unless another is asked for.
      value: of a measurement; None if it does not hold one.
      kinds: of measurements that have it.
    """

    name: str
    unit: str
    higher_is_better: bool
    relative: bool
    threshold: float
    value: Callable[[Any], float | None]
    kinds: tuple[str, ...] = (RUN,)


def _metric(
    name: str,
    unit: str,
    *,
    higher: bool = True,
    relative: bool = True,
    threshold: float = 0.03,
) -> Metric:
    return Metric(
        name=name,
        unit=unit,
        higher_is_better=higher,
        relative=relative,
        threshold=threshold,
        value=VALUES[name],
    )


def _seconds(row: Reduction) -> float | None:
    return row.seconds


def _of_reductions(
    name: str,
    unit: str,
    value: Callable[[Any], float | None],
    kinds: tuple[str, ...],
    *,
    higher: bool = False,
    threshold: float = 0.03,
) -> Metric:
    return Metric(
        name=name,
        unit=unit,
        higher_is_better=higher,
        relative=True,
        threshold=threshold,
        value=value,
        kinds=kinds,
    )


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _metric("throughput", "images/sec"),
        _metric("images_per_sec", "images/sec"),
        _metric("total_images_per_sec", "images/sec"),
        _metric("step_seconds", "s", higher=False),
        _metric("mfu", "share of the peak"),
        _metric("achieved_flops_per_sec", "FLOP/s"),
        _metric("peak_memory_bytes", "bytes", higher=False, threshold=0.05),
        _metric("startup_seconds", "s", higher=False, threshold=0.2),
        Metric(
            name="joules_per_image",
            unit="J",
            higher_is_better=False,
            relative=True,
            threshold=0.03,
            value=lambda record: record.summary().joules_per_image,
        ),
        _metric("images_per_sec_jitter", "images/sec", higher=False, relative=False, threshold=0),
        _metric("input_wait_fraction", "share", higher=False, relative=False, threshold=0.02),
        _metric("top_1", "share", relative=False, threshold=0.005),
        _metric("top_5", "share", relative=False, threshold=0.005),
        _metric("final_loss", "loss", higher=False, relative=False, threshold=0),
        _of_reductions("bus_bandwidth", "GB/s", bandwidth, (ALLREDUCE, PEER), higher=True),
        _of_reductions("reduction_seconds", "s", _seconds, (ALLREDUCE, PEER)),
        _of_reductions("build_seconds", "s", build, (ALLREDUCE, BUILD, PEER), threshold=0.2),
        _of_reductions("copy_bandwidth", "GB/s", bandwidth, (COPY,), higher=True),
    )
}
"""By name. Values are those that bounds of sweeps are about (`cnnbench.sweep.metrics`);
throughput is what `cnnbench compare` judges, and thresholds are those of its policy where it
has one. Energy is no bound of sweeps. What follows after final_loss is of all-reduces, not of
runs."""
