"""Plans of updates that the trained weights do not tell apart.

tests/test_variable_update_oracle.py and test_saved_updates.py have the others. Tests
`cnnbench/plan/setup.py` and `cnnbench/flags/facts.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cnnbench.flags import Params
from cnnbench.flags.facts import NumericsPlan
from cnnbench.optimizers import OPTIMIZERS
from cnnbench.plan import check_flags, make_plan
from cnnbench.plan.setup import VariableUpdatePlan, card_numbers, gpu_numbers

DECAY = 0.25
MEAN = {"reduction": "mean", "rate_factor": 1.0, "decay": DECAY}
ASYNCHRONOUS = {
    **{"job_name": "worker", "worker_hosts": "a:1,b:1", "ps_hosts": "c:1", "num_gpus": 2},
    "cross_replica_sync": False,
}
SUM = {"reduction": "sum", "rate_factor": 1 / 4, "decay": 4 * DECAY, "fused": True}
REPLICATED = {"variable_update": "replicated"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a mean is a sum with a smaller rate": (REPLICATED, SUM),
    "a sum that is asked for has the whole rate": (
        {**REPLICATED, "gradient_reduction": "sum"},
        {**SUM, "rate_factor": 1.0},
    ),
    "gradients of the step before have their own decay": (
        {**REPLICATED, "variable_consistency": "relaxed"},
        {**SUM, "decay": DECAY, "deferred": True, "fused": False},
    ),
    "compact gradients are divided before their sum": (
        {**REPLICATED, "precision": "bf16"},
        {**MEAN, "fused": True},
    ),
    "a sum of other optimizers' gradients": (
        {"optimizer": "momentum", "gradient_reduction": "sum"},
        {**SUM, "rate_factor": 1.0, "fused": False},
    ),
    "a sum may overflow variables of 16 bits": (
        {"precision": "fp16", "fp16_vars": True, "compact_gradient_transfer": False},
        MEAN,
    ),
    "one copy has no gradients that wait": ({"variable_consistency": "relaxed"}, SUM),
    "no decay is in no update": (
        {"weight_decay": 0.0},
        {"reduction": "sum", "rate_factor": 1 / 4, "weight_decay": 0.0},
    ),
    "staged weights decay as they were": ({"staged_vars": True}, {**SUM, "fused": False}),
    "clipped gradients have decay": (
        {"gradient_clip": 1.0},
        {**MEAN, "clip": {"gradient_clip": 1.0}},
    ),
    "a strategy may reduce": ({"variable_update": "mirrored_strategy"}, {**MEAN, "fused": True}),
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


@pytest.mark.parametrize(
    ("flags", "exchanges", "reduces"),
    [
        (REPLICATED, True, True),
        ({**REPLICATED, "num_gpus": 1}, False, False),
        ({**REPLICATED, "forward_only": True}, False, False),
        ({"variable_update": "parameter_server"}, True, False),
    ],
)
def test_towers_of_a_training_exchange_gradients(flags, exchanges, reduces):
    plan = check_flags(Params(**{"model": "lenet", "num_gpus": 2, **flags})).exchange
    assert (plan.exchanges, plan.reduces) == (exchanges, reduces)
    assert (plan.running is not None) == reduces


FP32: dict[str, Any] = {
    **{"dtype": "float32", "loss_scale": 1.0, "scale_doubles_after": None},
    **{"frozen": False, "optimizer_spec": OPTIMIZERS["sgd"]},
}
FP16 = {"precision": "fp16"}
IN_16 = {"dtype": "float16", "loss_scale": 128.0}
AUTO = {"fp16_enable_auto_loss_scale": True, "fp16_inc_loss_scale_every_n": 5}
FROZEN = {"forward_only": True, "freeze_when_forward_only": True}


@pytest.mark.parametrize(
    ("flags", "expected", "activation_bytes"),
    [
        ({}, {}, 4),
        ({"optimizer": "adam"}, {"optimizer_spec": OPTIMIZERS["adam"]}, 4),
        ({"fp16_loss_scale": 9, **AUTO}, {}, 4),
        ({"precision": "bf16"}, {"dtype": "bfloat16"}, 2),
        (FP16, IN_16, 2),
        ({**FP16, "fp16_loss_scale": 9}, {**IN_16, "loss_scale": 9.0}, 2),
        ({**FP16, **AUTO}, {**IN_16, "scale_doubles_after": 5}, 2),
        ({**FP16, **AUTO, "forward_only": True}, IN_16, 2),
        ({"freeze_when_forward_only": True}, {}, 4),
        ({"forward_only": True}, {}, 4),
        (FROZEN, {"frozen": True}, 4),
    ],
)
def test_number_formats(flags, expected, activation_bytes):
    numerics = check_flags(Params(model="lenet", device="cpu", **flags)).numerics
    assert numerics == NumericsPlan(**{**FP32, **expected})
    assert numerics.activation_bytes == activation_bytes


@pytest.mark.parametrize(
    ("flags", "gpus", "cards"),
    [
        ({"num_gpus": 3}, (0, 1, 2), (0, 1, 2)),
        ({"num_gpus": 2, "gpu_indices": "3,1,2"}, (3, 1), (3, 1)),
        ({"num_gpus": 3, "gpus_per_card": 2}, (0, 1, 2), (0, 1)),
        ({"num_gpus": 3, "gpus_per_card": 2, "gpu_indices": "5,4,1"}, (5, 4, 1), (2, 0)),
    ],
)
def test_numbers_of_gpus_and_cards(flags, gpus, cards):
    assert gpu_numbers(Params(**flags)) == gpus
    assert card_numbers(Params(**flags)) == cards
