from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from towers import columns_of

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec


@pytest.mark.parametrize("towers", [1, 2, 8])
def test_copy_t_is_on_tower_t(towers, make_manager, cpu_devices):
    manager = make_manager("replicated", towers)
    for facade in manager.savable_variables().values():
        assert [c.device for c in facade.copies] == list(cpu_devices[:towers])
        assert [c.name for c in facade.copies] == [f"v{t}/{facade.name}:0" for t in range(towers)]


def reduction_ops(manager, trainable, towers):
    pairs_out = []

    @tf.function(autograph=False)
    def step(gradients):
        pairs = [
            list(zip(gradients, manager.trainable_variables_on_device(t), strict=True))
            for t in range(towers)
        ]
        devices, state = manager.preprocess_device_grads(columns_of(pairs))
        assert devices == list(manager.get_devices())
        pairs_out.extend(manager.get_gradients_to_apply(t, state) for t in range(towers))
        return [gradient for pairs in pairs_out for gradient, _ in pairs]

    specs = [tf.TensorSpec(v.shape) for v in trainable]
    return step.get_concrete_function(specs).graph.get_operations(), pairs_out


@pytest.mark.parametrize(("reduction", "products"), [("mean", 1), ("sum", 0)])
@pytest.mark.parametrize("place", ["cpu", "towers"])
@pytest.mark.parametrize("towers", [2, 3])
def test_placement_of_the_reduction(
    towers, place, reduction, products, make_manager, trainable, cpu_devices
):
    manager = make_manager("replicated", towers, parameter_device=place, reduction=reduction)
    operations, pairs = reduction_ops(manager, trainable, towers)
    in_turn = [cpu_devices[i % towers] for i in range(len(trainable))]
    homes = in_turn if place == "towers" else [cpu_devices[0]] * len(trainable)
    assert [op.device for op in operations if op.type == "AddN"] == homes[::-1]
    assert [op.device for op in operations if op.type == "Mul"] == homes * products
    for tower in range(towers):
        assert all(
            gradient is shared
            for (gradient, _), (shared, _) in zip(pairs[tower], pairs[0], strict=True)
        )
        owned = manager.trainable_variables_on_device(tower)
        assert all(v is mine for (_, v), mine in zip(pairs[tower], owned, strict=True))


def test_a_single_tower_is_not_reduced(make_manager, trainable):
    operations, _ = reduction_ops(make_manager("replicated", 1), trainable, 1)
    assert {op.type for op in operations} <= {"Placeholder", "Identity"}


def test_reads_stay_local(make_manager, trainable, cpu_devices):
    manager = make_manager("replicated", 3)

    @tf.function(autograph=False)
    def step():
        values = []
        for tower in range(3):
            with tf.device(cpu_devices[tower]):
                values.append(manager.read(tower, trainable[0].name, tf.bfloat16))
        return values

    operations = step.get_concrete_function().graph.get_operations()
    for kind in ("ReadVariableOp", "Cast"):
        assert [op.device for op in operations if op.type == kind] == list(cpu_devices[:3])


@pytest.mark.parametrize("towers", [1, 3])
def test_relaxed_defers_sparse_gradients_like_dense_ones(towers, make_manager):
    """Were slices gathered in the same step, a table would be a step ahead of its network."""
    declared = (
        VariableSpec("kernel", (2, 3), Initializer.constant(0.0)),
        VariableSpec("table", (5, 2), Initializer.constant(0.0)),
    )
    manager = make_manager(
        "replicated", towers, declared, aggregation=AggregationSpec(variable_consistency="relaxed")
    )

    @tf.function(autograph=False)
    def step(value):
        # Tower t has t + 1 times the value; rows 1, twice, and 4 of the table.
        pairs = []
        for tower, device in enumerate(manager.get_devices()):
            kernel, table = manager.trainable_variables_on_device(tower)
            with tf.device(device):
                own = value * (tower + 1)
                rows = tf.IndexedSlices(tf.fill([3, 2], own), tf.constant([1, 4, 1]))
                pairs.append([(tf.fill([2, 3], own), kernel), (rows, table)])
        devices, state = manager.preprocess_device_grads(columns_of(pairs))
        for index in range(len(devices)):
            for gradient, variable in manager.get_gradients_to_apply(index, state):
                variable.assign_sub(gradient)

    given = [5.0, 70.0, 900.0]
    mean = sum(range(1, towers + 1)) / towers
    for number, value in enumerate(given):
        step(tf.constant(value))
        # What has been applied are the gradients of the steps before this one.
        due = mean * sum(given[:number])
        for tower in range(towers):
            kernel, table = manager.trainable_variables_on_device(tower)
            np.testing.assert_allclose(kernel.numpy(), np.full((2, 3), -due), rtol=1e-6)
            np.testing.assert_allclose(
                table.numpy()[:, 0], np.array([0, -2, 0, 0, -1]) * due, rtol=1e-6
            )
