from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from towers import ByTower

from cnnbench.variable_mgr.aggregation.pipeline import Scale


def test_nothing_is_done_to_what_is_sent(cpu_devices, place):
    tensors = place([[np.ones(3)], [np.ones(3)]])
    sent, _ = Scale(0.5, cpu_devices[:2])(tensors)
    assert sent is tensors


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16])
def test_what_comes_back_is_multiplied(dtype, cpu_devices, place):
    tensors = place([[np.arange(4.0)], [np.arange(4.0) + 1]], dtype)
    _, inverse = ByTower(Scale(0.25, cpu_devices[:2]))(tensors)
    (first,), (second,) = inverse(tensors)
    assert first.dtype == second.dtype == dtype
    np.testing.assert_array_equal(first, np.arange(4) / 4)
    np.testing.assert_array_equal(second, (np.arange(4) + 1) / 4)


def test_a_shared_sum_is_multiplied_once_where_it_was_made(cpu_devices, trace):
    devices = cpu_devices[:3]
    shared = []

    def mean(tensors):
        _, inverse = ByTower(Scale(1 / 3, devices))(tensors)
        with tf.device(devices[1]):
            total = tf.add_n([own[0] for own in tensors])
        result = inverse([[total, own[1]] for own in tensors])
        shared.append(result[0][0] is result[1][0] is result[2][0])
        return result

    operations = trace(mean, [((4,), tf.float32)] * 2, 3)
    products = [op.device for op in operations if op.type == "Mul"]
    assert sorted(products) == sorted([devices[1], *devices])
    assert shared == [True]
