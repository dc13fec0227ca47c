"""Documents of roofline, tune and of a profile, of processes that never ran."""

from __future__ import annotations

import dataclasses
from typing import Any

from step_profiles import Profiles

from cnnbench.records.campaigns import RefusedCandidate, TuneDocument, TuneRow
from cnnbench.records.profiles import (
    FORWARD,
    INPUT_OPERATIONS,
    OUTSIDE,
    REDUCTION,
    REST,
    TO_KERNEL,
    UPDATE,
    ProfiledSpan,
)
from cnnbench.records.roofline import Machine, Roofline, RooflineRow
from cnnbench.records.run import RunRecord

SWEEP = {
    **{"suite": "throughput", "case": "a", "key": "0" * 12, "repeat": 1, "seed": 1},
    "command": ["cnnbench", "sweep", "throughput", "--", "--device=cpu"],
}
MACHINE = Machine(2e12, 4e10, "measured: 2048 x 2048 product, float32", "measured: copies")
CONVOLUTION = "convolution 5x5"
ROWS = (
    RooflineRow("conv0", CONVOLUTION, "kernel gradient", 0.03, 24 * 10**9, 10**7, 0.012, 0.375),
    RooflineRow("conv0", CONVOLUTION, "forward", 0.02, 24 * 10**9, 10**7, 0.012, 0.25),
    RooflineRow("pool0", "pooling", "forward", 0.01, 0, 3 * 10**8, 0.0075, 0.125),
    RooflineRow("step", "update", "step", 0.005, 0, 10**8, 0.0025, 0.0625),
)


def roofline(run: RunRecord, **parts: Any) -> Roofline:
    """A roofline of a run; its bound is 34 ms per step."""
    values: dict[str, Any] = {
        "rows": ROWS,
        "machine": MACHINE,
        "step_seconds": 0.08,
        "unprofiled_step_seconds": 0.078,
        "run": run,
    }
    return Roofline(**{**values, **parts})


def _tune_rows(given: tuple[str, ...], best: tuple[str, ...]) -> tuple[TuneRow, ...]:
    """The winner, the flags as given, one that left and one that was not tried."""
    return (
        TuneRow(
            candidate="variable_update=replicated",
            flags=best,
            group="modes",
            processes=8,
            images_per_sec=224.0,
            gain=0.13,
            low=0.10,
            high=0.16,
        ),
        TuneRow(
            candidate="as given",
            flags=given,
            group="modes",
            processes=8,
            images_per_sec=200.0,
            gain=0.0,
        ),
        TuneRow(
            candidate="precision=bf16",
            flags=(*given, "--precision=bf16"),
            changes=("precision",),
            group="formats",
            processes=3,
            images_per_sec=150.0,
            gain=-0.25,
            low=-0.3,
            high=-0.2,
            left="slower",
            after=3,
            reason="by 25 %",
        ),
        TuneRow(candidate="xla=true", flags=given, left="untried", reason="no time for it"),
    )


def tuning(**parts: Any) -> TuneDocument:
    """A search that proved replicated variables, 12 % faster than the flags as given."""
    given = ("--model=lenet", "--num_gpus=2")
    best = (*given, "--variable_update=replicated")
    refused = RefusedCandidate(group="modes", candidate="all_reduce_spec=nccl", reason="no GPU")
    values: dict[str, Any] = {
        "started_at": "2026-01-02T03:04:05+00:00",
        "search_command": ("cnnbench", "tune", *given),
        "command": ("cnnbench", *best),
        "verdict": "faster",
        "reason": "",
        "leader": "variable_update=replicated",
        "gain": 0.12,
        "low": 0.1,
        "high": 0.14,
        "confidence": 0.95,
        "pairs": 12,
        "given": given,
        "seed": 1,
        "seconds": 500.0,
        "budget_seconds": 600.0,
        "scatter": 0.02,
        "failure": "",
        "rows": _tune_rows(given, best),
        "refused": (refused,),
    }
    return TuneDocument(**{**values, **parts})


def spans():
    """A layer on two devices, the reduction of its gradients, an update and the input."""
    parts = (
        ("cpu:0", "conv0", "convolution 3x3", FORWARD, 0.0, 0.010),
        ("cpu:1", "conv0", "convolution 3x3", TO_KERNEL, 0.0, 0.012),
        ("cpu:0", REST, REDUCTION, OUTSIDE, 0.012, 0.014),
        ("cpu:0", REST, UPDATE, OUTSIDE, 0.014, 0.015),
        ("", *INPUT_OPERATIONS, 0.001, 0.004),
    )
    names = ("device", "layer", "kind", "direction", "start", "end")
    return tuple(ProfiledSpan(**dict(zip(names, one, strict=True))) for one in parts)


def step_profile(full_runs, **parts):
    record = full_runs(100)
    made = Profiles(lambda flags, step_seconds: record)()
    return dataclasses.replace(made, **{"timeline": spans(), **parts})
