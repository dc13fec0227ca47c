"""Managers with a copy of every variable per tower: replicated, distributed, independent."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from covering import covering_pairs
from towers import columns_of, trained

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr.all_reduce import single
from cnnbench.variable_mgr.packing import AggregationSpec


def aggregated(manager, by_tower):
    """The apply devices, and the (gradient, variable) pairs of each, for gradients by tower."""
    pairs = [
        list(zip(gradients, trained(manager, tower), strict=True))
        for tower, gradients in enumerate(by_tower)
    ]
    devices, state = manager.preprocess_device_grads(columns_of(pairs))
    return devices, [manager.get_gradients_to_apply(t, state) for t in range(len(devices))]


@pytest.mark.parametrize(("mode", "towers"), [("replicated", 11), ("independent", 2)])
def test_copy_t_is_on_tower_t(mode, towers, make_manager, cpu_devices):
    manager = make_manager(mode, towers)
    for facade in manager.savable_variables().values():
        assert [c.device for c in facade.copies] == [cpu_devices[t % 8] for t in range(towers)]
        assert [c.name for c in facade.copies] == [f"v{t}/{facade.name}:0" for t in range(towers)]


@pytest.mark.parametrize(
    ("towers", "place", "reduction"), covering_pairs([2, 3], ["cpu", "towers"], ["mean", "sum"])
)
def test_placement_of_the_reduction(towers, place, reduction, make_manager, trainable, cpu_devices):
    manager = make_manager("replicated", towers, parameter_device=place, reduction=reduction)
    pairs = []

    @tf.function(autograph=False)
    def step(gradients):
        devices, applied = aggregated(manager, [gradients] * towers)
        assert devices == list(manager.get_devices())
        pairs.extend(applied)
        return [gradient for own in applied for gradient, _ in own]

    specs = [tf.TensorSpec(v.shape) for v in trainable]
    operations = step.get_concrete_function(specs).graph.get_operations()
    in_turn = [cpu_devices[i % towers] for i in range(len(trainable))]
    homes = in_turn if place == "towers" else [cpu_devices[0]] * len(trainable)
    assert [op.device for op in operations if op.type == "AddN"] == homes[::-1]
    assert [op.device for op in operations if op.type == "Mul"] == homes * (reduction == "mean")
    for tower, own in enumerate(pairs):
        expected = zip([shared for shared, _ in pairs[0]], trained(manager, tower), strict=True)
        assert all(a is c and b is d for (a, b), (c, d) in zip(own, expected, strict=True))


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
            kernel, table = trained(manager, tower)
            np.testing.assert_allclose(kernel.numpy(), np.full((2, 3), -due), rtol=1e-6)
            np.testing.assert_allclose(
                table.numpy()[:, 0], np.array([0, -2, 0, 0, -1]) * due, rtol=1e-6
            )


@pytest.mark.parametrize("others", [0, 2])
def test_slices_are_gathered_by_collectives_only_from_other_processes(
    others, make_manager, cpu_devices
):
    own = cpu_devices[:2]
    everyone = (*own, *cpu_devices[2 : 2 + others])
    job = SimpleNamespace(
        num_towers=len(everyone),
        tower_devices=everyone,
        in_cluster=False,
        client_per_worker=False,
    )
    declared = [VariableSpec("table", (5, 2), Initializer.constant(0.0))]
    by_collective = AggregationSpec(all_reduce=single("collective"))
    manager = make_manager("replicated", own, declared, job=job, aggregation=by_collective)

    @tf.function(autograph=False)
    def step():
        rows = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 4, 1]), tf.constant([5, 2]))
        return [gradient for gradient, _ in aggregated(manager, [[rows], [rows]])[1][0]]

    operations = step.get_concrete_function().graph.get_operations()
    gathers = [op for op in operations if op.type.startswith("CollectiveGather")]
    assert bool(gathers) == bool(others)


def test_towers_start_differently_and_biases_alike(make_manager, trainable):
    manager = make_manager("independent", 3, seed=4)
    for variable in trainable:
        values = [manager.variable(t, variable.name).numpy() for t in range(3)]
        random = variable.initializer.kind != "constant"
        assert (values[0] != values[1]).all() == random
        assert (values[1] != values[2]).all() == random
        assert values[0].std() == pytest.approx(values[1].std(), rel=0.5)
