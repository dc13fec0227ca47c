from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import towers
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.gradients import reduce_sparse

ROWS, WIDTH = 5, 2


@pytest.fixture(scope="module")
def variables(cpu_devices):
    made = []
    for device in cpu_devices[:4]:
        with tf.device(device):
            made.append(tf.Variable(tf.zeros([ROWS, WIDTH])))
    return made


def slices(rows, first, dtype=tf.float32):
    values = np.arange(first, first + WIDTH * len(rows)).reshape(len(rows), WIDTH)
    return tf.IndexedSlices(tf.cast(values, dtype), tf.constant(rows, tf.int64))


def sums(grads, variables, devices, keep_sparse, scale=None):
    """What towers get for one variable, by the way of slices or of dense tensors."""
    pairs = [[(g, v)] for g, v in zip(grads, variables, strict=True)]
    (column,) = towers.complete(pairs, devices, keep_sparse=keep_sparse)
    assert column.sparse is keep_sparse
    if keep_sparse:
        return reduce_sparse(column, devices, scale)
    total = gradients.add_up(column.gradients)
    return [total if scale is None else total * scale] * len(devices)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.one_of(st.none(), st.lists(st.integers(0, ROWS - 1), max_size=6)),
        min_size=1,
        max_size=4,
    ).filter(lambda towers: any(rows is not None for rows in towers)),
    mean=st.booleans(),
)
def test_the_update_does_not_depend_on_what_travels(rows, mean, variables, cpu_devices):
    count = len(rows)
    grads = [None if r is None else slices(r, 10 * t) for t, r in enumerate(rows)]
    scale = 1 / count if mean else None
    arguments = grads, variables[:count], cpu_devices[:count]
    kept = sums(*arguments, True, scale)
    assert len(kept) == count
    for a, b in zip(kept, sums(*arguments, False, scale), strict=True):
        assert a.shape == (ROWS, WIDTH)
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_narrow_values_travel_narrow_and_are_added_in_float32(dtype, variables, cpu_devices):
    devices = cpu_devices[:2]

    @tf.function(autograph=False)
    def step(values):
        pairs = [
            [(tf.IndexedSlices(tf.cast(v, dtype), tf.constant([1])), variable)]
            for v, variable in zip(values, variables, strict=False)
        ]
        (column,) = towers.complete(pairs, devices, keep_sparse=True)
        return reduce_sparse(column, devices, None)

    values = [tf.constant([[2048.0, 1.0]]), tf.constant([[1.0, 1.0]])]
    for total in step(values):
        assert total.dtype == tf.float32
        np.testing.assert_array_equal(total[1], [2049, 2])
    operations = step.get_concrete_function(values).graph.get_operations()
    joins = [op for op in operations if op.type == "ConcatV2" and op.inputs[0].dtype == dtype]
    assert [op.device for op in joins] == list(devices)


def test_every_device_makes_its_own_dense_sum(variables, cpu_devices):
    devices = cpu_devices[:3]

    @tf.function(autograph=False)
    def step():
        pairs = [[(slices([0], 0), v)] for v in variables[:3]]
        (column,) = towers.complete(pairs, devices, keep_sparse=True)
        return reduce_sparse(column, devices, 1 / 3)

    operations = step.get_concrete_function().graph.get_operations()
    for kind in ("UnsortedSegmentSum", "Mul"):
        assert [op.device for op in operations if op.type == kind] == list(devices)


def test_gradients_of_a_gather_whose_number_of_rows_is_not_known(variables, cpu_devices):
    devices = cpu_devices[:2]

    @tf.function(autograph=False, input_signature=[[tf.TensorSpec([None], tf.int32)] * 2])
    def step(rows):
        pairs = []
        for device, variable, own in zip(devices, variables, rows, strict=False):
            with tf.device(device), tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(variable, own))
            pairs.append([(tape.gradient(loss, variable), variable)])
        (column,) = towers.complete(pairs, devices, keep_sparse=True)
        assert column.sparse
        return reduce_sparse(column, devices, None)

    for total in step([tf.constant([0, 0, 3]), tf.constant([3])]):
        np.testing.assert_array_equal(total[:, 0], [2, 0, 0, 2, 0])


def test_nan_reaches_every_tower_in_its_row_only(variables, cpu_devices):
    nan = tf.IndexedSlices(tf.constant([[np.nan, 1.0]]), tf.constant([2]))
    one = tf.IndexedSlices(tf.constant([[1.0, 1.0]]), tf.constant([0]))
    for total in sums([one, nan], variables[:2], cpu_devices[:2], True):
        expected = np.zeros((ROWS, WIDTH), np.float32)
        expected[0], expected[2] = 1, (np.nan, 1)
        np.testing.assert_array_equal(total, expected)
