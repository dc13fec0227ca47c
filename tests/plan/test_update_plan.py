"""Plans of updates that the trained weights do not tell apart.

tests/test_variable_update_oracle.py and test_saved_updates.py have the others. Tests
`cnnbench/plan/setup.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cnnbench.flags import Params
from cnnbench.plan import make_plan
from cnnbench.plan.setup import VariableUpdatePlan

DECAY = 0.25
MEAN = {"reduction": "mean", "rate_factor": 1.0, "decay": DECAY}
ASYNCHRONOUS = {
    **{"job_name": "worker", "worker_hosts": "a:1,b:1", "ps_hosts": "c:1", "num_gpus": 2},
    "cross_replica_sync": False,
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a sum may overflow variables of 16 bits": (
        {"precision": "fp16", "fp16_vars": True, "compact_gradient_transfer": False},
        MEAN,
    ),
    "one copy has no gradients that wait": (
        {"variable_consistency": "relaxed"},
        {"reduction": "sum", "rate_factor": 1 / 4, "decay": 4 * DECAY, "fused": True},
    ),
    "no decay is in no update": (
        {"weight_decay": 0.0},
        {"reduction": "sum", "rate_factor": 1 / 4, "weight_decay": 0.0},
    ),
    "staged weights decay as they were": (
        {"staged_vars": True},
        {"reduction": "sum", "rate_factor": 1 / 4, "decay": 4 * DECAY},
    ),
    "clipped gradients have decay": (
        {"gradient_clip": 1.0},
        {**MEAN, "clip": {"gradient_clip": 1.0}},
    ),
    "a strategy may reduce": (
        {"variable_update": "mirrored_strategy"},
        {**MEAN, "fused": True},
    ),
    "a strategy may do everything": ({"variable_update": "central_storage_strategy"}, MEAN),
    "other optimizers take gradients with decay": ({"optimizer": "momentum"}, MEAN),
    "optimizers may decay weights themselves, alike for a sum": (
        {"optimizer": "lion", "gradient_reduction": "sum"},
        {"reduction": "sum", "weight_decay": 0.0, "decoupled_decay": DECAY},
    ),
    "workers on their own have towers of their own": (ASYNCHRONOUS, MEAN),
    "and their sum": (
        {**ASYNCHRONOUS, "gradient_reduction": "sum"},
        {"reduction": "sum", "rate_factor": 1.0, "decay": 2 * DECAY},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_plan_of(case):
    flags, expected = CASES[case]
    own = {"model": "lenet", "num_gpus": 4, "device": "cpu", "weight_decay": DECAY, **flags}
    plan = VariableUpdatePlan(**{"weight_decay": DECAY, **expected})
    assert make_plan(Params(**own)).exchange.update == plan
