"""The operations of traced stages."""

from __future__ import annotations

import pytest
import tensorflow as tf


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
