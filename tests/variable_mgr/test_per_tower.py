"""Managers with a copy of every variable per tower: replicated, distributed, independent."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from covering import covering_pairs
from towers import columns_of

from cnnbench.errors import FlagError
from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec


def aggregated(manager, by_tower):
    """The apply devices, and the (gradient, variable) pairs of each, for gradients by tower."""
    pairs = [
        list(zip(gradients, manager.trainable_variables_on_device(tower), strict=True))
        for tower, gradients in enumerate(by_tower)
    ]
    devices, state = manager.preprocess_device_grads(columns_of(pairs))
    return devices, [manager.get_gradients_to_apply(t, state) for t in range(len(devices))]


@pytest.mark.parametrize(("mode", "towers"), [("replicated", 8), ("independent", 2)])
def test_copy_t_is_on_tower_t(mode, towers, make_manager, cpu_devices):
    manager = make_manager(mode, towers)
    for facade in manager.savable_variables().values():
        assert [c.device for c in facade.copies] == list(cpu_devices[:towers])
        assert [c.name for c in facade.copies] == [f"v{t}/{facade.name}:0" for t in range(towers)]


def reduction_ops(manager, trainable, towers):
    pairs_out = []

    @tf.function(autograph=False)
    def step(gradients):
        devices, applied = aggregated(manager, [gradients] * towers)
        assert devices == list(manager.get_devices())
        pairs_out.extend(applied)
        return [gradient for pairs in pairs_out for gradient, _ in pairs]

    specs = [tf.TensorSpec(v.shape) for v in trainable]
    return step.get_concrete_function(specs).graph.get_operations(), pairs_out


@pytest.mark.parametrize(
    ("towers", "place", "reduction"), covering_pairs([2, 3], ["cpu", "towers"], ["mean", "sum"])
)
def test_placement_of_the_reduction(towers, place, reduction, make_manager, trainable, cpu_devices):
    manager = make_manager("replicated", towers, parameter_device=place, reduction=reduction)
    operations, pairs = reduction_ops(manager, trainable, towers)
    in_turn = [cpu_devices[i % towers] for i in range(len(trainable))]
    homes = in_turn if place == "towers" else [cpu_devices[0]] * len(trainable)
    assert [op.device for op in operations if op.type == "AddN"] == homes[::-1]
    assert [op.device for op in operations if op.type == "Mul"] == homes * (reduction == "mean")
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
        by_tower = []
        for tower, device in enumerate(manager.get_devices()):
            with tf.device(device):
                own = value * (tower + 1)
                rows = tf.IndexedSlices(tf.fill([3, 2], own), tf.constant([1, 4, 1]))
                by_tower.append([tf.fill([2, 3], own), rows])
        for applied in aggregated(manager, by_tower)[1]:
            for gradient, variable in applied:
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


def test_towers_start_differently_and_biases_alike(make_manager, trainable):
    manager = make_manager("independent", 3, seed=4)
    for variable in trainable:
        values = [manager.variable(t, variable.name).numpy() for t in range(3)]
        random = variable.initializer.kind != "constant"
        assert (values[0] != values[1]).all() == random
        assert (values[1] != values[2]).all() == random
        assert values[0].std() == pytest.approx(values[1].std(), rel=0.5)


def test_every_tower_applies_its_own_gradient_untouched(make_manager, trainable, cpu_devices):
    manager = make_manager("independent", 3)
    gradients = [[tf.fill(v.shape, float(t)) for v in trainable] for t in range(3)]
    devices, applied = aggregated(manager, gradients)
    assert devices == list(cpu_devices[:3])
    for tower in range(3):
        own = manager.trainable_variables_on_device(tower)
        expected = zip(gradients[tower], own, strict=True)
        for (gradient, variable), (given, mine) in zip(applied[tower], expected, strict=True):
            assert gradient is given
            assert variable is mine


def test_an_algorithm_that_cannot_work_is_pointed_at(make_manager):
    spec = AggregationSpec(all_reduce=parse_all_reduce_spec("copy:2K:pscpu#3"))
    with pytest.raises(FlagError, match=r"^--all_reduce_spec=copy:2K:pscpu#3: character 9, "):
        make_manager("distributed_all_reduce", 2, aggregation=spec)


def test_each_size_goes_its_own_way_and_the_order_stays(make_manager, trainable):
    """A copy is shared by all towers, a trees' sum of large tensors is made in a scope."""
    spec = AggregationSpec(all_reduce=parse_all_reduce_spec("copy:16:rechd"))
    manager = make_manager("distributed_all_reduce", 3, aggregation=spec)
    made = []

    @tf.function(autograph=False)
    def step(gradients):
        made.extend(aggregated(manager, [gradients] * 3)[1])
        return [gradient for gradient, _ in made[0]]

    values = [tf.fill(v.shape, float(i + 1)) for i, v in enumerate(trainable)]
    for value, mean in zip(values, step(values), strict=True):
        # The mean of equal values is the value, in the place where it was.
        assert mean.shape == value.shape
        assert abs(mean.numpy() - value.numpy()).max() < 1e-6
    for tower, pairs in enumerate(made):
        own = manager.trainable_variables_on_device(tower)
        assert [variable.ref() for _, variable in pairs] == [variable.ref() for variable in own]
    kinds = {
        "small": {op.type for op in _ancestors(made[0][1][0].op)},
        "large": {op.type for op in _ancestors(made[0][0][0].op)},
    }
    assert "AddN" in kinds["small"]
    assert "AddN" not in kinds["large"]
    assert "AddV2" in kinds["large"]


def _ancestors(op):
    seen, left = set(), [op]
    while left:
        op = left.pop()
        if op not in seen:
            seen.add(op)
            left += [tensor.op for tensor in op.inputs]
    return seen
