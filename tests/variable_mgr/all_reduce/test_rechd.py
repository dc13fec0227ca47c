from __future__ import annotations

import pytest

from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import ReduceContext

SHAPE = (8, 1025, 16)


class Expected:
    """Halving and doubling, worked out backwards from what each rank must have at the end."""

    def __init__(self, order, flow):
        self._order = order
        self._flow = flow
        self._power = 1 << (len(order).bit_length() - 1)

    def result(self, rank):
        """The pieces that a rank joins."""
        if rank < self._power:
            return self.held(rank, self._power)
        return [self.sent(rank - self._power, rank, self._power)]

    def held(self, rank, length):
        """The pieces of a block of so many chunks, after the round that completes it."""
        if length == 1:
            return [self.total(rank, 1)]
        half = length // 2
        own, other = self.held(rank, half), [self.sent(rank ^ half, rank, half)]
        return other + own if rank & half else own + other

    def sent(self, sender, receiver, length):
        pieces = self.held(sender, length)
        joined = self._flow.Block(self._order[sender], tuple(pieces))
        return self._flow.Hop(self._order[receiver], joined if len(pieces) > 1 else pieces[0])

    def total(self, rank, length):
        """What a rank keeps, so many chunks, after adding its partner's half to its own."""
        side = int(rank & length > 0)
        terms = tuple(self.half(peer, side, length) for peer in (rank, rank ^ length))
        return self._flow.Sum(self._order[rank], terms)

    def half(self, rank, side, length):
        if 2 * length < self._power:
            return self._flow.Part(side, self.total(rank, 2 * length))
        extra = rank + self._power
        if extra >= len(self._order):
            return self._flow.Part(side, self._order[rank])
        # The rank adds the lower half of the two values, the rank beyond the power the upper.
        adders = (extra, rank) if side else (rank, extra)
        terms = tuple(self._flow.Part(side, self._order[adder]) for adder in adders)
        return self._flow.Sum(self._order[adders[0]], terms)


@pytest.mark.usefixtures("separate_memories")
@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8])
def test_additions_and_messages_are_those_of_halving_and_doubling(
    count, index, make_context, trace, flow
):
    context = make_context(count)
    order = all_reduce.create("rechd", context).order(index)
    traced = trace("rechd", context, SHAPE, first_index=index)
    expected = Expected(order, flow)
    for rank, device in enumerate(order):
        result = traced.results[0][context.devices.index(device)]
        assert traced.chunks(result) == expected.result(rank)


@pytest.mark.usefixtures("separate_memories")
def test_operations_grow_with_the_rounds_and_not_with_the_chunks(make_context, trace):
    traced = trace("rechd", make_context(8), SHAPE)
    # Three rounds of eight devices, and a message to each device in each round.
    counts = [len(traced.of_type(kind)) for kind in ("AddV2", "SplitV", "Identity")]
    assert counts == [24, 24, 24]


@pytest.mark.usefixtures("separate_memories")
@pytest.mark.parametrize("count", [3, 8])
def test_a_tiny_tensor_is_one_chunk(count, make_context, trace):
    traced = trace("rechd", make_context(count), (3, 5))
    assert {op.type for op in traced.operations} == {"AddV2", "Identity"}
    assert len(traced.of_type("AddV2")) == len(traced.of_type("Identity")) == count - 1


def test_one_memory_needs_no_chunks_and_no_hops(make_context, trace, flow):
    context = make_context(4)
    traced = trace("rechd", context, SHAPE)
    assert [op.type for op in traced.operations] == ["AddV2"] * 3
    first, second, third, fourth = context.devices
    pairs = flow.Sum(first, (first, third)), flow.Sum(second, (second, fourth))
    assert traced.source(traced.results[0][3]) == flow.Sum(first, pairs)


def test_the_first_rounds_stay_in_a_memory():
    devices = [f"/job:worker/replica:0/task:{t}/device:CPU:{d}" for t in (0, 1) for d in (0, 1)]
    order = all_reduce.create("rechd", ReduceContext(devices=tuple(devices))).order()
    assert order == [devices[i] for i in (0, 2, 1, 3)]


def test_the_index_rotates_the_ranks(make_context):
    context = make_context(3)
    algorithm = all_reduce.create("rechd", context)
    assert algorithm.order(4) == [context.devices[i] for i in (1, 2, 0)]
