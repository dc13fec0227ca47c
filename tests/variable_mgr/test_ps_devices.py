"""Variables on ps tasks: where they go, how often they are read and sent, what a step updates.

Logical CPU devices stand for the tasks.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from bowls import create_slots, one_step, optimizer_of

from cnnbench.errors import FlagError
from cnnbench.models.spec import Initializer, VariableSpec
from cnnbench.variable_mgr import VariableMgrSpec

MODES = ("parameter_server", "distributed_replicated")
WORKER = "/job:worker/replica:0/task:1/device:"


def homes(manager):
    return [manager.updated(name).copies[0].device for name in manager.savable_variables()]


def sized(*sizes):
    return [
        VariableSpec(f"layer{i}/kernel", (n,), Initializer.constant(0.0))
        for i, n in enumerate(sizes)
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("strategy", "sizes", "tasks"),
    [
        ("greedy_bytes", (10, 4, 4, 3, 1, 5, 2), [0, 1, 2, 1, 2, 2, 1]),
        ("round_robin", (9, 1, 1, 1, 1), [0, 1, 2, 0, 1]),
    ],
)
def test_variables_go_to_ps_tasks_and_not_to_towers(
    mode, strategy, sizes, tasks, make_manager, cpu_devices
):
    ps = cpu_devices[2:5]
    manager = make_manager(mode, 2, variables=sized(*sizes), ps_devices=ps, ps_strategy=strategy)
    assert homes(manager) == [ps[task] for task in tasks]


@pytest.mark.parametrize("tasks", [2, 3])
def test_ps_tasks_differ_by_at_most_the_largest_variable(tasks, make_manager, cpu_devices):
    variables = sized(*((7919 * i) % 1000 + 1 for i in range(60)))
    ps = cpu_devices[1 : 1 + tasks]
    manager = make_manager("parameter_server", 1, variables=variables, ps_devices=ps)
    load = dict.fromkeys(ps, 0)
    for home, variable in zip(homes(manager), variables, strict=True):
        load[home] += variable.bytes
    assert max(load.values()) - min(load.values()) <= max(v.bytes for v in variables)


def test_a_spec_refuses_other_ways():
    fields = {"variable_update": "x", "devices": ("/CPU:0",), "cpu_device": "/CPU:0"}
    with pytest.raises(FlagError, match="--ps_strategy=random: must be one of greedy_bytes, round"):
        VariableMgrSpec(**fields, ps_strategy="random")
    with pytest.raises(FlagError, match="--variable_caching=disk: must be one of none, consumer"):
        VariableMgrSpec(**fields, variable_caching="disk")


@pytest.mark.parametrize(
    ("ps", "policy", "expected"),
    [
        (0, "consumer", None),
        (0, "cpu", None),
        (1, "none", None),
        (1, "consumer", WORKER + "GPU:1"),
        (1, "cpu", WORKER + "CPU:0"),
    ],
)
def test_where_values_are_cached(ps, policy, expected):
    spec = VariableMgrSpec(
        variable_update="x",
        devices=(WORKER + "GPU:1",),
        cpu_device="/CPU:0",
        ps_devices=("/job:ps/replica:0/task:0/device:CPU:0",) * ps,
        variable_caching=policy,
    )
    assert spec.caching_device(WORKER + "GPU:1") == expected


def step_graph(manager, variables):
    optimizer = optimizer_of("momentum")
    create_slots(manager, optimizer)
    step = tf.function(lambda rate: one_step(manager, optimizer, variables, rate), autograph=False)
    return step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("caching", ["none", "consumer", "cpu"])
def test_a_shared_variable_is_read_once_and_cached_once_per_device(
    mode, caching, make_manager, trainable, cpu_devices
):
    # Towers 0 to 3 on two devices, of one task: its CPU is device 0, which reads from device 5.
    towers = (cpu_devices[1], cpu_devices[2], cpu_devices[1], cpu_devices[2])
    home = cpu_devices[5]
    manager = make_manager(mode, towers, ps_devices=(home,), variable_caching=caching)
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


@pytest.mark.parametrize("mode", MODES)
def test_slots_and_updates_are_on_the_ps(mode, make_manager, trainable, cpu_devices):
    manager = make_manager(mode, 2, ps_devices=cpu_devices[4:6], ps_strategy="round_robin")
    operations = step_graph(manager, trainable).get_operations()
    applied = [op.device for op in operations if op.type == "ResourceApplyMomentum"]
    assert applied == [manager.updated(v.name).copies[0].device for v in trainable]
    assert set(applied) == set(cpu_devices[4:6])
    assert {op.device for op in operations if op.type == "AddN"} == set(cpu_devices[4:6])


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
