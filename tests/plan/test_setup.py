"""Gradient exchange and updates, by the mode, the optimizer and what else a plan decides."""

from __future__ import annotations

import pytest

from cnnbench.flags import Params
from cnnbench.optimizers import OPTIMIZERS
from cnnbench.plan import make_plan
from cnnbench.plan.setup import plan_variable_update
from cnnbench.variable_mgr.packing import AggregationSpec
from cnnbench.variable_mgr.registry import MODES

PLAIN = AggregationSpec()


def update(mode="replicated", optimizer="sgd", aggregation=PLAIN, towers=4, **more):
    values = {
        "reduction": "mean",
        "weight_decay": 0.25,
        "clip": {},
        "asynchronous": False,
        "uses_previous_weights": False,
        "has_16_bit_variables": False,
        **more,
    }
    return plan_variable_update(
        MODES[mode], aggregation, towers, optimizer=OPTIMIZERS[optimizer], **values
    )


def test_a_mean_is_a_sum_with_a_smaller_rate():
    plan = update()
    assert (plan.reduction, plan.rate_factor) == ("sum", 0.25)
    assert (plan.weight_decay, plan.decay, plan.decoupled_decay) == (0.25, 1.0, 0.0)
    assert (plan.fused, plan.deferred) == (True, False)


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": "momentum"},
        {"asynchronous": True},
        {"clip": {"gradient_clip": 1.0}},
        {"aggregation": AggregationSpec(compact_dtype="float16")},
        {"has_16_bit_variables": True},
        {"mode": "mirrored_strategy"},
    ],
    ids=str,
)
def test_gradients_are_divided_where_the_rate_cannot_be(more):
    plan = update(**more)
    assert (plan.reduction, plan.rate_factor, plan.decay) == ("mean", 1.0, 0.25)
    asked = update(reduction="sum", **more)
    assert (asked.reduction, asked.rate_factor) == ("sum", 1.0)


@pytest.mark.parametrize(
    ("more", "fused"),
    [
        ({}, True),
        ({"weight_decay": 0.0}, False),
        ({"optimizer": "adam"}, False),
        ({"clip": {"gradient_clip": 1.0}}, False),
        ({"asynchronous": True}, False),
        ({"has_16_bit_variables": True}, False),
        ({"uses_previous_weights": True}, False),
        ({"aggregation": AggregationSpec(compact_dtype="float16")}, True),
        ({"aggregation": AggregationSpec(variable_consistency="relaxed")}, False),
        ({"mode": "parameter_server"}, True),
    ],
    ids=str,
)
def test_which_updates_contain_the_decay(more, fused):
    assert update(**more).fused == fused


@pytest.mark.parametrize(
    ("mode", "deferred", "decay"),
    [("replicated", True, 0.25), ("parameter_server", False, 1.0)],
)
def test_gradients_of_the_step_before_have_their_own_decay(mode, deferred, decay):
    late = AggregationSpec(variable_consistency="relaxed")
    plan = update(mode, aggregation=late)
    assert (plan.deferred, plan.decay) == (deferred, decay)


@pytest.mark.parametrize(
    ("optimizer", "reduction", "expected"),
    [
        ("lion", "mean", (0.0, 0.0, 0.25)),
        ("lion", "sum", (0.0, 0.0, 0.25)),
        ("adam", "mean", (0.25, 0.25, 0.0)),
        ("adam", "sum", (0.25, 1.0, 0.0)),
    ],
)
def test_decay_of_the_weights_themselves(optimizer, reduction, expected):
    plan = update(optimizer=optimizer, reduction=reduction)
    assert (plan.weight_decay, plan.decay, plan.decoupled_decay) == expected


def exchange(**flags):
    return make_plan(Params(model="lenet", device="cpu", **flags)).exchange


@pytest.mark.parametrize(
    ("flags", "exchanges", "reduces"),
    [
        ({"num_gpus": 2, "variable_update": "replicated"}, True, True),
        ({"num_gpus": 1, "variable_update": "replicated"}, False, False),
        ({"num_gpus": 2, "variable_update": "parameter_server"}, True, False),
        ({"num_gpus": 2, "variable_update": "replicated", "forward_only": True}, False, False),
    ],
)
def test_towers_of_a_training_exchange_gradients(flags, exchanges, reduces):
    plan = exchange(**flags)
    assert (plan.exchanges, plan.reduces) == (exchanges, reduces)
    assert (plan.running is not None) == reduces


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, ["copy"]),
        ({"hierarchical_copy": True}, ["hierarchical_copy"]),
        ({"all_reduce_spec": "xring"}, ["xring"]),
    ],
)
def test_the_algorithm_by_default(flags, names):
    plan = exchange(num_gpus=8, variable_update="replicated", **flags)
    text = str(plan.all_reduce)
    assert [name for name in names if name not in text] == []
    assert ("hierarchical" in text) == (names == ["hierarchical_copy"])


@pytest.mark.parametrize(
    ("precision", "compact", "dtype"),
    [
        ("fp32", True, None),
        ("bf16", True, "bfloat16"),
        ("fp16", True, "float16"),
        ("bf16", False, None),
    ],
)
def test_gradients_of_16_bits_are_sent_as_they_are(precision, compact, dtype):
    plan = exchange(
        num_gpus=2,
        variable_update="replicated",
        precision=precision,
        compact_gradient_transfer=compact,
    )
    assert plan.aggregation.compact_dtype == dtype


@pytest.mark.parametrize(("cards", "shared"), [(1, False), (2, True)])
def test_towers_that_share_a_card(cards, shared):
    plan = make_plan(Params(model="lenet", gpus_per_card=cards, num_gpus=2)).exchange
    assert plan.aggregation.shared_cards == shared
    assert plan.cross_device.shared_cards == shared
