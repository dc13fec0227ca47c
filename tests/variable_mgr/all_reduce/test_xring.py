from __future__ import annotations

import functools
import itertools

import pytest

from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import ReduceContext

A0, A1, B0, B1 = (
    f"/job:worker/replica:0/task:{task}/device:GPU:{gpu}" for task in (0, 1) for gpu in (0, 1)
)
# 64 KiB and some for each of 8 chunks, in whole rows of 64 bytes.
SHAPE = (8, 1025, 16)


def ring(*devices, **fields):
    return all_reduce.create("xring", ReduceContext(devices=devices, **fields))


def test_a_chunk_goes_round_almost_twice(cpu_devices):
    algorithm = ring(A0, A1, B0)
    assert [algorithm.way(chunk) for chunk in range(3)] == [
        [A0, A1, B0, A0, A1],
        [A1, B0, A0, A1, B0],
        [B0, A0, A1, B0, A0],
    ]


def test_each_device_ends_as_many_sums_as_any_other():
    algorithm = ring(A0, A1, B0, B1, shards=2)
    ends = [algorithm.way(chunk)[3] for chunk in range(8)]
    assert sorted(ends) == sorted([A0, A1, B0, B1] * 2)


def test_rings_leave_a_process_by_different_devices():
    algorithm = ring(A0, A1, B0, B1, shards=2)
    links = [
        set(itertools.pairwise(algorithm.way(chunk))) & {(A0, B0), (A1, B1), (A1, B0), (A0, B1)}
        for chunk in (0, 1)
    ]
    assert links == [{(A1, B0)}, {(A0, B1)}]


def test_the_index_rotates_where_chunks_begin():
    algorithm = ring(A0, A1, B0)
    assert [algorithm.way(0, index)[0] for index in range(3)] == [A0, A1, B0]


def test_a_ring_enters_the_memory_of_a_process_once():
    cpus = [device.replace("GPU", "CPU") for device in (A0, A1, B0, B1)]
    algorithm = ring(*cpus)
    for index, chunk in itertools.product(range(8), range(2)):
        adding = algorithm.way(chunk, index)[:4]
        processes = [device.partition("/device")[0] for device in adding]
        assert len(list(itertools.groupby(processes))) == 2
    # All devices have their turn to end a sum.
    assert {algorithm.way(0, index)[3] for index in range(4)} == set(cpus)


@pytest.mark.usefixtures("separate_memories")
@pytest.mark.parametrize(("count", "shards", "index"), [(2, 1, 0), (3, 1, 5), (8, 1, 1), (4, 2, 3)])
def test_additions_and_hops_are_where_the_way_says(count, shards, index, make_context, trace, flow):
    context = make_context(count, shards=shards)
    way = functools.partial(all_reduce.create("xring", context).way, index=index)
    traced = trace("xring", context, SHAPE, first_index=index)
    received = {device: [] for device in context.devices}
    for chunk in range(count * shards):
        devices = way(chunk)
        moving = flow.Part(chunk, devices[0])
        for device in devices[1:count]:
            moving = flow.Sum(device, (moving, flow.Part(chunk, device)))
        received[devices[count - 1]].append(moving)
        for device in devices[count:]:
            moving = flow.Hop(device, moving)
            received[device].append(moving)
    for device, result in zip(context.devices, traced.results[0], strict=True):
        assert traced.chunks(result) == received[device]
        assert result.op.device == device


@pytest.mark.usefixtures("separate_memories")
def test_no_operation_is_wasted(make_context, trace):
    traced = trace("xring", make_context(8), SHAPE)
    counts = {kind: len(traced.of_type(kind)) for kind in ("AddV2", "Identity", "SplitV")}
    assert counts == {"AddV2": 8 * 7, "Identity": 8 * 7, "SplitV": 8}
    assert len(traced.of_type("ConcatV2")) == 8


@pytest.mark.usefixtures("separate_memories")
def test_a_tiny_tensor_is_one_chunk(make_context, trace):
    traced = trace("xring", make_context(8), (3, 5))
    assert [op.type for op in traced.operations] == ["AddV2"] * 7 + ["Identity"] * 7


def test_one_memory_needs_no_chunks_and_no_hops(make_context, trace, flow):
    context = make_context(4)
    traced = trace("xring", context, SHAPE, tensors=4)
    assert [op.type for op in traced.operations] == ["AddV2"] * (4 * 3)
    for index, result in enumerate(traced.results):
        assert all(total is result[0] for total in result)
        moving, *others = (context.devices[(index + hop) % 4] for hop in range(4))
        for device in others:
            moving = flow.Sum(device, (moving, device))
        assert traced.source(result[0]) == moving


def test_shards_are_chunks_even_in_one_memory(make_context, trace):
    traced = trace("xring", make_context(4, shards=2), SHAPE)
    assert len(traced.chunks(traced.results[0][0])) == 2
    assert len(traced.of_type("ConcatV2")) == 1


def test_more_rings_than_devices_of_a_process_are_refused():
    with pytest.raises(ValueError, match=r"2 rings need as many devices .* only 1"):
        ring(A0, A1, B0, shards=2)
    with pytest.raises(ValueError, match="5 rings"):
        ring(*(A0, A1), shards=5)
