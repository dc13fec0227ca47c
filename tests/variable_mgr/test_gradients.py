from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import towers

from cnnbench.variable_mgr import gradients


@pytest.fixture
def variables(cpu_devices):
    made = []
    for device in cpu_devices[:2]:
        with tf.device(device):
            made.append(tf.Variable(tf.zeros([4, 2])))
    return made


def slices(indices, values, dense_shape=None):
    shape = None if dense_shape is None else tf.constant(dense_shape)
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices), shape)


def test_a_dense_float32_gradient_passes_untouched(variables):
    gradient = tf.ones([4, 2])
    assert gradients.dense(gradient, variables[0]) is gradient


@pytest.mark.parametrize("shape", [None, [4, 2]])
def test_slices_become_dense_and_repeated_rows_add_up(variables, shape):
    sparse = slices([2, 0, 2], [[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]], shape)
    result = gradients.dense(sparse, variables[0])
    np.testing.assert_array_equal(result, [[3, 4], [0, 0], [11, 22], [0, 0]])


def test_slices_are_added_in_float32(variables):
    # 256 + 1 is not representable in bfloat16.
    half = tf.cast([[256.0, 0.0], [1.0, 0.0]], tf.bfloat16)
    sparse = tf.IndexedSlices(half, tf.constant([1, 1]))
    result = gradients.dense(sparse, variables[0])
    assert result.dtype == tf.float32
    assert float(result[1, 0]) == 257.0


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_gradients_are_float32_afterwards(variables, dtype):
    result = gradients.dense(tf.ones([4, 2], dtype), variables[0])
    assert result.dtype == tf.float32


def test_columns_transpose_and_keep_each_towers_variable(variables, cpu_devices):
    one, two = tf.ones([4, 2]), tf.fill([4, 2], 2.0)
    grads = [[(one, variables[0])], [(two, variables[1])]]
    (column,) = towers.complete(grads, cpu_devices[:2])
    assert column.gradients == [one, two]
    assert column.variables == variables


def test_none_in_one_tower_is_zero_on_that_towers_device(variables, cpu_devices):
    devices = []

    @tf.function(autograph=False)
    def step():
        pairs = [[(None, variables[0])], [(tf.ones([4, 2]), variables[1])]]
        (column,) = towers.complete(pairs, cpu_devices[:2])
        devices.extend(t.device for t in column.gradients)
        return column.gradients

    zero, one = step()
    assert devices[0] == cpu_devices[0]
    np.testing.assert_array_equal(zero, np.zeros([4, 2]))
    np.testing.assert_array_equal(one, np.ones([4, 2]))


def test_none_in_all_towers_leaves_the_variable_out(variables, cpu_devices):
    pairs = [[(None, v), (tf.ones([4, 2]), v)] for v in variables]
    assert len(towers.complete(pairs, cpu_devices[:2])) == 1


def test_slices_are_made_dense_unless_asked_for(variables, cpu_devices):
    pairs = [[(slices([t], [[1.0, 1.0]]), v)] for t, v in enumerate(variables)]
    (column,) = towers.complete(pairs, cpu_devices[:2])
    assert not column.sparse
    assert [g.shape for g in column.gradients] == [[4, 2], [4, 2]]


def test_slices_that_are_kept_pass_untouched(variables, cpu_devices):
    half = tf.IndexedSlices(tf.ones([3, 2], tf.bfloat16), tf.constant([0, 1, 1]))
    one = slices([1], [[1.0, 1.0]])
    (column,) = towers.complete(
        [[(half, variables[0])], [(one, variables[1])]], cpu_devices[:2], keep_sparse=True
    )
    assert column.sparse
    assert column.gradients[0] is half
    assert column.gradients[1] is one
    assert column.variables == variables


def test_none_among_kept_slices_is_no_slices(variables, cpu_devices):
    @tf.function(autograph=False)
    def step():
        half = tf.IndexedSlices(tf.ones([3, 2], tf.bfloat16), tf.constant([0, 1, 1], tf.int64))
        pairs = [[(half, variables[0])], [(None, variables[1])]]
        (column,) = towers.complete(pairs, cpu_devices[:2], keep_sparse=True)
        assert column.sparse
        nothing = column.gradients[1]
        assert nothing.values.device == nothing.indices.device == cpu_devices[1]
        return nothing.values, nothing.indices, gradients.dense(nothing, variables[1])

    values, indices, dense = step()
    assert (values.dtype, values.shape) == (tf.bfloat16, [0, 2])
    assert (indices.dtype, indices.shape) == (tf.int64, [0])
    np.testing.assert_array_equal(dense, np.zeros([4, 2]))


def test_slices_beside_a_dense_gradient_become_dense(variables, cpu_devices):
    pairs = [[(slices([1], [[1.0, 1.0]]), variables[0])], [(tf.ones([4, 2]), variables[1])]]
    (column,) = towers.complete(pairs, cpu_devices[:2], keep_sparse=True)
    assert not column.sparse
    np.testing.assert_array_equal(column.gradients[0], [[0, 0], [1, 1], [0, 0], [0, 0]])


def test_none_everywhere_is_left_out_when_slices_are_kept_too(variables, cpu_devices):
    pairs = [[(None, v), (tf.ones([4, 2]), v)] for v in variables]
    (column,) = towers.complete(pairs, cpu_devices[:2], keep_sparse=True)
    assert not column.sparse


def test_casts_happen_on_the_towers_device(variables, cpu_devices):
    @tf.function(autograph=False)
    def step(a, b):
        pairs = [[(a, variables[0])], [(b, variables[1])]]
        return towers.complete(pairs, cpu_devices[:2])[0].gradients

    half = tf.TensorSpec([4, 2], tf.bfloat16)
    operations = step.get_concrete_function(half, half).graph.get_operations()
    assert [op.device for op in operations if op.type == "Cast"] == list(cpu_devices[:2])


def test_towers_must_fit(variables, cpu_devices):
    pair = (tf.ones([4, 2]), variables[0])
    with pytest.raises(ValueError, match="1 towers for 2 devices"):
        towers.complete([[pair]], cpu_devices[:2])


def test_one_tensor_is_its_own_sum():
    tensor = tf.ones([2])
    assert gradients.add_up([tensor]) is tensor
    assert gradients.add_up([tensor, tensor, tensor]).numpy().tolist() == [3.0, 3.0]


def test_a_dtype_that_towers_agree_on_can_be_kept(cpu_devices):
    variable = tf.Variable(tf.zeros([2, 2]))
    half = tf.cast(tf.ones([2, 2]), tf.bfloat16)
    devices = cpu_devices[:2]
    one_none = [[(half, variable)], [(None, variable)]]
    (kept,) = towers.complete(one_none, devices, keep_dtype=True)
    assert kept.gradients[0] is half
    assert kept.gradients[1].dtype == tf.bfloat16
    whole = tf.ones([2, 2])
    both = [[(half, variable)], [(whole, variable)]]
    (mixed,) = towers.complete(both, devices, keep_dtype=True)
    assert [gradient.dtype for gradient in mixed.gradients] == [tf.float32] * 2
    (widened,) = towers.complete(one_none, devices)
    assert [gradient.dtype for gradient in widened.gradients] == [tf.float32] * 2
