from __future__ import annotations

import pytest

from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce.algorithms.tree import parent

SHAPE = (8, 1025, 16)


def parents(count: int) -> dict[int, int | None]:
    root = 1 << (count.bit_length() - 1)
    return {place: None if place == root else parent(place, count) for place in range(1, count + 1)}


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (2, {1: 2, 2: None}),
        (3, {1: 2, 2: None, 3: 2}),
        (4, {1: 2, 2: 4, 3: 2, 4: None}),
        (5, {1: 2, 2: 4, 3: 2, 4: None, 5: 4}),
        (6, {1: 2, 2: 4, 3: 2, 4: None, 5: 6, 6: 4}),
        (7, {1: 2, 2: 4, 3: 2, 4: None, 5: 6, 6: 4, 7: 6}),
        (8, {1: 2, 2: 4, 3: 2, 4: 8, 5: 6, 6: 4, 7: 6, 8: None}),
    ],
)
def test_trees(count, expected):
    assert parents(count) == expected


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
            {algorithm.device(chunk, place, index) for place in range(2, count + 1, 2)}
            for chunk in (0, 1)
        ]
        assert not inner[0] & inner[1]
        assert len(inner[0]) == count // 2


@pytest.mark.usefixtures("separate_memories")
@pytest.mark.parametrize(("count", "index"), [(2, 0), (3, 1), (5, 4), (8, 3)])
def test_sums_go_up_and_down_the_trees(count, index, make_context, trace, flow):
    context = make_context(count)
    algorithm = all_reduce.create("tree", context)
    traced = trace("tree", context, SHAPE, first_index=index)
    above = parents(count)
    assert len(traced.chunks(traced.results[0][0])) == 2
    for chunk in (0, 1):

        def total(place, chunk=chunk):
            device = algorithm.device(chunk, place, index)
            children = sorted((c for c in above if above[c] == place), key=lambda c: c & -c)
            own = flow.Part(chunk, device)
            return flow.Sum(device, (own, *map(total, children))) if children else own

        def received(place, chunk=chunk):
            if above[place] is None:
                return total(place)
            return flow.Hop(algorithm.device(chunk, place, index), received(above[place]))

        for place in above:
            position = context.devices.index(algorithm.device(chunk, place, index))
            result = traced.results[0][position]
            assert normal(traced.chunks(result)[chunk], flow) == normal(received(place), flow)


def normal(source, flow):
    """The same with the terms of every sum in one order."""
    if isinstance(source, flow.Hop):
        return flow.Hop(source.device, normal(source.what, flow))
    if isinstance(source, flow.Sum):
        terms = sorted((normal(term, flow) for term in source.terms), key=repr)
        return flow.Sum(source.device, tuple(terms))
    return source


def test_in_one_memory_tensors_take_the_trees_in_turn(make_context, trace):
    traced = trace("tree", make_context(4), SHAPE, tensors=2)
    # One sum of two and one of three in the tree of four.
    assert [op.type for op in traced.operations] == ["AddN", "AddN"] * 2
    devices = [op.device[-1] for op in traced.operations]
    assert devices == ["1", "3", "0", "2"]


def test_shards_cut_each_half(make_context, trace):
    traced = trace("tree", make_context(4, shards=3), SHAPE)
    assert len(traced.chunks(traced.results[0][0])) == 3


@pytest.mark.usefixtures("separate_memories")
def test_a_tiny_tensor_is_one_chunk(make_context, trace):
    traced = trace("tree", make_context(8), (3, 5))
    # Places 2, 4, 6 and 8 add; everyone but the root receives.
    assert sorted(op.type for op in traced.operations) == ["AddN"] * 4 + ["Identity"] * 7
