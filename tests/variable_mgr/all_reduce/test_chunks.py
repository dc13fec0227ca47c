"""Tests variable_mgr/all_reduce/sizes.py."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from cnnbench.variable_mgr.all_reduce import ReduceContext
from cnnbench.variable_mgr.all_reduce.chunks import ChunkLayout, elements_of_each_chunk
from cnnbench.variable_mgr.all_reduce.sizes import LINE_BYTES, MIN_CHUNK_BYTES


@given(
    elements=st.integers(0, 10**7),
    most=st.integers(1, 100),
    itemsize=st.sampled_from([1, 2, 4, 8]),
)
def test_chunks_are_equal_aligned_and_not_too_small(elements, most, itemsize):
    *full, last = elements_of_each_chunk(elements, most, itemsize)
    assert sum(full) + last == elements
    assert len(full) < most
    assert len(set(full)) <= 1
    assert all(size * itemsize % LINE_BYTES == 0 for size in full)
    assert all(size * itemsize >= MIN_CHUNK_BYTES for size in full)
    assert 0 < last <= (full[0] if full else elements) or elements == 0


@pytest.mark.parametrize(
    ("elements", "most", "sizes"),
    [
        (0, 4, (0,)),
        (1, 4, (1,)),
        (8191, 4, (8191,)),
        (8192, 4, (4096, 4096)),
        (8193, 4, (4112, 4081)),
        (16384, 4, (4096,) * 4),
        (10**6, 4, (250_000,) * 4),
        (10**6 + 1, 4, (250_016, 250_016, 250_016, 249_953)),
        (10**6, 1, (10**6,)),
    ],
)
def test_sizes_of_float32_chunks(elements, most, sizes):
    assert elements_of_each_chunk(elements, most, 4) == sizes


def test_the_devices_of_a_memory_take_turns_in_joining(cpu_devices):
    context = ReduceContext(devices=cpu_devices[:3])

    @tf.function(autograph=False)
    def step(tensor):
        cut = ChunkLayout(tensor, 2)
        (parts,) = cut.chunks([tensor], cpu_devices[:1])
        pieces = {context.memory_of(cpu_devices[0]): parts}
        return [cut.join(pieces, context, index)[0] for index in range(4)]

    graph = step.get_concrete_function(tf.TensorSpec([10_000])).graph
    joins = [op.device for op in graph.get_operations() if op.type == "ConcatV2"]
    assert joins == [cpu_devices[i] for i in (0, 1, 2, 0)]


@pytest.mark.parametrize(
    ("elements", "kind", "number"), [(10_000, "SplitV", 1), (10_001, "Slice", 2)]
)
def test_whole_rows_are_split_by_one_operation(elements, kind, number, cpu_devices):
    @tf.function(autograph=False)
    def step(tensor):
        return ChunkLayout(tensor, 2).chunks([tensor], cpu_devices[:1])

    graph = step.get_concrete_function(tf.TensorSpec([elements])).graph
    assert [op.type for op in graph.get_operations()].count(kind) == number


@pytest.mark.parametrize("elements", [30_000, 30_001])
def test_full_chunks_are_views(elements, address, cpu_devices):
    with tf.device(cpu_devices[0]):
        tensor = tf.random.stateless_normal([elements], (1, 2))
    cut = ChunkLayout(tensor, 3)
    (chunks,) = cut.chunks([tensor], cpu_devices[:1])
    begins = np.cumsum([0, *cut.sizes[:-1]]) * 4 + address(tensor)
    views = [address(chunk) == begin for chunk, begin in zip(chunks, begins, strict=True)]
    # The last one is a view too if it ends on a boundary.
    assert views == [True, True, elements % 16 == 0]
