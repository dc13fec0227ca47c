"""Training by hand in NumPy, for the network `oracle` of plugins/networks_plugin.py.

It has two scalars A and B and tower t the loss
c_t A B + wd (A^2 + B^2) / 2, so dA = c_t B + wd A and dB = c_t A + wd B. Without the L2 loss of
optimizers that apply decay themselves it ends after c_t A B. `oracle_of_matrices` is the same with
matrices of one element, whose norms are their absolute values.
Nothing of cnnbench computes the expected values, but the images come from it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from short_runs import RATE

from cnnbench.models.elements import IMAGE_CLASSIFICATION, resolve_sizes
from cnnbench.variable_mgr.all_reduce.chunks import elements_of_each_chunk

# The mode of docs/examples/local_sgd_plugin.py, and the steps between two of its exchanges.
LOCAL_SGD = "local_sgd"
LOCAL_SGD_PLUGIN = str(Path(__file__).parents[2] / "docs" / "examples" / "local_sgd_plugin.py")
LOCAL_SGD_EVERY = 2

STEPS = 5


ELEMENTS = resolve_sizes(IMAGE_CLASSIFICATION, SimpleNamespace(image_size=1, channels=3), 1001)


@functools.cache
def slopes(devices: int, batch: int = 2, seed: int = 1234) -> np.ndarray:
    """c_t of each tower, from the synthetic images themselves."""
    import tensorflow as tf

    from cnnbench.data.synthetic import draw_synthetic_rows

    rows = draw_synthetic_rows(tf.range(devices * batch), seed, ELEMENTS)
    means = rows["image"].numpy().astype(np.float64).reshape(devices, -1).mean(axis=1)
    return 4.0 * means + 1.0


# The slots of a variable by name, empty at first; updates change them.
Slots = dict[str, Any]


# The new w of an update by g; constants are named as their flags.
def sgd(w: np.ndarray, g: np.ndarray, rate: float, slots: Slots) -> np.ndarray:
    return w - rate * g


def momentum(
    w: np.ndarray, g: np.ndarray, rate: float, slots: Slots, momentum: float = 0.9
) -> np.ndarray:
    # Nesterov's look-ahead in the form that keeps the velocity in units of gradients.
    slots["momentum"] = momentum * slots.get("momentum", 0.0) + g
    return w - rate * (g + momentum * slots["momentum"])


def rmsprop(
    w: np.ndarray,
    g: np.ndarray,
    rate: float,
    slots: Slots,
    rmsprop_decay: float = 0.9,
    rmsprop_momentum: float = 0.9,
    rmsprop_epsilon: float = 1.0,
) -> np.ndarray:
    square = rmsprop_decay * slots.get("mean_square", 1.0) + (1 - rmsprop_decay) * g * g
    step = rate * g / np.sqrt(square + rmsprop_epsilon)
    slots["mean_square"] = square
    slots["momentum"] = rmsprop_momentum * slots.get("momentum", 0.0) + step
    return w - slots["momentum"]


def adam(
    w: np.ndarray,
    g: np.ndarray,
    rate: float,
    slots: Slots,
    adam_beta1: float = 0.9,
    adam_beta2: float = 0.999,
    adam_epsilon: float = 1e-8,
) -> np.ndarray:
    slots["step"] = slots.get("step", 0) + 1
    slots["m"] = adam_beta1 * slots.get("m", 0.0) + (1 - adam_beta1) * g
    slots["v"] = adam_beta2 * slots.get("v", 0.0) + (1 - adam_beta2) * g * g
    corrected = rate * np.sqrt(1 - adam_beta2 ** slots["step"]) / (1 - adam_beta1 ** slots["step"])
    return w - corrected * slots["m"] / (np.sqrt(slots["v"]) + adam_epsilon)


def corrected_moments(g, slots, beta1, beta2, epsilon):  # type: ignore[no-untyped-def]
    slots["step"] = slots.get("step", 0) + 1
    slots["m"] = beta1 * slots.get("m", 0.0) + (1 - beta1) * g
    slots["v"] = beta2 * slots.get("v", 0.0) + (1 - beta2) * g * g
    first = slots["m"] / (1 - beta1 ** slots["step"])
    return first / (np.sqrt(slots["v"] / (1 - beta2 ** slots["step"])) + epsilon)


def adamw(
    w: np.ndarray,
    g: np.ndarray,
    rate: float,
    slots: Slots,
    adam_beta1: float = 0.9,
    adam_beta2: float = 0.999,
    adam_epsilon: float = 1e-8,
    decay: float = 0.0,
) -> np.ndarray:
    moments = corrected_moments(g, slots, adam_beta1, adam_beta2, adam_epsilon)
    return w * (1 - rate * decay) - rate * moments


def lion(
    w: np.ndarray,
    g: np.ndarray,
    rate: float,
    slots: Slots,
    lion_beta1: float = 0.9,
    lion_beta2: float = 0.99,
    decay: float = 0.0,
) -> np.ndarray:
    before = slots.get("m", np.zeros_like(g))
    slots["m"] = lion_beta2 * before + (1 - lion_beta2) * g
    return w * (1 - rate * decay) - rate * np.sign(lion_beta1 * before + (1 - lion_beta1) * g)


def trusted(w: np.ndarray, divisor: float, factor: float = 1.0) -> float:
    norm = np.sqrt((w * w).sum())
    return factor * norm / divisor if w.ndim > 1 and norm > 0 and divisor > 0 else 1.0


def lars(
    w: np.ndarray,
    g: np.ndarray,
    rate: float,
    slots: Slots,
    momentum: float = 0.9,
    lars_coefficient: float = 0.001,
    decay: float = 0.0,
) -> np.ndarray:
    norms = np.sqrt((g * g).sum()) + decay * np.sqrt((w * w).sum())
    local = trusted(w, norms, lars_coefficient)
    slots["momentum"] = momentum * slots.get("momentum", 0.0) + rate * local * (g + decay * w)
    return w - slots["momentum"]


def lamb(
    w: np.ndarray,
    g: np.ndarray,
    rate: float,
    slots: Slots,
    adam_beta1: float = 0.9,
    adam_beta2: float = 0.999,
    lamb_epsilon: float = 1e-6,
    decay: float = 0.0,
) -> np.ndarray:
    moments = corrected_moments(g, slots, adam_beta1, adam_beta2, lamb_epsilon)
    step = moments + decay * w
    return w - rate * trusted(w, np.sqrt((step * step).sum())) * step


class Rules(dict[str, Callable[..., np.ndarray]]):
    """Formulas of optimizers by name."""

    def __missing__(self, name: str) -> Callable[..., np.ndarray]:
        raise AssertionError(f"tests/helpers/oracle.py: RULES needs {name}, its formula in NumPy")


RULES = Rules(
    {one.__name__: one for one in (sgd, momentum, rmsprop, adam, adamw, lion, lars, lamb)}
)
DECOUPLED = ("adamw", "lion", "lars", "lamb")
"""Optimizers that get weight decay as `decay`."""


def expected_losses(c: np.ndarray, flags: Mapping[str, Any]) -> list[float]:
    """Losses of a run with these flags, by the slopes of its towers; flags not given are 0 or off.

    A strategy of tf.distribute does what `replicated` does.
    """
    passes = flags.get("gradient_accumulation_steps", 1)
    c = c.reshape(-1, passes).mean(axis=1)  # losses are linear in the slopes
    towers, decay = len(c), flags.get("weight_decay", 0.0)
    mode = flags.get("variable_update")
    apart = mode in ("independent", LOCAL_SGD)
    averaged = flags.get("gradient_reduction") != "sum"
    relaxed = flags.get("variable_consistency") == "relaxed"
    copies = towers if apart else 1
    weights = np.array([[1.0, 2.0]] * copies)
    optimizer = flags.get("optimizer", "sgd")
    rule, shape = RULES[optimizer], () if flags.get("model", "oracle") == "oracle" else (1, 1)
    if optimizer in DECOUPLED:
        rule, decay = functools.partial(rule, decay=decay), 0.0
    slots: list[list[Slots]] = [[{}, {}] for _ in range(copies)]
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
        new = np.empty_like(weights)
        for i, j in np.ndindex(*weights.shape):
            w, g = weights[i, j].reshape(shape), grads[i, j].reshape(shape)
            new[i, j] = rule(w, g, RATE, slots[i][j]).item()
        weights = new
        if mode == LOCAL_SGD and step % LOCAL_SGD_EVERY == 0:
            weights[:] = weights.mean(axis=0)
    return losses


# Algorithms that take shards, and those that send every gradient to one device and back.
SHARDED = ("tree", "psgpu", "pscpu")
AT_ROOTS = ("copy", "hierarchical_copy", "psgpu", "pscpu")


def sent_by_all(name: str, elements: int, devices: int, shards: int) -> tuple[int, float]:
    """Messages and bytes that all devices send to reduce one float32 tensor.

    Each device is in a process of its own. On CPU devices, the CPUs that add for pscpu are devices
    themselves. Every device but one passes on each chunk on its way to the sum, and each chunk of
    the sum comes back the same way.
    """
    there_and_back, size = 2 * (devices - 1), 4 * elements
    if name == "rechd":
        return _sent_by_halving(elements, devices)
    # TensorFlow's ring cuts small tensors, too.
    chunks = devices * shards
    if name != "collective":
        most = {"xring": chunks, "tree": 2 * shards}.get(name, shards if name in SHARDED else 1)
        chunks = len(elements_of_each_chunk(elements, most, 4))
    return there_and_back * chunks, there_and_back * size


def _sent_by_halving(elements: int, devices: int) -> tuple[int, float]:
    """`sent_by_all` of rechd: rounds of p devices, the largest power of two, and r others."""
    power = 1 << devices.bit_length() - 1
    others, size = devices - power, 4 * elements
    chunks = len(elements_of_each_chunk(elements, power, 4))
    blocks = [power >> step for step in range(1, power.bit_length())]
    # Only devices with a chunk take part in a round.
    messages = 2 * sum(block * math.ceil(chunks / block) for block in blocks)
    sent = 2.0 * (power - 1) * size
    # Two halves are exchanged with each other device, or the whole tensor is sent if one half
    # would be empty; and each other device gets the sum.
    halves = 2 if chunks > power // 2 else 1
    messages, sent = messages + (halves + 1) * others, sent + 2 * others * size
    # Of three partners in a round, two get the half that the others added.
    fetched = max(0, others - power // 2) * (halves - 1)
    return messages + fetched, sent + 0.5 * fetched * size
