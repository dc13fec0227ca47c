"""What a bound can be about: one number per run, taken from its record."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from cnnbench.metrics.registry import startup, throughput
from cnnbench.records.run import RunRecord

Metric = Callable[[RunRecord], float | None]


def _summary(name: str) -> Metric:
    def read(record: RunRecord) -> float | None:
        value = getattr(record.summary(), name)
        return None if value is None else float(value)

    return read


def _evaluation(name: str) -> Metric:
    def read(record: RunRecord) -> float | None:
        return float(getattr(record.evaluations[-1], name)) if record.evaluations else None

    return read


def _step_seconds(record: RunRecord) -> float | None:
    return statistics.median(record.step_seconds) if record.step_seconds else None


def _final_loss(record: RunRecord) -> float | None:
    return record.losses[-1] if record.losses else None


METRICS: Mapping[str, Metric] = {
    "throughput": throughput,
    **{
        name: _summary(name)
        for name in (
            "images_per_sec",
            "total_images_per_sec",
            "images_per_sec_jitter",
            "achieved_flops_per_sec",
            "mfu",
            "input_wait_fraction",
            "peak_memory_bytes",
        )
    },
    "step_seconds": _step_seconds,
    "startup_seconds": startup,
    "final_loss": _final_loss,
    "top_1": _evaluation("top_1"),
    "top_5": _evaluation("top_5"),
}
"""By name; a value is None where a run did not measure it.

throughput is images/sec at the median step, or of the evaluations of an evaluating run, and
startup_seconds the way to the end of the first step, both as ``cnnbench compare`` takes them.
The names of `cnnbench.records.run.Summary` mean what they mean there. step_seconds is the median
step, final_loss that of the last timed step, top_1 and top_5 are of the last evaluation.
"""
