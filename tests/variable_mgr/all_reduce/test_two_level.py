"""Two levels: groups, their leaders and what each level runs; test_oracle.py has the sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.base.jobs.devices import device_string
from cnnbench.errors import FlagError
from cnnbench.variable_mgr.all_reduce import ReduceContext, parse_all_reduce_spec, registry
from cnnbench.variable_mgr.all_reduce.context import groups_of
from cnnbench.variable_mgr.all_reduce.reducer import Reducer, TwoLevel


def groups_by(devices, sizes):
    remaining = iter(devices)
    return [tuple(itertools.islice(remaining, size)) for size in sizes]


def context_of(devices, **fields):
    return ReduceContext(**{"devices": devices, "cpu_devices": devices, **fields})


def traced(algorithm, count, indices=(0,), shape=(3,)):
    """The graph of an algorithm, once per index, on values of `count` devices."""
    step = tf.function(
        lambda values: [algorithm(values, index) for index in indices], autograph=False
    )
    return step.get_concrete_function([tf.TensorSpec(shape)] * count).graph


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


@pytest.mark.parametrize("sizes", [(1, 3), (4, 1, 2), (1, 1, 1, 1), (8,)], ids=str)
def test_groups_of_any_size(sizes, cpu_devices, run):
    devices = cpu_devices[: sum(sizes)]
    algorithm = TwoLevel("xring", "rechd", context_of(devices), groups_by(devices, sizes), 1)
    run(algorithm, devices, range(2 * max(sizes) + 1))


def test_groups_that_interleave_keep_the_order_of_devices(cpu_devices, run):
    devices = cpu_devices[:4]
    groups = [(devices[3], devices[0]), (devices[1], devices[2])]
    algorithm = TwoLevel("copy", "copy", context_of(devices), groups, 1)
    first = additions(traced(algorithm, 4))[0]
    # "values" and "values_3", the arguments of devices 3 and 0.
    assert sorted(tensor.op.name for tensor in first.inputs) == ["values", "values_3"]
    run(algorithm, devices, range(2))


def test_leaders_take_turns_and_stay_on_their_devices(cpu_devices):
    devices = cpu_devices[:5]
    groups = groups_by(devices, (2, 3))
    algorithm = TwoLevel("psgpu", "copy", context_of(devices), groups, 1)
    last = additions(traced(algorithm, 5, range(6)))[2::3]
    # Three turns with the first group as the place of the last addition, then the second.
    assert [op.device for op in last] == [devices[i] for i in (0, 1, 0, 2, 3, 4)]


def test_one_group_is_the_algorithm_within(cpu_devices):
    devices = cpu_devices[:4]
    algorithm = TwoLevel("copy", "xring", context_of(devices), [devices], 1)
    graph = traced(algorithm, 4, [2])
    work = [op for op in graph.get_operations() if op.type not in ("Placeholder", "Identity")]
    assert [(op.type, op.device) for op in work] == [("AddN", devices[2])]


def test_the_devices_of_a_group_share_the_sum(cpu_devices):
    devices = cpu_devices[:4]
    groups = groups_by(devices, (2, 2))
    algorithm = TwoLevel("xring", "collective", context_of(devices), groups, 1)
    given = []
    traced(lambda values, index: given.extend(algorithm(values, index)), 4)
    assert given[0] is given[1]
    assert given[2] is given[3]
    assert [given[0].device, given[2].device] == [devices[0], devices[2]]


@pytest.fixture
def poison():
    """An algorithm that gives every device but the one of the index what cannot be computed."""

    class Poison:
        def __init__(self, context):
            self._devices = context.devices

        def __call__(self, tensors, index):
            result = []
            for number, device in enumerate(self._devices):
                with tf.device(device):
                    total = tf.add_n(tensors)
                    if number != index % len(self._devices):
                        # Out of range, which is an error where it is computed on a CPU.
                        total = tf.raw_ops.GatherV2(params=total, indices=[9**9], axis=0)
                    result.append(total)
            return result

    registry.register("test_poison")(Poison)
    yield
    del registry._factories["test_poison"]


@pytest.mark.usefixtures("poison")
def test_what_the_silent_devices_would_compute_is_not_run(cpu_devices, run):
    devices = cpu_devices[:4]
    context, pairs = context_of(devices), groups_by(devices, (2, 2))
    run(TwoLevel("test_poison", "copy", context, pairs, 1), devices, range(4))
    # It is an error where it is used.
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(TwoLevel("test_poison", "copy", context, [devices], 1), devices, [0])


class Waiting:
    """An algorithm with one operation on each device, of which none may be missing."""

    def __init__(self, context):
        self._devices = context.devices

    def __call__(self, tensors, index):
        sums = []
        for device in self._devices:
            with tf.device(device):
                sums.append(tf.raw_ops.AddN(inputs=list(tensors), name="together"))
        return sums


class WaitingSaysSo(Waiting):
    runs_together = True


@pytest.mark.parametrize("says_so", [False, True])
@pytest.mark.usefixtures("registered")
def test_what_runs_together_is_kept_whole(says_so, cpu_devices, needed):
    registry.register("waiting")(WaitingSaysSo if says_so else Waiting)
    devices = cpu_devices[:5]
    groups = groups_by(devices, (2, 3))
    algorithm = TwoLevel("waiting", "xring", context_of(devices), groups, 1)
    kept = [name for name in needed(traced(algorithm, 5, range(3))) if name.startswith("together")]
    # Three tensors, each on all five devices or on the two that speak.
    assert len(kept) == 3 * (5 if says_so else 2)


def test_running_together_has_a_default(cpu_devices):
    context = context_of(cpu_devices[:2])
    assert registry.runs_together(WaitingSaysSo(context)) is True
    assert registry.runs_together(Waiting(context)) is False
    assert registry.runs_together(registry.create("collective", context)) is True
    assert registry.runs_together(registry.create("xring", context)) is False
    assert registry.runs_together(lambda tensors, index: tensors) is False


def test_each_group_adds_on_the_cpu_of_its_own_process():
    gpus = [device_string("worker", task, "gpu", i) for task in (0, 1) for i in range(2)]
    cpus = [device_string("worker", task, "cpu", 0) for task in (0, 1)]
    context = ReduceContext(devices=tuple(gpus), cpu_devices=tuple(cpus), cpu_device=cpus[0])
    for within in ("pscpu", "copy"):
        algorithm = TwoLevel(within, "psgpu", context, groups_of(gpus), 1)
        adds = [op.device for op in additions(traced(algorithm, 4))]
        assert adds[:2] == cpus
        assert adds[2] in gpus


@pytest.mark.parametrize(
    ("levels", "sizes", "shards", "message"),
    [
        (("copy", "nccl"), (2, 2), 1, "first level only"),
        (("nccl", "xring"), (2, 2), 1, "GPUs only"),
        (("copy", "psgpu"), (4,), 3, r"3 shards between 1 group\(s\)"),
        (("copy", "psgpu"), (2, 2), 3, r"3 shards between 2 group\(s\)"),
        (("xring", "copy"), (2, 2), 2, "copy takes no shards"),
        (("copy", "copy"), (3,), 1, "do not divide"),
    ],
)
def test_what_is_refused_before_anything_is_traced(levels, sizes, shards, message, cpu_devices):
    devices = cpu_devices[:4]
    with pytest.raises(ValueError, match=message):
        TwoLevel(*levels, context_of(devices), groups_by(devices, sizes), shards)


def test_nccl_within_gpus_and_a_ring_between(monkeypatch):
    from cnnbench.variable_mgr.all_reduce.algorithms import nccl

    monkeypatch.setattr(nccl, "kernel_exists", lambda: True)
    gpus = [device_string("worker", task, "gpu", i) for task in (0, 1) for i in range(2)]
    algorithm = TwoLevel("nccl", "xring", ReduceContext(devices=tuple(gpus)), groups_of(gpus), 1)
    graph = traced(algorithm, 4, [1])
    reductions = [op for op in graph.get_operations() if op.type == "NcclAllReduce"]
    assert [op.device for op in reductions] == gpus
    assert [op.get_attr("num_devices") for op in reductions] == [2] * 4
    names = [op.get_attr("shared_name") for op in reductions]
    assert names[0] == names[1] != names[2] == names[3]
    (add,) = additions(graph)
    # At index 1 the second GPU of each process speaks.
    assert add.device in (gpus[1], gpus[3])


def test_shards_go_to_the_level_between(cpu_devices, run):
    devices = cpu_devices[:6]
    groups = groups_by(devices, (2, 2, 2))
    reducer = Reducer(parse_all_reduce_spec("pscpu/psgpu#3"), context_of(devices), groups)
    run(lambda values, index: reducer([values])[0], devices, [0], 100_003)
    with pytest.raises(FlagError, match="4 shards between 3 group"):
        Reducer(parse_all_reduce_spec("pscpu/psgpu#4"), context_of(devices), groups)
