from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.variable_mgr.aggregation.flat_buffers import FlatLayout
from cnnbench.variable_mgr.sizes import buffer_sizes

DIMENSION = st.one_of(st.integers(0, 9), st.sampled_from([16, 17, 32]))
SHAPES = st.lists(st.lists(DIMENSION, max_size=3).map(tuple), max_size=9)
DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "float64"])


def layout(shapes, dtype=tf.float32, buffers=1):
    return FlatLayout([tf.TensorShape(shape) for shape in shapes], dtype, buffers)


def counted(shapes, dtype=tf.float32):
    """A different integer in each element of all tensors, small enough for 16 bits."""
    first, tensors = 0, []
    for shape in shapes:
        size = int(np.prod(shape))
        values = np.arange(first, first + size) % 251
        tensors.append(tf.cast(tf.constant(values.reshape(shape)), dtype))
        first += size
    return tensors


@settings(max_examples=60, deadline=None)
@given(shapes=SHAPES, dtype=DTYPES, buffers=st.integers(1, 20))
def test_what_is_joined_comes_apart_again(shapes, dtype, buffers):
    dtype = tf.as_dtype(dtype)
    tensors = counted(shapes, dtype)
    flat = layout(shapes, dtype, buffers)
    joined = flat.join(tensors)
    assert len(joined) == buffers
    assert all(b.dtype == dtype and b.shape.rank == 1 for b in joined)
    restored = flat.split(joined)
    assert len(restored) == len(tensors)
    for before, after in zip(tensors, restored, strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        np.testing.assert_array_equal(after.numpy(), before.numpy())


@settings(max_examples=60, deadline=None)
@given(shapes=SHAPES, buffers=st.integers(1, 20))
def test_buffers_hold_every_element_once_and_nothing_else(shapes, buffers):
    tensors = counted(shapes)
    joined = layout(shapes, buffers=buffers).join(tensors)
    sizes = [b.shape[0] for b in joined]
    elements = sum(t.shape.num_elements() for t in tensors)
    assert sizes == buffer_sizes(elements, buffers, 16)
    everything = [np.ravel(x) for x in tensors] or [np.zeros(0)]
    np.testing.assert_array_equal(
        np.sort(np.concatenate([b.numpy() for b in joined])), np.sort(np.concatenate(everything))
    )


@pytest.mark.parametrize(
    ("elements", "buffers", "expected"),
    [
        (10, 3, [3, 3, 4]),  # below a line: exact floor, remainder in the last
        (48, 3, [16, 16, 16]),
        (47, 3, [15, 15, 17]),
        (100, 3, [32, 32, 36]),  # floor is 33: down to whole lines of 16
        (160_000, 4, [40_000] * 4),
        (3, 5, [0, 0, 0, 0, 3]),
        (0, 2, [0, 0]),
        (7, 1, [7]),
    ],
)
def test_sizes_of_buffers(elements, buffers, expected):
    assert buffer_sizes(elements, buffers, 16) == expected


@given(st.integers(0, 10**9), st.integers(1, 64))
def test_the_last_buffer_is_larger_by_less_than_a_line_per_buffer(elements, buffers):
    sizes = buffer_sizes(elements, buffers, 16)
    assert sum(sizes) == elements
    assert len({*sizes[:-1]}) <= 1
    assert 0 <= sizes[-1] - sizes[0] < 17 * buffers


@pytest.mark.parametrize("traced", [False, True])
def test_tensors_of_whole_lines_are_views_of_the_buffer(traced, address):
    shapes = [(3, 16), (5,), (0, 4), (32,), (), (4, 4, 4)]
    flat = layout(shapes)
    (buffer,) = flat.join(counted(shapes))
    split = tf.function(flat.split, autograph=False) if traced else flat.split
    parts = split([buffer])
    offsets = [address(parts[i]) - address(buffer) for i in (0, 3, 5)]
    assert offsets == [0, 48 * 4, 80 * 4]


def test_lines_are_counted_in_bytes(address):
    shapes = [(16,), (32,), (64,)]
    flat = layout(shapes, tf.bfloat16)
    (buffer,) = flat.join(counted(shapes, tf.bfloat16))
    # 16 elements of two bytes are half a line, so they come after all others.
    assert buffer.numpy()[0] == 16
    parts = flat.split([buffer])
    np.testing.assert_array_equal(parts[0], np.arange(16))
    first, second = (tf.bitcast(t, tf.uint16) for t in parts[1:])
    assert address(second) - address(first) == 64


def test_cuts_of_a_tensor_over_buffers_are_views_too(address):
    tensor = tf.random.normal([160])
    buffers = layout([(160,)], buffers=3).join([tensor])
    assert [b.shape[0] for b in buffers] == [48, 48, 64]
    assert [address(b) - address(tensor) for b in buffers] == [0, 192, 384]


def test_any_number_of_vectors_takes_two_ops_there_and_back(trace):
    flat = layout([(1024,)] * 300)
    kinds = [
        op.type
        for op in trace(
            lambda tensors: flat.split(flat.join(tensors[0])), [((1024,), tf.float32)] * 300, 1
        )
    ]
    assert sorted(kinds) == ["ConcatV2", "SplitV"]


def test_other_shapes_take_a_reshape_each_way(trace):
    flat = layout([(2, 8)] * 50)
    kinds = [
        op.type
        for op in trace(
            lambda tensors: flat.split(flat.join(tensors[0])), [((2, 8), tf.float32)] * 50, 1
        )
    ]
    assert kinds.count("Reshape") == 100
    assert len(kinds) == 102
