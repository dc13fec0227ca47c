"""Bounds of automatic loss scales, and the arithmetic around them.

test_skipped_steps.py has the rule and its steps.
"""

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.run.step.loss_scale import (
    CAP,
    FLOOR,
    AutoLossScale,
    all_finite,
    divide_by_scale,
    inverse_scale,
)


@pytest.mark.parametrize(
    ("initial", "finite", "expected"),
    [
        (CAP, True, CAP),
        (CAP * 0.75, True, CAP),
        (2.0**126, True, 2.0**126),  # given, so kept; but it does not grow
        (2.0**126, False, 2.0**125),
        (FLOOR, False, FLOOR),
        (FLOOR * 1.5, False, FLOOR),
        (0.25, False, 0.25),  # likewise at the other end
        (0.25, True, 0.5),
    ],
)
def test_the_scale_stays_within_its_bounds(initial, finite, expected, cpu_devices):
    """The number of good steps may be that of a run with another interval."""
    scale = AutoLossScale(initial, 3, cpu_devices[0])
    good_steps = scale.variables()["good_steps"]
    good_steps.assign(700)

    @tf.function(autograph=False)
    def step():
        scale.find_skipped_updates([[tf.constant([1.0, 1.0 if finite else np.inf])]])

    step()
    assert (scale.value, good_steps.numpy()) == (expected, 0)


BAD = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("bad", BAD)
def test_one_bad_element_anywhere_is_found(bad, dtype, cpu_devices):
    lengths = (1, 3, 1001)
    for where in range(len(lengths)):
        for place in {0, lengths[where] // 2, lengths[where] - 1}:
            arrays = [np.ones(n) for n in lengths]
            arrays[where][place] = bad
            tensors = []
            for device, array in zip(cpu_devices, arrays, strict=False):
                with tf.device(device):
                    tensors.append(tf.constant(array, dtype))
            assert not all_finite(tensors, cpu_devices[0]).numpy()


def test_what_is_finite_is_taken_for_finite(cpu_devices):
    largest = tf.constant([3e38, 3e38, -3e38])  # though their sum and squares are not
    empty = tf.zeros([0, 3])
    assert all_finite([largest, empty], cpu_devices[0]).numpy()
    assert all_finite([empty], cpu_devices[0]).numpy()
    assert all_finite([], cpu_devices[0]).numpy()


def test_a_tensor_is_looked_at_once_and_where_it_is(cpu_devices):
    with tf.Graph().as_default() as graph:
        with tf.device(cpu_devices[1]):
            shared = tf.zeros([5])
        with tf.device(cpu_devices[2]):
            own = tf.zeros([5])
        finite = all_finite([shared, own, shared], cpu_devices[0])
    looks = [o.device for o in graph.get_operations() if o.type == "IsFinite"]
    assert looks == [cpu_devices[1], cpu_devices[2]]
    assert finite.device == cpu_devices[0]


def test_unscaled_slices_are_slices_in_float32():
    values = tf.constant([[256.0], [512.0]], tf.float16)
    slices = tf.IndexedSlices(values, tf.constant([4, 1]), tf.constant([6, 1]))
    found = divide_by_scale(slices, inverse_scale(tf.constant(128.0)))
    assert found.values.dtype == tf.float32
    np.testing.assert_array_equal(found.values.numpy(), [[2.0], [4.0]])
    np.testing.assert_array_equal(found.indices.numpy(), [4, 1])
    np.testing.assert_array_equal(found.dense_shape.numpy(), [6, 1])
