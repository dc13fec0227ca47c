from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from towers import columns_of

from cnnbench.models.spec import Initializer, VariableSpec


def sized(sizes):
    return [
        VariableSpec(f"layer{i}/kernel", (n,), Initializer.constant(0.0))
        for i, n in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "towers", "expected"),
    [
        ([10, 10, 10, 10], 2, [0, 1, 0, 1]),
        ([100, 1, 1, 1, 98, 5], 2, [0, 1, 1, 1, 1, 0]),
        ([5, 3, 4, 1, 1, 9], 3, [0, 1, 2, 1, 1, 2]),
        ([7, 7], 1, [0, 0]),
        ([1] * 9, 8, [0, 1, 2, 3, 4, 5, 6, 7, 0]),
    ],
)
def test_variables_go_to_the_tower_with_the_fewest_bytes(
    sizes, towers, expected, make_manager, cpu_devices
):
    manager = make_manager(
        "parameter_server", towers, variables=sized(sizes), parameter_device="towers"
    )
    placed = [f.primary.device for f in manager.savable_variables().values()]
    assert placed == [cpu_devices[i] for i in expected]


@pytest.mark.parametrize("towers", [1, 4])
def test_everything_on_the_cpu(towers, make_manager, cpu_devices):
    manager = make_manager("parameter_server", towers, parameter_device="cpu")
    placed = {f.primary.device for f in manager.savable_variables().values()}
    assert placed == {cpu_devices[0]}


def test_all_towers_share_one_variable(make_manager, declared):
    manager = make_manager("parameter_server", 3)
    for variable in declared:
        assert len({manager.variable(t, variable.name).ref() for t in range(3)}) == 1


def trace_reads(manager, names, towers, dtype):
    def step():
        values = []
        for tower in range(towers):
            with tf.device(manager.get_devices()[tower]):
                values += [manager.read(tower, name, dtype) for name in names]
        return values

    return tf.function(step, autograph=False).get_concrete_function()


@pytest.mark.parametrize("place", ["cpu", "towers"])
def test_one_read_and_one_cast_for_all_towers_on_the_variables_device(
    place, make_manager, trainable
):
    manager = make_manager("parameter_server", 4, parameter_device=place)
    names = [v.name for v in trainable]
    function = trace_reads(manager, names, 4, tf.bfloat16)
    operations = function.graph.get_operations()
    homes = [manager.variable(0, name).device for name in names]
    assert [op.device for op in operations if op.type == "ReadVariableOp"] == homes
    assert [op.device for op in operations if op.type == "Cast"] == homes
    values = function()
    for index, name in enumerate(names * 4):
        wanted = tf.cast(manager.variable(0, name), tf.bfloat16)
        np.testing.assert_array_equal(values[index], wanted)


def test_each_dtype_is_cast_once(make_manager, trainable):
    manager = make_manager("parameter_server", 2)
    name = trainable[0].name

    @tf.function(autograph=False)
    def step():
        with_dtype = (tf.bfloat16, tf.float32, tf.bfloat16, "bfloat16", tf.float32)
        return [manager.read(t % 2, name, dtype) for t, dtype in enumerate(with_dtype)]

    operations = step.get_concrete_function().graph.get_operations()
    assert sum(op.type == "Cast" for op in operations) == 1
    assert [v.dtype.name for v in step()] == [
        "bfloat16",
        "float32",
        "bfloat16",
        "bfloat16",
        "float32",
    ]


def test_traces_do_not_share_tensors(make_manager, trainable):
    manager = make_manager("parameter_server", 2)
    names = [v.name for v in trainable]
    first = trace_reads(manager, names, 2, tf.bfloat16)
    second = trace_reads(manager, names, 1, tf.bfloat16)
    assert len(first()) == 2 * len(names)
    assert len(second()) == len(names)


def test_a_trace_within_a_trace_reads_for_itself(make_manager, trainable):
    manager = make_manager("parameter_server", 2)
    name = trainable[0].name

    @tf.function(autograph=False)
    def inner():
        return manager.read(1, name, tf.bfloat16)

    @tf.function(autograph=False)
    def outer():
        return manager.read(0, name, tf.bfloat16), inner(), manager.read(1, name, tf.bfloat16)

    wanted = tf.cast(manager.variable(0, name), tf.bfloat16)
    for value in outer():
        np.testing.assert_array_equal(value, wanted)


def test_the_trace_is_let_go_of_after_the_update(make_manager, trainable):
    manager = make_manager("parameter_server", 1)

    class NoUpdate:
        def apply_gradients(self, pairs, learning_rate):
            return []

    def step():
        value = manager.read(0, trainable[0].name, tf.bfloat16)
        manager.append_apply_gradients(
            NoUpdate(), [], None, manager.get_devices()[0], learning_rate=tf.constant(0.1)
        )
        return value

    function = tf.function(step, autograph=False).get_concrete_function()
    graph = weakref.ref(function.graph)
    del function
    gc.collect()
    assert graph() is None


def test_moments_are_read_anew_each_time(make_manager):
    manager = make_manager("parameter_server", 2)
    name = "batchnorm0/moving_mean"

    @tf.function(autograph=False)
    def step():
        before = manager.read(0, name, tf.float32)
        manager.variable(0, name).assign(tf.ones([4]))
        return before, manager.read(1, name, tf.float32)

    before, after = step()
    assert before.numpy().tolist() == [0.0] * 4
    assert after.numpy().tolist() == [1.0] * 4


@pytest.mark.parametrize(("reduction", "products"), [("mean", 1), ("sum", 0)])
@pytest.mark.parametrize("place", ["cpu", "towers"])
def test_gradients_meet_on_the_variables_device(
    place, reduction, products, make_manager, trainable
):
    manager = make_manager("parameter_server", 3, parameter_device=place, reduction=reduction)
    apply_devices = []

    @tf.function(autograph=False)
    def step(gradients):
        pairs = list(zip(gradients, manager.trainable_variables_on_device(0), strict=True))
        devices, state = manager.preprocess_device_grads(columns_of([pairs] * 3))
        apply_devices.extend(devices)
        return [g for g, _ in manager.get_gradients_to_apply(0, state)]

    specs = [tf.TensorSpec(v.shape) for v in trainable]
    operations = step.get_concrete_function(specs).graph.get_operations()
    homes = [v.device for v in manager.trainable_variables_on_device(0)]
    assert [op.device for op in operations if op.type == "AddN"] == homes
    assert [op.device for op in operations if op.type == "Mul"] == homes * products
    assert apply_devices == [homes[0]]


def test_one_apply_device_only(make_manager):
    manager = make_manager("parameter_server", 3)
    variable = manager.trainable_variables_on_device(0)[0]
    pair = (tf.ones(variable.shape), variable)
    devices, state = manager.preprocess_device_grads(columns_of([[pair]] * 3))
    assert len(devices) == 1
    assert len(manager.get_gradients_to_apply(0, state)) == 1
    with pytest.raises(IndexError):
        manager.get_gradients_to_apply(1, state)


def test_towers_must_agree_on_the_variable(make_manager, trainable):
    manager = make_manager("parameter_server", 2)
    first, second = manager.trainable_variables_on_device(0)[1:3]
    gradient = tf.ones(first.shape)
    with pytest.raises(ValueError, match="other variables"):
        manager.preprocess_device_grads(columns_of([[(gradient, first)], [(gradient, second)]]))
