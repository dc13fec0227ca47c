"""Tests variable_mgr/all_reduce/algorithms/collective.py."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.base.job import Task
from cnnbench.variable_mgr.all_reduce import ReduceContext, create
from cnnbench.variable_mgr.all_reduce.algorithms.collective import IN_FLIGHT, collective_group_key

GPUS = tuple(Task("localhost", 0).device("gpu", i) for i in range(4))
TASKS = tuple(Task("worker", task).device("gpu", i) for task in (0, 1) for i in range(2))


pytestmark = pytest.mark.usefixtures("with_nccl")


def make(devices, shards=1, hint="auto", own=None):
    context = ReduceContext(devices=devices, shards=shards, communication_hint=hint, own=own)
    return create("collective", context)


def constants(devices, shape, dtype=tf.float32):
    """Device d has the value 10^d everywhere, so that a sum shows who is in it."""
    values = []
    for number, device in enumerate(devices):
        with tf.device(device):
            values.append(tf.fill(shape, tf.cast(10**number, dtype)))
    return values


def operations(function, devices, shape=(3,), dtype=tf.float32):
    graph = function.get_concrete_function([tf.TensorSpec(shape, dtype)] * len(devices)).graph
    return [op for op in graph.get_operations() if op.type.startswith("Collective")]


def step_of(algorithm, indices):
    """A function of a value per device: the algorithm once per index."""
    return tf.function(
        lambda values: [algorithm(values, index) for index in indices], autograph=False
    )


def test_group_keys_name_sets_of_devices():
    assert collective_group_key(GPUS) == collective_group_key(tuple(reversed(GPUS)))
    subsets = [GPUS[:2], GPUS[:3], GPUS, GPUS[2:], (GPUS[0], GPUS[2])]
    keys = {collective_group_key(devices) for devices in subsets}
    assert len(keys) == len(subsets)
    # The op's attribute is a signed 32-bit number; tf.distribute counts up from 1.
    assert all(2**30 <= key < 2**31 for key in keys)
    other_task = tuple(device.replace("task:0", "task:1") for device in GPUS)
    assert collective_group_key(other_task) not in keys


def test_the_limit_counts_all_algorithms_of_a_device(cpu_devices):
    """A hybrid spec, or the two levels of one, have several on the same device."""
    pair, everyone = make(cpu_devices[:2]), make(cpu_devices[:3], shards=2)

    @tf.function(autograph=False)
    def step(values):
        for index in range(IN_FLIGHT):
            pair(values[:2], index)
            everyone(values, index)

    found = operations(step, cpu_devices[:3])
    first = [op for op in found if op.device == cpu_devices[0]]
    third = [op for op in found if op.device == cpu_devices[2]]
    assert [len(op.control_inputs) for op in first] == [0] * IN_FLIGHT + [1] * IN_FLIGHT
    assert first[IN_FLIGHT].control_inputs[0] is first[0]
    assert not any(op.control_inputs for op in third)


@pytest.mark.slow
def test_a_thousand_ops_on_eight_devices(cpu_devices):
    algorithm = make(cpu_devices)

    @tf.function(autograph=False)
    def step(values):
        result = []
        sums = [algorithm(values, index) for index in range(130)]
        for device, of_device in zip(cpu_devices, zip(*sums, strict=True), strict=True):
            with tf.device(device):
                result.append(tf.stack(of_device))
        return result

    for total in step(constants(cpu_devices, (2,))):
        np.testing.assert_array_equal(total, np.full((130, 2), 11111111.0))


def test_functions_alive_together_and_reductions_in_a_chain(cpu_devices):
    devices = cpu_devices[:4]
    algorithm = make(devices)

    @tf.function(autograph=False)
    def one(values):
        return algorithm(values, 0)

    @tf.function(autograph=False)
    def chained(values):
        for index in range(2 * IN_FLIGHT):
            # A mean of what is equal already, so any number of rounds gives the sum.
            values = algorithm(values, index)
            scaled = []
            for device, value in zip(devices, values, strict=True):
                with tf.device(device):
                    scaled.append(value / 4)
            values = scaled
        return values

    for _ in range(2):
        np.testing.assert_array_equal(one(constants(devices, (7,)))[3], [1111.0] * 7)
        np.testing.assert_array_equal(chained(constants(devices, (7,)))[0], [1111.0 / 4] * 7)
        # A new trace of the same function, beside the old one.
        np.testing.assert_array_equal(one(constants(devices, (2, 2)))[1], np.full((2, 2), 1111.0))


def test_in_a_loop_of_steps(cpu_devices):
    devices = cpu_devices[:2]
    algorithm = make(devices)

    @tf.function(autograph=False)
    def steps(first, second):
        def body(count, a, b):
            a, b = algorithm([a, b], 0)
            return count + 1, a, b

        return tf.while_loop(lambda count, *_: count < 3, body, (0, first, second))

    _, first, second = steps(*constants(devices, (2,)))
    np.testing.assert_array_equal(first, [44.0, 44.0])
    np.testing.assert_array_equal(second, [44.0, 44.0])


def test_nothing_is_sent_of_an_empty_tensor(cpu_devices, trace):
    traced = trace("collective", ReduceContext(devices=cpu_devices[:2]), (0, 3))
    assert traced.of_type("CollectiveReduce") == []


def test_a_graph_is_not_kept_alive(cpu_devices):
    algorithm = make(cpu_devices[:2])

    def trace_once():
        spec = [tf.TensorSpec((3,))] * 2
        return weakref.ref(step_of(algorithm, range(2)).get_concrete_function(spec).graph)

    graph = trace_once()
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize(
    ("devices", "offsets"),
    [(GPUS[:2], [0, -1]), (GPUS[:3], [0, -1]), (GPUS, [0, -2]), (TASKS, [0, -1])],
)
def test_two_rings_begin_half_the_devices_of_a_process_apart(devices, offsets, trace):
    traced = trace("collective", ReduceContext(devices=devices, shards=2), (3,))
    found = traced.of_type("CollectiveReduce")
    assert [list(op.get_attr("subdiv_offsets")) for op in found] == [offsets] * len(devices)


@pytest.mark.parametrize(
    ("devices", "shards", "asked", "hint"),
    [
        (GPUS, 1, "auto", "nccl"),
        (TASKS, 1, "auto", "nccl"),
        (GPUS, 1, "nccl", "nccl"),
        (GPUS, 1, "ring", "ring"),
        (GPUS, 2, "auto", "auto"),
        ("cpu_devices", 1, "auto", "auto"),
        ("cpu_devices", 2, "auto", "auto"),
        ("cpu_devices", 1, "ring", "ring"),
    ],
)
def test_the_hint_of_a_group(devices, shards, asked, hint, request):
    devices = request.getfixturevalue(devices)[:2] if isinstance(devices, str) else devices
    context = ReduceContext(devices=devices, shards=shards, communication_hint=asked)
    assert context.collective_hint == hint
    algorithm = make(devices, shards, asked)
    reduced = operations(step_of(algorithm, [0]), devices)
    gathered = operations(tf.function(algorithm.gather, autograph=False), devices)
    found = [(op.type, op.device, op.get_attr("communication_hint")) for op in reduced + gathered]
    kinds = ("CollectiveReduce", "CollectiveGather")
    assert found == [(kind, device, hint.encode()) for kind in kinds for device in devices]


def test_nccl_has_one_reduction_under_way():
    """Processes that launch operations of a communicator in another order wait for ever."""
    own = TASKS[2:]
    by_nccl, ring = make(TASKS, own=own), make(TASKS, hint="ring", own=own)

    @tf.function(autograph=False)
    def step(values):
        by_ring = [ring(values, index) for index in range(2)]
        return by_ring, [by_nccl(values, index) for index in range(3)], by_nccl.gather(values)

    found = operations(step, own)
    assert {op.device for op in found} == {*own}
    for d in range(2):
        mine = found[d::2]
        assert [list(op.control_inputs) for op in mine] == [[], [], *([op] for op in mine[1:-1])]


def test_bfloat16_travels_as_float32_by_nccl_alone():
    def dtypes(hint):
        step = step_of(make(GPUS[:2], hint=hint), [0])
        found = operations(step, GPUS[:2], dtype=tf.bfloat16)
        results = step.get_concrete_function([tf.TensorSpec((3,), tf.bfloat16)] * 2)
        assert [one.dtype for one in results.outputs] == [tf.bfloat16] * 2
        return {op.get_attr("T") for op in found}

    assert dtypes("nccl") == {tf.float32}
    assert dtypes("ring") == {tf.bfloat16}


def test_a_build_without_nccl_has_the_ring(nccl_says):
    nccl_says("All kernels registered: <no registered kernels>")
    (hint,) = {
        op.get_attr("communication_hint") for op in operations(step_of(make(GPUS), [0]), GPUS)
    }
    assert hint == b"ring"
    with pytest.raises(ValueError, match=f"{tf.__version__} was built without NCCL; use ring"):
        make(GPUS, hint="nccl")


def test_eager_reductions_are_refused(cpu_devices):
    with pytest.raises(RuntimeError, match=r"inside a tf\.function only"):
        make(cpu_devices[:2])(constants(cpu_devices[:2], (3,)), 0)
