"""Training by hand in NumPy, for the network of plugins/oracle_plugin.py.

It has two scalars A and B and tower t the loss
c_t A B + wd (A^2 + B^2) / 2, so dA = c_t B + wd A and dB = c_t A + wd B.
Nothing of cnnbench computes the expected values, but the images come from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.lab.predict.formulas import FORMULAS, NodeLayout
from cnnbench.models.elements import IMAGE_CLASSIFICATION, resolve

PLUGIN = str(Path(__file__).parents[1] / "plugins" / "oracle_plugin.py")

# The mode of docs/examples/local_sgd_plugin.py, and the steps between two of its exchanges.
LOCAL_SGD = "local_sgd"
LOCAL_SGD_PLUGIN = str(Path(__file__).parents[2] / "docs" / "examples" / "local_sgd_plugin.py")
LOCAL_SGD_EVERY = 2

STEPS = 5
RATE = 0.0625


ELEMENTS = resolve(IMAGE_CLASSIFICATION, SimpleNamespace(image_size=1, channels=3), 1001)


@functools.cache
def slopes(devices: int, batch: int = 2, seed: int = 1234) -> np.ndarray:
    """c_t of each tower, from the synthetic images themselves."""
    from cnnbench.data.synthetic import synthetic_rows

    rows = synthetic_rows(tf.range(devices * batch), seed, ELEMENTS)
    means = rows["image"].numpy().astype(np.float64).reshape(devices, -1).mean(axis=1)
    return 4.0 * means + 1.0


# The update of w by g, whose state begins anew.
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]


def sgd(rate: float = RATE, count: int = 2) -> Rule:
    return lambda w, g: w - rate * g


def momentum(rate: float = RATE, count: int = 2) -> Rule:
    velocity = np.zeros(count)

    def update(w: np.ndarray, g: np.ndarray) -> np.ndarray:
        velocity[:] = 0.9 * velocity + g
        return w - rate * (g + 0.9 * velocity)

    return update


def rmsprop(rate: float = RATE, count: int = 2) -> Rule:
    square, velocity = np.ones(count), np.zeros(count)

    def update(w: np.ndarray, g: np.ndarray) -> np.ndarray:
        square[:] = 0.9 * square + 0.1 * g * g
        velocity[:] = 0.9 * velocity + rate * g / np.sqrt(square + 1.0)
        return w - velocity

    return update


def adam(rate: float = RATE, count: int = 2) -> Rule:
    first, second, step = np.zeros(count), np.zeros(count), 0

    def update(w: np.ndarray, g: np.ndarray) -> np.ndarray:
        nonlocal step
        step += 1
        first[:] = 0.9 * first + 0.1 * g
        second[:] = 0.999 * second + 0.001 * g * g
        corrected = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        return w - corrected * first / (np.sqrt(second) + 1e-8)

    return update


RULES = {"sgd": sgd, "momentum": momentum, "rmsprop": rmsprop, "adam": adam}


def expected_losses(c: np.ndarray, flags: Mapping[str, Any]) -> list[float]:
    """Losses of a run with these flags, by the slopes of its towers; flags not given are 0 or off.

    A strategy of tf.distribute does what `replicated` does.
    """
    towers, decay = len(c), flags.get("weight_decay", 0.0)
    mode = flags.get("variable_update")
    apart = mode in ("independent", LOCAL_SGD)
    averaged = flags.get("gradient_reduction") != "sum"
    relaxed = flags.get("variable_consistency") == "relaxed"
    copies = towers if apart else 1
    weights = np.array([[1.0, 2.0]] * copies)
    rules = [RULES[flags.get("optimizer", "sgd")]() for _ in range(copies)]
    losses, deferred, before = [], np.zeros((copies, 2)), weights
    for step in range(1, STEPS + 1):
        read = before if flags.get("staged_vars") else weights
        per_tower = [read[t % copies] for t in range(towers)]
        total = [c[t] * w[0] * w[1] + decay * (w @ w) / 2 for t, w in enumerate(per_tower)]
        losses.append(float(np.mean(total)))
        grads = np.array([c[t] * w[::-1] + decay * w for t, w in enumerate(per_tower)])
        if not apart:
            grads = grads.sum(axis=0, keepdims=True) / (towers if averaged else 1)
        if relaxed:
            grads, deferred = deferred, grads
        before = weights
        weights = np.array([rules[i](weights[i], grads[i]) for i in range(copies)])
        if mode == LOCAL_SGD and step % LOCAL_SGD_EVERY == 0:
            weights[:] = weights.mean(axis=0)
    return losses


# Algorithms that take shards, and those that send every gradient to one device and back.
SHARDED = ("tree", "psgpu", "pscpu")
AT_ROOTS = ("copy", "hierarchical_copy", "psgpu", "pscpu")


def sent_by_all(name, tensor, devices, shards):
    """Messages and bytes that all devices send to reduce one tensor, one process per device."""
    if name in AT_ROOTS:
        # On CPU devices, the CPUs that add for pscpu are devices themselves.
        chunks = tensor.chunks(shards)[0] if name in SHARDED else 1
        to_roots_and_back = 2 * (devices - 1)
        return to_roots_and_back * chunks, to_roots_and_back * tensor.bytes
    formula = FORMULAS[name]
    phases = (formula.busy or formula.path)(tensor, NodeLayout(devices), shards)
    messages = sum(phase.near_messages + phase.far_messages for phase in phases)
    sent = sum(phase.near_bytes + phase.far_bytes for phase in phases)
    return devices * messages, devices * sent
