"""Where algorithms add and send; test_traffic.py counts messages and bytes.

Tests variable_mgr/all_reduce/algorithms/*.py.
"""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from cnnbench.base.job import Task
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import ReduceContext
from cnnbench.variable_mgr.all_reduce.algorithms.pscpu import groups_per_shard
from cnnbench.variable_mgr.all_reduce.algorithms.tree import parent_place

A0, A1, B0, B1 = (
    f"/job:worker/replica:0/task:{task}/device:GPU:{gpu}" for task in (0, 1) for gpu in (0, 1)
)
GPUS = tuple(Task("localhost", 0).device("gpu", i) for i in range(8))
V100_MAINS = [(0, 5), (2, 7), (5, 0), (7, 2)]
# 64 KiB and some for each of 8 chunks, in whole rows of 64 bytes.
SHAPE = (8, 1025, 16)


# Copy --------------------------------------------------------------------------------------------


def test_copies_are_added_on_the_cpu(make_context, trace, cpu_devices):
    context = make_context(2, cpu_device=cpu_devices[5])
    adds = trace("copy", context, (3,), tensors=4).of_type("AddN")
    assert [op.device for op in adds] == [cpu_devices[5]] * 4


# In one memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "places"),
    [
        # Of three tensors of four devices; the devices of the additions, in turn.
        ("copy", "AddN", [0, 1, 2]),
        ("pscpu", "AddN", [5, 6, 5]),
        ("xring", "AddN", [3, 0, 1]),
        ("rechd", "AddV2", [0, 1, 0, 1, 2, 1, 2, 3, 2]),
        # One sum of two and one of three in the tree of four; tensors take the trees in turn.
        ("tree", "AddN", [1, 3, 0, 2, 2, 0]),
    ],
)
def test_additions_are_all_and_in_turn(name, kind, places, make_context, trace, cpu_devices):
    context = make_context(4, cpu_devices=cpu_devices[5:7])
    traced = trace(name, context, SHAPE, tensors=3)
    found = [(op.type, op.device) for op in traced.operations]
    assert found == [(kind, cpu_devices[place]) for place in places]
    assert all(total is results[0] for results in traced.results for total in results)


# Hierarchical copy -------------------------------------------------------------------------------


def position(device: str) -> int:
    return int(device.rpartition(":")[2])


def argument(operation: tf.Operation) -> int:
    """Which argument of the traced function a placeholder is."""
    number = operation.name.partition("_")[2]
    return int(number) if number else 0


def summands(tensor: tf.Tensor) -> list[int]:
    """The arguments of which a tensor is the sum, each as often as it is added."""
    if tensor.op.type == "Placeholder":
        return [argument(tensor.op)]
    return sorted(number for value in tensor.op.inputs for number in summands(value))


@pytest.mark.parametrize(
    ("topology", "mains"),
    [("dgx1", [(i % 8, (i + 4) % 8) for i in range(9)]), ("gcp_v100", [*V100_MAINS, *V100_MAINS])],
)
def test_additions_and_the_copy_are_on_two_main_devices_in_turn(topology, mains, trace):
    context = ReduceContext(devices=GPUS, network_topology=topology)
    for index, (first, second) in enumerate(mains):
        check_halves(trace("hierarchical_copy", context, (3,), first_index=index), first, second)


def check_halves(traced, first, second):
    near, far, total = traced.of_type("AddN")
    assert [position(op.device) for op in (near, far, total)] == [first, second, first]
    # Each main adds what is on its own half of the machine.
    own = first // 4
    halves = [0, 1, 2, 3], [4, 5, 6, 7]
    assert [summands(op.outputs[0]) for op in (near, far)] == [halves[own], halves[1 - own]]
    assert list(total.inputs) == [near.outputs[0], far.outputs[0]]
    [copy] = traced.of_type("Identity")
    assert position(copy.device) == second
    assert copy.inputs[0] is total.outputs[0]
    [given] = traced.results
    for device, tensor in zip(GPUS, given, strict=True):
        near_first = position(device) // 4 == own
        assert tensor is (total if near_first else copy).outputs[0]


@pytest.mark.parametrize("count", [3, 5, 7])
def test_an_odd_count_has_every_device_in_one_half(count, trace):
    for index in range(count):
        traced = trace(
            "hierarchical_copy", ReduceContext(devices=GPUS[:count]), (3,), first_index=index
        )
        for tensor in traced.results[0]:
            assert summands(tensor) == list(range(count))
        mains = {op.device for op in traced.of_type("AddN", "Identity")}
        halves = {position(device) >= count // 2 for device in mains}
        assert halves == {False, True}


# Shuffle -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "size", "expected"),
    [
        ("a", 1, "a"),
        ("abc", 1, "a b c"),
        ("abc", 2, "ac ba"),
        ("abc", 3, "abc"),
        ("abcd", 2, "ac bd"),
        ("abcd", 3, "aca bdb"),
        ("abcde", 1, "a b c d e"),
        ("abcde", 2, "ad be ca"),
        ("abcde", 3, "ace bda"),
        ("abcde", 5, "abcde"),
        ("abcdef", 4, "acea bdfb"),
    ],
)
def test_groups_wrap_around_the_devices(devices, size, expected):
    assert ["".join(group) for group in groups_per_shard(devices, size)] == expected.split()


