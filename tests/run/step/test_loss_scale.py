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
    LossScale,
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


@pytest.mark.parametrize(
    ("bad", "dtype"),
    [(np.nan, tf.float16), (np.inf, tf.bfloat16), (-np.inf, tf.float32), (np.nan, tf.float64)],
)
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


def test_a_factor_doubles_after_as_many_finite_steps_as_told(cpu_devices):
    scale = AutoLossScale(8.0, 3, cpu_devices[0])
    assert set(scale.variables()) == {"scale", "good_steps"}

    @tf.function(autograph=False)
    def step(first, second):
        factor = scale.factor()
        guards, skipped, updates = scale.find_skipped_updates([[first], [second, first]])
        assert (len(guards), len(updates)) == (2, 2)
        return factor, skipped

    inf, found = np.inf, []
    for first, second in ((1, 1), (1, 1), (1, 1), (1, 1), (1, inf), (1, 1), (inf, 1)):
        factor, skipped = step(tf.constant(float(first)), tf.constant(float(second)))
        counted = scale.variables()["good_steps"].numpy()
        found.append((float(factor), bool(skipped), scale.value, counted))
    assert found == [
        (8, False, 8, 1),
        (8, False, 8, 2),
        (8, False, 16, 0),
        (16, False, 16, 1),
        (16, True, 8, 0),
        (8, False, 8, 1),
        (8, True, 4, 0),
    ]


def test_each_device_skips_by_its_own_gradients(cpu_devices):
    scale = AutoLossScale(8.0, 3, cpu_devices[0])
    counts = [tf.Variable(0), tf.Variable(0), tf.Variable(0)]

    @tf.function(autograph=False)
    def step(first, second):
        guards, _, _ = scale.find_skipped_updates([[first], [second]])
        guards.append(scale.guard([second, second]))
        for guard, count in zip(guards, counts, strict=True):
            guard(lambda count=count: [count.assign_add(1, read_value=False)])

    step(tf.constant(1.0), tf.constant(1.0))
    step(tf.constant(1.0), tf.constant(np.nan))
    step(tf.constant(np.inf), tf.constant(1.0))
    assert [int(count) for count in counts] == [2, 2, 2]
    step(tf.constant(1.0), tf.constant(np.inf))
    assert [int(count) for count in counts] == [3, 2, 2]


@pytest.mark.parametrize(("given", "factor"), [(1.0, None), (128.0, 128.0)])
def test_a_constant_factor_skips_nothing(given, factor):
    scale = LossScale(given)
    assert (scale.value, scale.variables(), scale.factor()) == (None, {}, factor)
    guards, skipped, updates = scale.find_skipped_updates([[tf.constant(np.nan)]] * 2)
    assert (skipped, updates) == (None, [])
    for guard in (*guards, scale.guard([tf.constant(np.inf)])):
        assert guard(lambda: ["done"]) == ["done"]
    assert len(guards) == 2


def test_gradients_without_a_factor_are_left_alone():
    gradient = tf.constant([2.0, 4.0], tf.float16)
    assert inverse_scale(None) is None
    assert divide_by_scale(gradient, None) is gradient
    assert divide_by_scale(None, 0.5) is None
    divided = divide_by_scale(gradient, inverse_scale(4.0))
    assert (divided.dtype, divided.numpy().tolist()) == (tf.float32, [0.5, 1.0])
