from __future__ import annotations

import pytest
import tensorflow as tf


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
        devices, state = manager.preprocess_device_grads(pairs)
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
