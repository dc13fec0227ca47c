from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from towers import ByTower

from cnnbench.lab.predict import workload
from cnnbench.variable_mgr.aggregation.pipeline import Buckets
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.sizes import buckets_of

F32 = "float32"


def stage(devices, max_bytes, dtype=None):
    return ByTower(Buckets(max_bytes, tuple(devices), dtype))


def lengths(tensors):
    return [t.shape.num_elements() for t in tensors]


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([], 10, []),
        ([4, 4, 4, 4, 4], 8, [[0], [1, 2], [3, 4]]),
        ([4, 4, 4], 12, [[0, 1, 2]]),
        ([4, 4, 4], 11, [[0], [1, 2]]),
        ([4, 20, 4, 4], 12, [[0], [1], [2, 3]]),
        ([20], 1, [[0]]),
        ([0, 8, 0, 8], 8, [[0, 1], [2, 3]]),
    ],
)
def test_buckets_are_filled_from_the_last_tensor_on(sizes, most, expected):
    assert buckets_of([(F32, size) for size in sizes], most) == expected


def test_a_bucket_has_one_dtype():
    assert buckets_of([(F32, 4), ("bfloat16", 2), ("bfloat16", 2)], 99) == [[0], [1, 2]]


def test_the_inverse_restores_everything_on_the_towers_devices(cpu_devices, place):
    values = [[np.full(n, float(10 * t + n)) for n in (3, 8, 1, 2, 2)] for t in range(2)]
    tensors = place(values)
    sent, inverse = stage(cpu_devices[:2], 16)(tensors)
    assert [lengths(own) for own in sent] == [[3, 8, 1, 4]] * 2
    np.testing.assert_array_equal(sent[1][3], [12, 12, 12, 12])
    for before, after, device in zip(tensors, inverse(sent), cpu_devices, strict=False):
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
            assert b.device == device


def test_gradients_of_two_dtypes_meet_in_the_one_that_is_sent(cpu_devices):
    tensors = [[tf.ones([4], tf.bfloat16), tf.ones([4]), tf.ones([4], tf.bfloat16)]]
    sent, _ = stage(cpu_devices[:1], 99, "bfloat16")(tensors)
    assert [(t.dtype, t.shape[0]) for t in sent[0]] == [(tf.bfloat16, 12)]
    parted, _ = stage(cpu_devices[:1], 99)(tensors)
    assert [t.dtype for t in parted[0]] == [tf.bfloat16, tf.float32, tf.bfloat16]


def test_predictions_join_the_same(cpu_devices, place):
    sizes = (5, 1, 30, 2, 2, 9)
    sent, _ = stage(cpu_devices[:1], 50)(place([[np.ones(n) for n in sizes]]))
    packing = Packing(gradient_bucket_bytes=50)
    predicted = workload.sent(packing, [workload.Tensor(n) for n in sizes])
    assert [tensor.elements for tensor in predicted] == lengths(sent[0])
