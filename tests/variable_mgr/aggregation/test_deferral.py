"""Gradients that are applied one step later.

Tests variable_mgr/stages.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from towers import ByTower

from cnnbench.variable_mgr.stages import DeferredGradients


def stepping(deferral, outputs=lambda deferred: deferred):
    """A traced step that hands tensors[tower][index] to the deferral."""

    @tf.function(autograph=False)
    def step(tensors):
        deferred, inverse = ByTower(deferral)(tensors)
        assert inverse.made(sent := [[]]) is sent
        return outputs(deferred)

    return step


def gradients(step, towers, dtype=tf.float32):
    """Different in every step, tower and tensor."""
    return [
        [
            tf.cast(tf.fill([2, 3], 100.0 * step + 10 * tower + 1), dtype),
            tf.cast(tf.fill([], 100.0 * step + 10 * tower + 2), dtype),
            tf.zeros([0], dtype),
        ]
        for tower in range(towers)
    ]


def assert_equal(result, expected):
    for own, other in zip(result, expected, strict=True):
        for a, b in zip(own, other, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def zeros(towers, dtype=tf.float32):
    return [[tf.zeros_like(t) for t in own] for own in gradients(1, towers, dtype)]


@pytest.mark.parametrize(("towers", "dtype"), [(1, tf.float32), (2, tf.bfloat16), (3, tf.float32)])
def test_zeros_first_then_what_went_in_one_step_earlier(towers, dtype, cpu_devices):
    step = stepping(DeferredGradients(cpu_devices[:towers]))
    previous = zeros(towers, dtype)
    for number in range(1, 6):
        current = gradients(number, towers, dtype)
        assert_equal(step(current), previous)
        previous = current
    # New variables are no reason for a second trace, which takes minutes for a deep network.
    assert step.experimental_get_tracing_count() == 1


def test_kept_on_the_towers_devices_and_read_before_they_are_assigned(cpu_devices, operations_of):
    devices = cpu_devices[1:4]
    deferral = DeferredGradients(devices)
    forms = [((2, 3), tf.float32), ((), tf.float32)]
    operations = operations_of(lambda tensors: ByTower(deferral)(tensors)[0], forms, 3)
    assert [v.device for v in deferral.variables] == [*devices] * 2
    assert not any(v.trainable for v in deferral.variables)
    for kind in ("ReadVariableOp", "AssignVariableOp"):
        assert [op.device for op in operations if op.type == kind] == [*devices] * 2
    reads = [op for op in operations if op.type == "ReadVariableOp"]
    writes = [op for op in operations if op.type == "AssignVariableOp"]
    for read, write in zip(reads, writes, strict=True):
        before = [op.inputs[0].op if op.type == "Identity" else op for op in write.control_inputs]
        assert read in before


def test_assigned_even_if_nobody_asks_for_the_old_value(cpu_devices):
    step = stepping(DeferredGradients(cpu_devices[:2]), outputs=lambda deferred: deferred[1][0])
    silent = stepping(deferral := DeferredGradients(cpu_devices[:2]), outputs=lambda deferred: None)
    for number in range(1, 4):
        result = step(gradients(number, 2))
        np.testing.assert_array_equal(result, gradients(number - 1, 2)[1][0] * (number > 1))
        assert silent(gradients(number, 2)) is None
        expected = [t for column in zip(*gradients(number, 2), strict=True) for t in column]
        for variable, tensor in zip(deferral.variables, expected, strict=True):
            np.testing.assert_array_equal(variable, tensor)


def test_another_trace_goes_on_with_what_was_kept(cpu_devices):
    deferral = DeferredGradients(cpu_devices[:2])
    first, second = stepping(deferral), stepping(deferral)
    assert_equal(first(gradients(1, 2)), zeros(2))
    kept = deferral.variables
    assert_equal(second(gradients(2, 2)), gradients(1, 2))
    assert_equal(first(gradients(3, 2)), gradients(2, 2))
    assert all(a is b for a, b in zip(kept, deferral.variables, strict=True))


def test_a_gradient_is_taken_over_without_a_copy(cpu_devices, address):
    deferral = DeferredGradients(cpu_devices[:1])
    step = stepping(deferral)
    tensor = tf.random.normal([64])
    step([[tensor]])
    assert address(deferral.variables[0].read_value()) == address(tensor)
    ((old,),) = step([[tf.zeros([64])]])
    assert address(old) == address(tensor)
