"""Where loss scale, mean, decay and clipping of an update are, for each kind of run."""

from __future__ import annotations

from typing import Any

import pytest

from cnnbench.flags import Params
from cnnbench.run.driver.plan import make_plan
from cnnbench.run.step.update_plan import UpdatePlan

DECAY = 0.25
SUM_IN_RATE = {"reduction": "sum", "rate_factor": 1 / 4, "decay": 4 * DECAY}
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
    "state would hold the sum": ({"optimizer": "momentum"}, MEAN),
    "clipping would cut the sum": ({"gradient_clip": 1.0}, {**MEAN, "clip": 1.0}),
    "16 bits would overflow": (
        {**REPLICATED, "precision": "fp16", "compact_gradient_transfer": True},
        MEAN,
    ),
    "so would variables of 16 bits": (
        {"precision": "fp16", "fp16_vars": True},
        MEAN,
    ),
    "a strategy takes the mean": (
        {"variable_update": "mirrored_strategy"},
        MEAN,
    ),
    "independent towers have no sum": (
        {"variable_update": "independent", "gradient_reduction": "sum"},
        {"reduction": "sum", "rate_factor": 1.0, "decay": DECAY},
    ),
    "each tower completes what waits for a step": (
        {**REPLICATED, **RELAXED},
        {**SUM_IN_RATE, "decay": DECAY, "deferred": True},
    ),
    "one copy has no gradients that wait": (RELAXED, SUM_IN_RATE),
    "staged weights are not those before the update": (
        {"staged_vars": True},
        SUM_IN_RATE,
    ),
    "workers on their own have towers of their own": (ASYNCHRONOUS, MEAN),
    "and their sum": (
        {**ASYNCHRONOUS, "gradient_reduction": "sum"},
        {"reduction": "sum", "rate_factor": 1.0, "decay": 2 * DECAY},
    ),
    "without decay there is none": ({"weight_decay": 0.0}, {**SUM_IN_RATE, "decay": 0.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_plan_of(case):
    flags, expected = CASES[case]
    own = {"model": "lenet", "num_gpus": 4, "device": "cpu", "weight_decay": DECAY, **flags}
    plan = make_plan(Params(**own)).update
    assert plan == UpdatePlan(**{"weight_decay": own["weight_decay"], "clip": None, **expected})
