"""The rule of automatic loss scaling, and the arithmetic around it."""

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.run.step.loss_scale import (
    CAP,
    FLOOR,
    AutoLossScale,
    all_finite,
    inverse_of,
    unscaled,
)


def oracle(initial, every_n, finite):
    """(scale, good steps) after each step, written down without looking at the code."""
    scale, good, history = np.float32(initial), 0, []
    for ok in finite:
        if ok:
            good += 1
            if good == every_n:
                good = 0
                if scale < CAP:
                    scale = min(scale * np.float32(2), np.float32(CAP))
        else:
            good = 0
            if scale > FLOOR:
                scale = max(scale / np.float32(2), np.float32(FLOOR))
        history.append((float(scale), good))
    return history


class Steps:
    """Steps of one device whose only gradient can be chosen; they count their updates."""

    def __init__(self, initial, every_n, device):
        self.scale = AutoLossScale(initial, every_n, device)
        with tf.device(device):
            self.gradient = tf.Variable([1.0, 1.0])
            self.updates = tf.Variable(0)

        @tf.function(autograph=False)
        def step():
            with tf.device(device):
                (guard,), skipped, ops = self.scale.judge([[self.gradient.read_value()]])
                ops += guard(lambda: [self.updates.assign_add(1, read_value=False)])
                with tf.control_dependencies(ops):
                    return tf.identity(skipped)

        self._step = step

    def __call__(self, value):
        self.gradient.assign([1.0, value])
        return bool(self._step().numpy())

    @property
    def state(self):
        variables = self.scale.variables()
        return self.scale.value, int(variables["good_steps"].numpy())


BAD = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize("every_n", [1, 3, 1000])
@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_long_runs_follow_the_rule(share, every_n, cpu_devices):
    """Steps of which a share is good."""
    rng = np.random.default_rng(every_n)
    initial = float(2.0 ** rng.integers(0, 25))
    script = [bool(ok) for ok in rng.random(60) < share]
    steps = Steps(initial, every_n, cpu_devices[0])
    expected = oracle(initial, every_n, script)
    for number, (finite, state) in enumerate(zip(script, expected, strict=True)):
        skipped = steps(1.0 if finite else BAD[number % 3])
        assert skipped is not finite
        assert steps.state == state
    assert steps.updates.numpy() == sum(script)


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
    steps = Steps(initial, 1, cpu_devices[0])
    steps(1.0 if finite else np.inf)
    assert steps.scale.value == expected


def test_a_count_from_a_run_with_another_interval_is_not_stuck(cpu_devices):
    steps = Steps(128.0, 3, cpu_devices[0])
    steps.scale.variables()["good_steps"].assign(700)
    steps(1.0)
    assert steps.state == (256.0, 0)


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
    found = unscaled(slices, inverse_of(tf.constant(128.0)))
    assert found.values.dtype == tf.float32
    np.testing.assert_array_equal(found.values.numpy(), [[2.0], [4.0]])
    np.testing.assert_array_equal(found.indices.numpy(), [4, 1])
    np.testing.assert_array_equal(found.dense_shape.numpy(), [6, 1])
