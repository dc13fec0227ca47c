from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from towers import ByTower

from cnnbench.variable_mgr.aggregation.pipeline import Scale, make_stages
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec


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


def test_what_is_sent_is_multiplied_on_its_tower(cpu_devices, place):
    tensors = place([[np.arange(4.0)], [np.arange(4.0) + 1]], tf.float16)
    sent, inverse = ByTower(Scale(1.0, cpu_devices[:2], sent=0.25))(tensors)
    for tower, (own,) in enumerate(sent):
        assert (own.dtype, own.device) == (tf.float16, cpu_devices[tower])
        np.testing.assert_array_equal(own, (np.arange(4) + tower) / 4)
    assert all(back is own for (back,), (own,) in zip(inverse(sent), sent, strict=True))


@pytest.mark.parametrize("towers", [2, 3, 4, 5, 6, 7, 8, 49, 512, 1000])
def test_float16_is_divided_by_a_power_of_two_as_large_as_the_number_of_towers(towers):
    scale = 1 / towers
    (stage, _) = make_stages(AggregationSpec(compact_dtype="float16"), (), scale)
    assert towers * stage.sent <= 1 < 2 * towers * stage.sent
    assert np.log2(stage.sent) == round(np.log2(stage.sent))
    assert stage.sent * stage.factor == scale
    (stage, _) = make_stages(AggregationSpec(compact_dtype="bfloat16"), (), scale)
    assert stage == Scale(scale, ())
