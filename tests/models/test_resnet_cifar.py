from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from residual_networks import relative_error

from cnnbench.models import declare, get_model
from cnnbench.models.graph import forward


def reference(version, weights, images):
    """ResNet-20 in evaluation mode, from the papers, in float64."""

    def get(name):
        return tf.cast(weights.values[name], tf.float64)

    def conv(x, name, stride=1):
        # SAME of an even image at stride 2 has its one zero after, at stride 1 one each side.
        before = 0 if stride == 2 else 1
        x = tf.pad(x, [[0, 0], [before, 1], [before, 1], [0, 0]])
        return tf.nn.conv2d(x, get(f"{name}/kernel"), stride, "VALID")

    def norm(x, name, scale=True):
        gamma = get(f"{name}/gamma") if scale else 1.0
        mean, variance = get(f"{name}/moving_mean"), get(f"{name}/moving_variance")
        return gamma * (x - mean) / tf.sqrt(variance + 1e-5) + get(f"{name}/beta")

    def shortcut(x, stride):
        if stride == 1:
            return x
        half = x.shape[3] // 2
        return tf.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [half, half]])

    x = norm(conv(tf.cast(images, tf.float64), "conv0"), "batchnorm0")
    if version == "v2":
        x = tf.nn.relu(x)
    for stage in range(3):
        for block in range(3):
            at = f"stage{stage}/block{block}"
            stride = 2 if stage > 0 and block == 0 else 1
            if version == "v1":
                y = tf.nn.relu(norm(conv(x, f"{at}/conv0", stride), f"{at}/batchnorm0"))
                y = norm(conv(y, f"{at}/conv1"), f"{at}/batchnorm1")
                x = tf.nn.relu(y + shortcut(x, stride))
            else:
                y = tf.nn.relu(norm(x, f"{at}/batchnorm0", scale=False))
                y = tf.nn.relu(norm(conv(y, f"{at}/conv0", stride), f"{at}/batchnorm1"))
                x = conv(y, f"{at}/conv1") + shortcut(x, stride)
    if version == "v2":
        x = tf.nn.relu(norm(x, "batchnorm1", scale=False))
    return tf.reduce_mean(x, [1, 2]) @ get("affine0/kernel") + get("affine0/bias")


@pytest.mark.parametrize(("name", "version"), [("resnet20", "v1"), ("resnet20_v2", "v2")])
def test_resnet20_equals_the_reference(name, version, make_weights):
    model = get_model(name, "cifar10")
    weights = make_weights(declare(model, 11).variables)
    images = np.random.default_rng(1).standard_normal((3, 32, 32, 3)).astype(np.float32)
    expected = reference(version, weights, images)
    ours = forward(model, 11, tf.constant(images), weights.read, training=False).outputs
    assert relative_error(ours, expected) < 1e-4


def test_flops_by_hand():
    stem = 32 * 32 * 9 * 3 * 16
    stage = 32 * 32 * 9 * 16 * 16  # of one convolution; the same for 16^2 x 32^2 and 8^2 x 64^2
    first = stage // 2  # the strided one takes in half as many channels as it puts out
    macs = stem + 6 * stage + 2 * (5 * stage + first) + 64 * 11
    spec = declare(get_model("resnet20", "cifar10"), 11)
    assert spec.forward_flops_per_image == 2 * macs
    assert spec.training_flops_per_image == 2 * (3 * macs - stem)


def test_learning_rate():
    rate = get_model("resnet110_v2", "cifar10").learning_rate
    assert (rate.base, rate.base_batch, rate.warmup_epochs) == (0.1, None, 0.0)
    assert rate.boundaries_epochs == (82.0, 123.0, 300.0)
    assert [rate.base * f for f in rate.factors] == pytest.approx([0.1, 0.01, 0.001, 0.0002])
