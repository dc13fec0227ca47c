"""Updates bit for bit as they were saved; UPDATE_GOLDEN=1 saves those of the code at hand.

The weights of every copy after three steps are saved, as bytes of their dtype. Kernels depend on
the instruction set and the version of TensorFlow: where these differ, rounding is allowed for.

Tests cnnbench/run/step/update.py.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import short_runs
import tensorflow as tf
from covering import covering_pairs, slow_if, with_each_value
from forked import optimized_graphs
from short_runs import RATE

from cnnbench.machine.cpu import Host, processor_facts

pytestmark = pytest.mark.usefixtures("quick_start")

SAVED = Path(__file__).parent / "golden" / "updates.json"
STEPS = 3
DECAY = 0.043

WAYS = {
    "shared": {"num_gpus": 1},
    "shared-3": {"num_gpus": 3},
    "staged": {"num_gpus": 2, "staged_vars": True},
    "replicated": {"num_gpus": 3, "variable_update": "replicated"},
    "packed": {
        **{"num_gpus": 3, "variable_update": "replicated"},
        **{"gradient_repacking": 2, "agg_small_grads_max_bytes": 12},
    },
    "buckets": {"num_gpus": 2, "variable_update": "replicated", "gradient_bucket_bytes": 24},
    "relaxed": {
        **{"num_gpus": 2, "variable_update": "replicated"},
        **{"variable_consistency": "relaxed"},
    },
    "shadows": {"num_gpus": 2, "variable_update": "distributed_replicated"},
    "independent": {"num_gpus": 2, "variable_update": "independent"},
    "mirrored": {
        **{"num_gpus": 2, "variable_update": "mirrored_strategy"},
        **{"cross_device_ops": "reduction_to_one_device"},
    },
}
PRECISIONS = {
    "fp32": {},
    "fp16": {"precision": "fp16", "fp16_loss_scale": 100.0},
    "auto": {
        **{"precision": "fp16", "fp16_enable_auto_loss_scale": True},
        **{"fp16_loss_scale": 100.0, "fp16_inc_loss_scale_every_n": 2},
    },
    "vars": {"precision": "fp16", "fp16_vars": True, "compact_gradient_transfer": False},
}
OPTIMIZERS = ("sgd", "momentum", "rmsprop", "adam")
CLIPS = (None, 0.75)


def combinations():
    """Half of the pairs of all but the ways, which take turns; and each way with sgd, whose updates
    may include decay and mean. An optimizer has every other precision.
    """
    pairs = covering_pairs(
        OPTIMIZERS,
        PRECISIONS,
        (0.0, DECAY),
        CLIPS,
        ("mean", "sum"),
        allowed=lambda optimizer, precision, *_: optimizer != "adam" or precision != "vars",
    )
    ways = itertools.cycle(WAYS)
    met = [(optimizer, next(ways), *others) for optimizer, *others in pairs]
    met = [one for n, one in enumerate(met) if (n + OPTIMIZERS.index(one[0])) % 2 == 0]
    met += [("sgd", way, "fp32", DECAY, None, "mean") for way in WAYS]
    return [*met, *(("sgd", "shared-3", "fp32", DECAY, clip, "sum") for clip in CLIPS)]


def name_of(combination):
    return "-".join(map(str, combination))


def flags_of(optimizer, way, precision, decay, clip, reduction):
    own = {"optimizer": optimizer, "weight_decay": decay, "gradient_clip": clip}
    return {**WAYS[way], **PRECISIONS[precision], **own, "gradient_reduction": reduction}


CASES = {name_of(one): flags_of(*one) for one in combinations()}
# The first of these have the most values; others are met by test_variable_update_oracle.py.
EVERYDAY = {*map(name_of, with_each_value(combinations())[:3])}


def weights_after(flags):
    """Every copy of every trained variable after some steps; those of `detached` come first."""
    with optimized_graphs():
        built = short_runs.build("curved", **flags)
        for _ in range(STEPS):
            built.step(RATE).loss.numpy()
    variables = built.manager.savable_variables().values()
    return [copy.numpy() for variable in variables for copy in variable.copies]


def kernels():
    """What the kernels of operations are chosen by."""
    return {"tensorflow": tf.__version__, "cpu_isa": processor_facts(Host()).get("cpu_isa")}


@pytest.fixture(scope="module")
def saved():
    if os.environ.get("UPDATE_GOLDEN"):
        made = {name: [w.tobytes().hex() for w in weights_after(CASES[name])] for name in CASES}
        SAVED.parent.mkdir(exist_ok=True)
        SAVED.write_text(json.dumps({"kernels": kernels(), "weights": made}, indent=1) + "\n")
    found: dict[str, Any] = json.loads(SAVED.read_text())
    return found


@pytest.mark.parametrize("name", slow_if(lambda name: name not in EVERYDAY, CASES))
def test_weights_are_as_saved(name, saved):
    found = weights_after(CASES[name])
    expected = [
        np.frombuffer(bytes.fromhex(text), weights.dtype).reshape(weights.shape)
        for text, weights in zip(saved["weights"][name], found, strict=True)
    ]
    rounding = 2e-3 if found[0].dtype == np.float16 else 2e-6
    tolerance = 0.0 if saved["kernels"] == kernels() else rounding
    for weights, as_saved in zip(found, expected, strict=True):
        np.testing.assert_allclose(weights, as_saved, rtol=tolerance, atol=tolerance)


OTHER_STEPS = ("staged_vars", "variable_consistency", "fp16_vars")
"""Flags of updates by an earlier step, or of 16 bits."""


@pytest.mark.parametrize(
    "name",
    [n for n, case in CASES.items() if n.startswith("sgd") and not set(OTHER_STEPS) & set(case)],
)
def test_a_weight_without_any_other_gradient_decays(name, saved):
    flags = CASES[name]
    independent = flags.get("variable_update") == "independent"
    summed = flags["gradient_reduction"] == "sum" and not independent
    decay = flags["weight_decay"] * (flags["num_gpus"] if summed else 1)
    detached = np.frombuffer(bytes.fromhex(saved["weights"][name][0]), np.float32)
    np.testing.assert_allclose(detached, 1.7 * (1 - RATE * decay) ** STEPS, rtol=1e-6)
