from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from towers import ByTower

from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec, single
from cnnbench.variable_mgr.all_reduce.reducer import Reducer


class Spy:
    """Sums, and notes which tensors it was asked to sum, as which."""

    def __init__(self, context):
        self.context = context
        self.calls = []

    def __call__(self, tensors, index):
        self.calls.append((tensors[0].shape.num_elements(), index))
        return [tf.add_n(list(tensors))] * len(tensors)


@pytest.fixture
def spies(registered) -> dict[str, Spy]:
    """What the algorithms "small" and "large" were made into."""
    made = {}

    def factory(name):
        def make(context):
            made[name] = Spy(context)
            return made[name]

        return make

    for name in ("small", "large"):
        all_reduce.register(name)(factory(name))
    return made


def towers(count: int, sizes: list[int], dtype: tf.DType = tf.float32) -> list[list[tf.Tensor]]:
    return [[tf.fill([size], tf.cast(10**t, dtype)) for size in sizes] for t in range(count)]


def run(spec: str, context, tower_tensors, groups=(), **options):
    return ByTower(Reducer(parse_all_reduce_spec(spec), context, groups, **options))(tower_tensors)


# A limit of 1K bytes is 256 float32 or 512 float16 elements.
@pytest.mark.parametrize(
    ("dtype", "at_limit"), [(tf.float32, 256), (tf.float16, 512), (tf.float64, 128)]
)
def test_limits_are_bytes_and_belong_to_the_range_below(dtype, at_limit, spies, make_context):
    sizes = [at_limit - 1, at_limit, at_limit + 1]
    run("small:1K:large", make_context(2), towers(2, sizes, dtype))
    assert sorted(size for size, _ in spies["small"].calls) == sizes[:2]
    assert [size for size, _ in spies["large"].calls] == sizes[2:]


def test_each_range_counts_its_own_tensors_and_starts_with_the_last(spies, make_context):
    run("small:64:large", make_context(2), towers(2, [1, 99, 98, 2, 97, 3]))
    assert spies["small"].calls == [(3, 2), (2, 1), (1, 0)]
    assert spies["large"].calls == [(97, 2), (98, 1), (99, 0)]


@pytest.mark.usefixtures("spies")
def test_the_order_of_tensors_stays(make_context):
    sizes = [99, 1, 98, 0, 2, 97]
    sums = run("small:64:large", make_context(3), towers(3, sizes))
    assert len(sums) == 3
    for per_device in sums:
        for total, size in zip(per_device, sizes, strict=True):
            np.testing.assert_array_equal(total, np.full(size, 111.0, np.float32), strict=True)


@pytest.mark.usefixtures("spies")
def test_devices_share_what_the_algorithm_lets_them_share(make_context):
    first, second = run("small", make_context(2), towers(2, [3, 4]))
    assert first is not second
    assert all(a is b for a, b in zip(first, second, strict=True))


def test_shards_go_to_their_algorithm(spies, make_context):
    Reducer(parse_all_reduce_spec("small#2:1K:large#3"), make_context(4, shards=7), ())
    assert [spies[name].context.shards for name in ("small", "large")] == [2, 3]
    assert spies["small"].context.devices == make_context(4).devices


def test_the_groups_go_to_two_levels(spies, make_context):
    context = make_context(4)
    groups = [context.devices[:2], context.devices[2:]]
    sums = run("small/large", context, towers(4, [5]), groups)
    assert len(spies["small"].context.devices) == len(spies["large"].context.devices) == 2
    for per_device in sums:
        np.testing.assert_array_equal(per_device[0], np.full(5, 1111.0))


def test_one_device_has_nothing_to_reduce(spies, make_context):
    (tensors,) = given = towers(1, [3, 500])
    # Not even an algorithm that would refuse it is asked.
    (result,) = run("small:64:copy#9", make_context(1), given)
    assert spies == {}
    assert all(a is b for a, b in zip(result, tensors, strict=True))


def test_no_tensors_are_no_sums(make_context):
    assert run("copy", make_context(3), [[], [], []]) == [[], [], []]


@pytest.mark.parametrize(("merge_scope", "scopes"), [(1, 5), (2, 3), (9, 1)])
def test_so_many_tensors_share_a_name_scope(merge_scope, scopes, make_context):
    reduce = ByTower(Reducer(single("copy"), make_context(2), (), merge_scope))

    @tf.function(autograph=False)
    def step(tensors):
        return reduce(tensors)

    graph = step.get_concrete_function(towers(2, [3] * 5)).graph
    names = [op.name for op in graph.get_operations() if op.type == "AddN"]
    assert len(names) == 5
    found = [re.match(r"allreduce_(\d+)/", name).group(1) for name in names]
    assert found == [str(number // merge_scope) for number in reversed(range(5))]
    assert len(set(found)) == scopes