@pytest.mark.parametrize(
    ("name", "shards", "additions"),
    [("psgpu", 2, [0, 2]), ("xring", 2, [3, 1]), ("tree", 3, [1, 3, 0, 2, 1, 3])],
)
def test_shards_in_one_memory_are_joined_once(name, shards, additions, make_context, trace):
    """Each device splits its tensor, and one of them joins the sums."""
    context = make_context(4, shards=shards)
    traced = trace(name, context, SHAPE)
    assert [len(op.outputs) for op in traced.of_type("SplitV")] == [shards] * 4
    assert [len(op.inputs) for op in traced.of_type("ConcatV2")] == [shards + 1]
    adds = traced.of_type("AddN", "AddV2")
    assert [op.device for op in adds] == [context.devices[place] for place in additions]
    assert len(traced.operations) - len(traced.of_type("Const")) == 4 * 2 + len(adds) + 2


# Ring --------------------------------------------------------------------------------------------


def ring(*devices, **fields):
    return all_reduce.create("xring", ReduceContext(devices=devices, **fields))


def test_a_chunk_goes_round_almost_twice(cpu_devices):
    algorithm = ring(A0, A1, B0)
    assert [algorithm.chunk_route(chunk) for chunk in range(3)] == [
        [A0, A1, B0, A0, A1],
        [A1, B0, A0, A1, B0],
        [B0, A0, A1, B0, A0],
    ]
    assert [algorithm.chunk_route(0, index)[0] for index in range(3)] == [A0, A1, B0]


def test_each_device_ends_as_many_sums_as_any_other():
    algorithm = ring(A0, A1, B0, B1, shards=2)
    ends = [algorithm.chunk_route(chunk)[3] for chunk in range(8)]
    assert sorted(ends) == sorted([A0, A1, B0, B1] * 2)


def test_rings_leave_a_process_by_different_devices():
    algorithm = ring(A0, A1, B0, B1, shards=2)
    links = [
        set(itertools.pairwise(algorithm.chunk_route(chunk)))
        & {(A0, B0), (A1, B1), (A1, B0), (A0, B1)}
        for chunk in (0, 1)
    ]
    assert links == [{(A1, B0)}, {(A0, B1)}]


def test_a_ring_enters_the_memory_of_a_process_once():
    cpus = [device.replace("GPU", "CPU") for device in (A0, A1, B0, B1)]
    algorithm = ring(*cpus)
    for index, chunk in itertools.product(range(8), range(2)):
        adding = algorithm.chunk_route(chunk, index)[:4]
        processes = [device.partition("/device")[0] for device in adding]
        assert len(list(itertools.groupby(processes))) == 2
    # All devices have their turn to end a sum.
    assert {algorithm.chunk_route(0, index)[3] for index in range(4)} == set(cpus)


# Recursive halving and doubling ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "places"), [(3, [0, 2, 0, 1]), (6, [0, 4, 1, 5, *range(4), *range(4)])]
)
def test_each_rank_adds_its_halves_and_those_beyond_a_power_of_two_a_half_each(
    count, places, make_context, trace
):
    context = make_context(count, share_memory=False)
    adds = trace("rechd", context, SHAPE).of_type("AddV2")
    assert [op.device for op in adds] == [context.devices[place] for place in places]


def test_the_first_rounds_stay_in_a_memory():
    devices = [f"/job:worker/replica:0/task:{t}/device:CPU:{d}" for t in (0, 1) for d in (0, 1)]
    order = all_reduce.create("rechd", ReduceContext(devices=tuple(devices))).device_order
    assert order() == [devices[i] for i in (0, 2, 1, 3)]
    assert order(5) == [devices[i] for i in (2, 1, 3, 0)]


# Double binary tree ------------------------------------------------------------------------------


def parents(count: int) -> dict[int, int | None]:
    root = 1 << (count.bit_length() - 1)
    return {
        place: None if place == root else parent_place(place, count)
        for place in range(1, count + 1)
    }


def test_every_tree_is_binary_and_flat_and_odd_places_are_leaves():
    for count in range(2, 70):
        above = parents(count)
        for place in above:
            children = [child for child, its in above.items() if its == place]
            assert len(children) in ((0,) if place % 2 else (1, 2))
            depth = 0
            while above[place] is not None:
                place, depth = above[place], depth + 1
            assert depth <= count.bit_length()


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8])
def test_an_inner_device_of_one_tree_is_a_leaf_of_the_other(count, make_context):
    algorithm = all_reduce.create("tree", make_context(count))
    for index in range(2 * count):
        inner = [
            {algorithm.device_at_place(chunk, place, index) for place in range(2, count + 1, 2)}
            for chunk in (0, 1)
        ]
        assert not inner[0] & inner[1]
        assert len(inner[0]) == count // 2
