"""Memories, groups, their leaders and what each level runs; test_oracle.py has the sums.

Tests variable_mgr/all_reduce/context.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.base.job import Task
from cnnbench.variable_mgr.all_reduce import ReduceContext, registry
from cnnbench.variable_mgr.all_reduce.context import group_devices
from cnnbench.variable_mgr.all_reduce.reducer import TwoLevelAllReduce


def groups_by(devices, sizes):
    remaining = iter(devices)
    return [tuple(itertools.islice(remaining, size)) for size in sizes]


def context_of(devices):
    return ReduceContext(devices=devices, cpu_devices=devices)


def traced(algorithm, count, indices=(0,)):
    """The graph of an algorithm, once per index, on values of `count` devices."""
    step = tf.function(
        lambda values: [algorithm(values, index) for index in indices], autograph=False
    )
    return step.get_concrete_function([tf.TensorSpec([3])] * count).graph


def additions(graph):
    return [op for op in graph.get_operations() if op.type in ("AddN", "AddV2")]


@pytest.fixture
def run(call_whole):
    """run(algorithm, devices, indices): sums of integers at each index, against NumPy."""

    def check(algorithm, devices, indices, length=37):
        rng = np.random.default_rng(7)
        values = [rng.integers(-99, 99, size=length).astype(np.float32) for _ in devices]

        @tf.function(autograph=False)
        def step(values):
            return [algorithm(values, index) for index in indices]

        for sums in call_whole(step, [tf.constant(value) for value in values]):
            for total in sums:
                np.testing.assert_array_equal(total, sum(values))

    return check


def gpus(task, *indices):
    return tuple(Task("worker", task).device("gpu", i) for i in indices)


TASKS = gpus(0, 0, 1) + gpus(1, 0, 1)


def test_cpus_of_a_process_have_one_memory():
    cpus = (Task("worker", task).device("cpu", i) for task, i in ((1, 0), (1, 1), (2, 0)))
    devices = (*cpus, *gpus(1, 0, 1))
    context = ReduceContext(devices=devices)
    first, second, *others = map(context.memory_of, devices)
    assert first == second
    assert len({first, *others}) == context.num_memories == 4
    apart = ReduceContext(devices=devices, share_memory=False)
    assert [apart.memory_of(device) for device in devices] == [*devices]
    assert apart.num_memories == 5


@pytest.mark.parametrize(
    ("size", "groups"),
    [
        (0, ["abc", "de", "f"]),
        (1, [*"abcdef"]),
        (2, ["ab", "c", "de", "f"]),
        (3, ["abc", "de", "f"]),
        (9, ["abc", "de", "f"]),
    ],
)
def test_groups_are_runs_of_devices_within_a_process_in_order(size, groups):
    ps = Task("ps", 1).device("gpu", 0)
    device = dict(zip("abcdef", (*gpus(1, 0, 1, 2), *gpus(11, 0, 1), ps), strict=True))
    found = group_devices([device[name] for name in "adbecf"], size)
    assert found == tuple(tuple(device[name] for name in group) for group in groups)


@pytest.mark.parametrize("sizes", [(1, 3), (4, 1, 2), (1, 1, 1, 1), (8,)], ids=str)
def test_groups_of_any_size(sizes, cpu_devices, run):
    devices = cpu_devices[: sum(sizes)]
    algorithm = TwoLevelAllReduce(
        "xring", "rechd", context_of(devices), groups_by(devices, sizes), 1
    )
    run(algorithm, devices, range(2 * max(sizes) + 1))


def test_groups_that_interleave_keep_the_order_of_devices(cpu_devices, run):
    devices = cpu_devices[:4]
    groups = [(devices[3], devices[0]), (devices[1], devices[2])]
    algorithm = TwoLevelAllReduce("copy", "copy", context_of(devices), groups, 1)
    first = additions(traced(algorithm, 4))[0]
    # "values" and "values_3", the arguments of devices 3 and 0.
    assert sorted(tensor.op.name for tensor in first.inputs) == ["values", "values_3"]
    run(algorithm, devices, range(2))


def test_leaders_take_turns_and_stay_on_their_devices(cpu_devices):
    devices = cpu_devices[:5]
    groups = groups_by(devices, (2, 3))
    algorithm = TwoLevelAllReduce("psgpu", "copy", context_of(devices), groups, 1)
    last = additions(traced(algorithm, 5, range(6)))[2::3]
    # Three turns with the first group as the place of the last addition, then the second.
    assert [op.device for op in last] == [devices[i] for i in (0, 1, 0, 2, 3, 4)]


def test_one_group_is_the_algorithm_within(cpu_devices):
    devices = cpu_devices[:4]
    algorithm = TwoLevelAllReduce("copy", "xring", context_of(devices), [devices], 1)
    graph = traced(algorithm, 4, [2])
    work = [op for op in graph.get_operations() if op.type not in ("Placeholder", "Identity")]
    assert [(op.type, op.device) for op in work] == [("AddN", devices[2])]


def test_the_devices_of_a_group_share_the_sum(cpu_devices):
    devices = cpu_devices[:4]
    groups = groups_by(devices, (2, 2))
    algorithm = TwoLevelAllReduce("xring", "collective", context_of(devices), groups, 1)
    given = []
    traced(lambda values, index: given.extend(algorithm(values, index)), 4)
    assert given[0] is given[1]
    assert given[2] is given[3]
    assert [given[0].device, given[2].device] == [devices[0], devices[2]]


@pytest.mark.parametrize("says_so", [False, True])
@pytest.mark.usefixtures("registered")
def test_what_runs_together_is_kept_whole(says_so, cpu_devices, needed):
    class Waiting:
        """One operation on each device, of which none may be missing."""

        runs_together = says_so

        def __init__(self, context):
            self._devices = context.devices

        def __call__(self, tensors, index):
            def add(device):
                with tf.device(device):
                    return tf.raw_ops.AddN(inputs=list(tensors), name="together")

            return [add(device) for device in self._devices]

    registry.register("waiting")(Waiting)
    devices = cpu_devices[:5]
    groups = groups_by(devices, (2, 3))
    algorithm = TwoLevelAllReduce("waiting", "xring", context_of(devices), groups, 1)
    kept = [name for name in needed(traced(algorithm, 5, range(3))) if name.startswith("together")]
    # Three tensors, each on all five devices or on the two that speak.
    assert len(kept) == 3 * (5 if says_so else 2)


def test_cpus_that_reduce_add_for_their_own_group_only(cpu_devices):
    devices = cpu_devices[:4]
    for group in (devices[:2], devices[2:]):
        assert context_of(devices).for_members(group).cpu_devices == group


def test_each_group_adds_on_the_cpu_of_its_own_process():
    cpus = [Task("worker", task).device("cpu", 0) for task in (0, 1)]
    context = ReduceContext(devices=TASKS, cpu_devices=tuple(cpus), cpu_device=cpus[0])
    for within in ("pscpu", "copy"):
        algorithm = TwoLevelAllReduce(within, "psgpu", context, group_devices(TASKS), 1)
        adds = [op.device for op in additions(traced(algorithm, 4))]
        assert adds[:2] == cpus
        assert adds[2] in TASKS


def test_nccl_within_gpus_and_a_ring_between(with_nccl):
    algorithm = TwoLevelAllReduce(
        "nccl", "xring", ReduceContext(devices=TASKS), group_devices(TASKS), 1
    )
    graph = traced(algorithm, 4, [1])
    reductions = [op for op in graph.get_operations() if op.type == "NcclAllReduce"]
    assert [op.device for op in reductions] == [*TASKS]
    assert [op.get_attr("num_devices") for op in reductions] == [2] * 4
    names = [op.get_attr("shared_name") for op in reductions]
    assert names[0] == names[1] != names[2] == names[3]
    (add,) = additions(graph)
    # At index 1 the second GPU of each process speaks.
    assert add.device in (TASKS[1], TASKS[3])
