"""Tensors on towers, the ops of traced stages, and strategies for lists of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf


def addresses(tensor: tf.Tensor) -> int:
    """Where an eager CPU tensor lies in memory."""
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


@pytest.fixture
def address() -> Callable[[tf.Tensor], int]:
    return addresses


@pytest.fixture
def place(cpu_devices):
    """place(values[tower][index], dtype): tensors, each on its tower's device."""

    def on_towers(values: Sequence[Sequence[np.ndarray]], dtype: tf.DType = tf.float32):
        result = []
        for device, own in zip(cpu_devices, values, strict=False):
            with tf.device(device):
                result.append([tf.cast(tf.constant(v), dtype) for v in own])
        return result

    return on_towers


@pytest.fixture
def trace(cpu_devices):
    """trace(function, forms, towers): the ops that function(tensors[tower][index]) adds.

    `forms` are (shape, dtype) of the gradients of every tower. What the function
    returns is kept alive; the placeholders and the identities of outputs are left out.
    """

    def operations(function, forms, towers):
        def step(tensors):
            # A pass-through op per tower, because placeholders are not on any device.
            local = []
            for device, own in zip(cpu_devices, tensors, strict=False):
                with tf.device(device):
                    local.append([tf.raw_ops.Snapshot(input=t) for t in own])
            return function(local)

        signature = [[tf.TensorSpec(shape, dtype) for shape, dtype in forms]] * towers
        graph = tf.function(step, autograph=False).get_concrete_function(signature).graph
        ignored = ("Placeholder", "Identity", "Snapshot", "Const", "NoOp")
        return [op for op in graph.get_operations() if op.type not in ignored]

    return operations
