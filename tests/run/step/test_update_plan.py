"""Where loss scale, mean, decay and clipping of an update are, for each kind of run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from cnnbench.flags import Params
from cnnbench.run.driver.plan import make_plan
from cnnbench.run.step.update_plan import UpdatePlan

DECAY = 0.25
SUM_IN_RATE = {"reduction": "sum", "rate_factor": 1 / 4, "decay": 4 * DECAY, "fused": True}
MEAN = {"reduction": "mean", "rate_factor": 1.0, "decay": DECAY}
REPLICATED = {"variable_update": "replicated"}
RELAXED = {"variable_consistency": "relaxed"}
ASYNCHRONOUS = {
    **{"job_name": "worker", "worker_hosts": "a:1,b:1", "ps_hosts": "c:1", "num_gpus": 2},
    "cross_replica_sync": False,
}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the learning rate has the mean of plain descent": ({}, SUM_IN_RATE),
    "so it has with copies": (REPLICATED, SUM_IN_RATE),
    "a sum is a sum": ({"gradient_reduction": "sum"}, {**SUM_IN_RATE, "rate_factor": 1.0}),
    "state would hold the sum": ({"optimizer": "momentum"}, {**MEAN, "fused": False}),
    "clipping would cut the sum": ({"gradient_clip": 1.0}, {**MEAN, "fused": False, "clip": 1.0}),
    "16 bits would overflow": (
        {**REPLICATED, "precision": "fp16", "compact_gradient_transfer": True},
        {**MEAN, "fused": True},
    ),
    "so would variables of 16 bits": (
        {"precision": "fp16", "fp16_vars": True},
        {**MEAN, "fused": True},
    ),
    "a strategy takes the mean": (
        {"variable_update": "mirrored_strategy"},
        {**MEAN, "fused": True},
    ),
    "independent towers have no sum": (
        {"variable_update": "independent", "gradient_reduction": "sum"},
        {"reduction": "sum", "rate_factor": 1.0, "decay": DECAY, "fused": True},
    ),
    "each tower completes what waits for a step": (
        {**REPLICATED, **RELAXED},
        {**SUM_IN_RATE, "decay": DECAY, "deferred": True, "fused": False},
    ),
    "one copy has no gradients that wait": (RELAXED, SUM_IN_RATE),
    "staged weights are not those before the update": (
        {"staged_vars": True},
        {**SUM_IN_RATE, "fused": False},
    ),
    "workers on their own have towers of their own": (ASYNCHRONOUS, {**MEAN, "fused": True}),
    "and their sum": (
        {**ASYNCHRONOUS, "gradient_reduction": "sum"},
        {"reduction": "sum", "rate_factor": 1.0, "decay": 2 * DECAY, "fused": True},
    ),
    "without decay there is none": ({"weight_decay": 0.0}, {**SUM_IN_RATE, "decay": 0.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_plan_of(case: str) -> None:
    flags, expected = CASES[case]
    own = {"model": "lenet", "num_gpus": 4, "device": "cpu", "weight_decay": DECAY, **flags}
    plan = make_plan(Params(**own)).update
    assert plan == UpdatePlan(**{"weight_decay": own["weight_decay"], "clip": None, **expected})


@pytest.mark.parametrize(
    ("plan", "device", "dtype", "fuses"),
    [
        (UpdatePlan(fused=True), "CPU", tf.float32, True),
        (UpdatePlan(fused=True), "GPU", tf.float32, False),
        (UpdatePlan(fused=True), "CPU", tf.float16, False),
        (UpdatePlan(), "CPU", tf.float32, False),
    ],
)
def test_there_is_an_update_with_decay_for_float32_on_cpus(
    plan: UpdatePlan, device: str, dtype: tf.DType, fuses: bool
) -> None:
    variable = SimpleNamespace(device=f"/job:localhost/device:{device}:0", dtype=dtype)
    assert plan.fuses(variable) is fuses
