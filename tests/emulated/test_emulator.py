"""What the emulator computes otherwise than the CPU's kernels do by themselves."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow

_GROUPS = """
import json, sys
import numpy as np
import tensorflow as tf

images = tf.random.stateless_normal([2, 9, 9, 12], [1, 2])
filters = tf.random.stateless_normal([3, 3, 4, 6], [3, 4])

def gradients(convolve):
    with tf.GradientTape() as tape:
        tape.watch([images, filters])
        loss = tf.reduce_sum(convolve(images, filters) ** 2)
    return tape.gradient(loss, [images, filters])

def last(images, filters):
    return tf.nn.conv2d(images, filters, 2, "SAME")

def first(images, filters):
    images = tf.transpose(images, [0, 3, 1, 2])
    made = tf.nn.conv2d(images, filters, 2, "SAME", data_format="NCHW")
    return tf.transpose(made, [0, 2, 3, 1])

def apart(images, filters):
    pairs = zip(tf.split(images, 3, 3), tf.split(filters, 3, 3))
    return tf.concat([last(*pair) for pair in pairs], 3)

with tf.device("CPU:0"):
    expected = gradients(apart)
far = []
for layout in (last, first):
    with tf.device("GPU:0"):
        found = gradients(layout)
    for ours, right in zip(found, expected):
        assert "GPU" in ours.device
        far.append(float(np.abs(ours.numpy() - right.numpy()).max() / np.abs(right).max()))
print(json.dumps(far))
sys.exit()
"""


def test_gradients_of_grouped_convolutions(emulated):
    found = emulated(before=_GROUPS, record=False)
    assert max(json.loads(found.out)) < 1e-6
