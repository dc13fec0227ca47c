"""Variables that towers share: where they are, how often they are read and sent, their updates.

Logical CPU devices stand for ps tasks.

Tests variable_mgr/parameter_server.py, variable_mgr/tracing.py and variable_mgr/per_tower.py.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from towers import columns_of, create_slots, one_step, optimizer_of, trained

from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr.gradients import VariableGradients

MODES = ("parameter_server", "distributed_replicated")


@pytest.mark.parametrize(
    ("mode", "towers", "fields", "sizes", "places"),
    [
        ("parameter_server", 4, {"parameter_device": "cpu"}, (9, 1, 1), [0, 0, 0]),
        ("central_storage_strategy", 3, {}, (9, 1, 1), [0, 0, 0]),
        ("parameter_server", 2, {}, (10, 10, 10, 10), [0, 1, 0, 1]),
        ("parameter_server", 2, {}, (100, 1, 1, 1, 98, 5), [0, 1, 1, 1, 1, 0]),
        ("parameter_server", 3, {}, (5, 3, 4, 1, 1, 9), [0, 1, 2, 1, 1, 2]),
        ("parameter_server", 8, {}, [1] * 9, [*range(8), 0]),
        *((mode, 2, {"ps": 3}, (10, 4, 4, 3, 1, 5, 2), [2, 3, 4, 3, 4, 4, 3]) for mode in MODES),
        *(
            (mode, 2, {"ps": 3, "ps_strategy": "round_robin"}, (9, 1, 1, 1, 1), [2, 3, 4, 2, 3])
            for mode in MODES
        ),
    ],
)
def test_places_of_variables(mode, towers, fields, sizes, places, make_manager, cpu_devices):
    """By bytes over towers and ps tasks, which are devices from 2 on, or in turn."""
    fields = {"parameter_device": "towers", **fields}
    ps = cpu_devices[2 : 2 + fields.pop("ps", 0)]
    variables = [
        VariableSpec(f"layer{i}/kernel", (n,), Initializer.constant(0.0))
        for i, n in enumerate(sizes)
    ]
    manager = make_manager(mode, towers, variables=variables, ps_devices=ps, **fields)
    placed = [manager.updated(v.name).primary.device for v in variables]
    assert placed == [cpu_devices[place] for place in places]


@pytest.mark.parametrize("place", ["cpu", "towers"])
def test_one_read_and_one_cast_for_all_towers_on_the_variables_device(
    place, make_manager, trainable
):
    manager = make_manager("parameter_server", 4, parameter_device=place)
    names = [v.name for v in trainable]

    @tf.function(autograph=False)
    def step():
        values = []
        for tower, device in enumerate(manager.get_devices()):
            with tf.device(device):
                values += [manager.read(tower, name, tf.bfloat16) for name in names]
                assert manager.read(tower, names[0], tf.float32).dtype == tf.float32
        return values

    operations = step.get_concrete_function().graph.get_operations()
    homes = [manager.variable(0, name).device for name in names]
    reads = [op.device for op in operations if op.type == "ReadVariableOp"]
    assert sorted(reads) == sorted([homes[0], *homes])
    assert [op.device for op in operations if op.type == "Cast"] == homes
    for value, name in zip(step(), names * 4, strict=True):
        np.testing.assert_array_equal(value, tf.cast(manager.variable(0, name), tf.bfloat16))


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


def test_staged_values_are_those_that_the_step_before_read(make_manager, declared):
    manager = make_manager("parameter_server", 2, staged=True)
    first, moment = manager.variable(0, "conv0/bias"), "batchnorm0/moving_mean"

    @tf.function(autograph=False)
    def step(value):
        staged = [
            manager.read_for_step(tower, "conv0/bias", dtype)
            for tower, dtype in ((0, tf.float32), (0, tf.float32), (1, tf.bfloat16))
        ]
        assert staged[0] is staged[1]
        assert staged[2].dtype == tf.bfloat16
        decay = manager.read_for_weight_decay(first)
        current = manager.read_for_step(1, moment, tf.float32)
        first.assign(tf.fill(first.shape, value))
        manager.variable(0, moment).assign(tf.fill([4], value))
        return [tf.cast(one, tf.float32) for one in staged], decay, current

    found = []
    for value in (1.0, 2.0, 4.0):
        (one, _, other), decay, current = step(tf.constant(value))
        found.append([float(x[0]) for x in (one, other, decay, current)])
    # Moments are not staged.
    assert found == [[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 2]]
    first.assign([8.0] * 4)
    manager.after_restore()
    (one, _, other), decay, _ = step(tf.constant(16.0))
    assert [float(x[0]) for x in (one, other, decay)] == [8, 8, 8]


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


@pytest.mark.parametrize(
    ("mode", "fields", "products"),
    [
        ("parameter_server", {"parameter_device": "cpu"}, 1),
        ("parameter_server", {"parameter_device": "towers"}, 1),
        ("parameter_server", {"parameter_device": "towers", "reduction": "sum"}, 0),
        ("distributed_replicated", {"parameter_device": "towers"}, 1),
    ],
)
def test_gradients_meet_on_the_variables_device(mode, fields, products, make_manager, trainable):
    manager = make_manager(mode, 3, **fields)
    apply_devices = []

    @tf.function(autograph=False)
    def step(gradients):
        pairs = list(zip(gradients, trained(manager, 0), strict=True))
        devices, state = manager.preprocess_device_grads(columns_of([pairs] * 3))
        apply_devices.extend(devices)
        return [g for g, _ in manager.get_gradients_to_apply(0, state)]

    specs = [tf.TensorSpec(v.shape) for v in trainable]
    operations = step.get_concrete_function(specs).graph.get_operations()
    homes = [manager.updated(v.name).primary.device for v in trainable]
    assert [op.device for op in operations if op.type == "AddN"] == homes
    assert [op.device for op in operations if op.type == "Mul"] == homes * products
    assert apply_devices == [homes[0]]


def test_towers_must_agree_on_the_variable(make_manager, trainable):
    manager = make_manager("parameter_server", 2)
    first, second = trained(manager, 0)[1:3]
    gradient = tf.ones(first.shape)
    with pytest.raises(ValueError, match="towers use different variables for"):
        manager.preprocess_device_grads([VariableGradients([gradient] * 2, [first, second])])


def step_graph(manager, variables):
    optimizer = optimizer_of("momentum")
    create_slots(manager, optimizer)
    step = tf.function(lambda rate: one_step(manager, optimizer, variables, rate), autograph=False)
    return step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph


@pytest.mark.parametrize(
    ("mode", "caching"),
    [
        *(("parameter_server", caching) for caching in ("none", "consumer", "cpu")),
        ("distributed_replicated", "consumer"),
    ],
)
def test_a_shared_variable_is_read_once_and_cached_once_per_device(
    mode, caching, make_manager, trainable, cpu_devices
):
    # Towers 0 to 2 on two devices, of one task: its CPU is device 0, which reads from device 5.
    towers = (cpu_devices[1], cpu_devices[2], cpu_devices[1])
    trainable, home = trainable[:2], cpu_devices[5]
    manager = make_manager(mode, towers, trainable, ps_devices=(home,), variable_caching=caching)
    operations = step_graph(manager, trainable).get_operations()
    at_home = [op for op in operations if op.type == "ReadVariableOp" and op.device == home]
    assert len(at_home) == len(trainable)
    cached = [op for op in operations if op.name.rpartition("/")[2].startswith("cached")]
    where = {"none": [], "consumer": list(cpu_devices[1:3]), "cpu": [cpu_devices[0]]}[caching]
    assert sorted(op.device for op in cached) == sorted(where * len(trainable))
    # Nothing else takes a value from the ps task.
    abroad = [op for read in at_home for op in read.outputs[0].consumers() if op.device != home]
    assert abroad
    assert caching == "none" or {op.name for op in abroad} == {op.name for op in cached}


def test_without_ps_tasks_nothing_is_cached(make_manager, trainable):
    manager = make_manager("parameter_server", 2, trainable[:1], variable_caching="cpu")
    operations = step_graph(manager, trainable[:1]).get_operations()
    assert not any("cached" in op.name for op in operations)


def test_what_towers_read_lies_beside_what_is_updated(make_manager, declared, cpu_devices):
    manager = make_manager("distributed_replicated", 2, ps_devices=cpu_devices[5:6])
    for variable in declared:
        copies = manager.savable_variables()[variable.name].copies
        assert [copy.device for copy in copies] == list(cpu_devices[:2])
        updated = manager.updated(variable.name).copies
        if variable.trainable:
            assert [(v.name, v.device) for v in updated] == [
                (f"shadow/{variable.name}:0", cpu_devices[5])
            ]
            np.testing.assert_array_equal(updated[0], copies[1])
        else:
            assert updated == copies


def test_what_was_restored_reaches_copies_and_shadows(make_manager, trainable, cpu_devices):
    manager = make_manager("distributed_replicated", 2, ps_devices=cpu_devices[5:6])
    for number, variable in enumerate(trainable, 1):
        facade = manager.savable_variables()[variable.name]
        facade.primary.assign(tf.fill(facade.shape, float(number)))
    manager.after_restore()
    for number, variable in enumerate(trainable, 1):
        copies = manager.savable_variables()[variable.name].copies
        for copy in (*copies, *manager.updated(variable.name).copies):
            np.testing.assert_array_equal(copy, np.full(variable.shape, float(number)))
