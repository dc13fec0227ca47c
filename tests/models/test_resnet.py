"""ResNet-50 against keras.applications and against a reference written anew for each version."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.models import BatchNorm, declare, get_model
from cnnbench.models.graph import forward

KERAS_EPSILON = 1.001e-5


def small(name, image_size, epsilon=1e-5):
    """The network at a size a CPU likes; its weights do not depend on the size."""
    model = get_model(name, "imagenet")
    model.image_size = image_size
    model.batch_norm = BatchNorm(decay=0.9, epsilon=epsilon, scale=True)
    return model


def noise(size, count=2):
    shape = (count, size, size, 3)
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


# keras.applications -----------------------------------------------------------------------------


def keras_layers():
    """Our layer pairs (scope of conv and norm) against Keras' names, block by block."""
    yield ("conv0", "batchnorm0"), "conv1"
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            order = (0, 1, 2, 3) if block == 0 else (1, 2, 3)  # 0: the projection, made first
            for index, part in enumerate(order):
                scope = f"stage{stage}/block{block}"
                ours = (f"{scope}/conv{index}", f"{scope}/batchnorm{index}")
                yield ours, f"conv{stage + 2}_block{block + 1}_{part}"


def fill_keras(theirs, weights):
    filled = set()
    for (conv, norm), name in keras_layers():
        layer = theirs.get_layer(f"{name}_conv")
        kernel = weights.values[f"{conv}/kernel"].numpy()
        layer.set_weights([kernel, np.zeros(kernel.shape[-1], np.float32)])
        parts = [f"{norm}/{p}" for p in ("gamma", "beta", "moving_mean", "moving_variance")]
        theirs.get_layer(f"{name}_bn").set_weights([weights.values[p].numpy() for p in parts])
        filled |= {f"{conv}/kernel", *parts}
    last = ["affine0/kernel", "affine0/bias"]
    theirs.get_layer("predictions").set_weights([weights.values[p].numpy() for p in last])
    assert filled | set(last) == set(weights.values)


def test_resnet50_equals_keras_applications(make_weights):
    """In training; the moving averages, and how they are used, are in the reference."""
    # Keras pads its pooling by one on both sides, which is SAME only where the stem's output
    # is odd: 65 gives 33.
    size = 65
    theirs = tf.keras.applications.ResNet50(
        weights=None, classes=1001, classifier_activation=None, input_shape=(size, size, 3)
    )
    model = small("resnet50", size, KERAS_EPSILON)
    weights = make_weights(declare(model, 1001).variables)
    fill_keras(theirs, weights)
    images = noise(size, count=4)
    expected = theirs(images, training=True)
    ours = forward(model, 1001, tf.constant(images), weights.read, training=True)
    assert float(tf.norm(ours.outputs - expected) / tf.norm(expected)) < 1e-4
    # Keras' averages move by a hundredth of the batch's.
    for moments, (_, name) in zip(ours.moments, keras_layers(), strict=True):
        mean = theirs.get_layer(f"{name}_bn").moving_mean
        old = weights.values[moments.mean_spec.name].numpy()
        np.testing.assert_allclose(mean, 0.99 * old + 0.01 * moments.batch_mean, atol=1e-4)


# A reference of all three versions --------------------------------------------------------------


class Reference:
    """The network written from the papers with plain functions, its weights taken by name."""

    blocks = (2, 2, 1, 1)  # those of ResNet-50 are compared above

    def __init__(self, version, weights, training):
        self.version, self.values, self.training = version, weights.values, training
        self.used: set[str] = set()

    def get(self, name):
        self.used.add(name)
        return tf.cast(self.values[name], tf.float64)

    def conv(self, x, name, stride=1):
        kernel = self.get(f"{name}/kernel")
        k = kernel.shape[0]
        before = (k - 1) // 2
        after = k - 1 - before
        x = tf.pad(x, [[0, 0], [before, after], [before, after], [0, 0]])
        return tf.nn.conv2d(x, kernel, stride, "VALID")

    def norm(self, x, name, scale=True):
        gamma = self.get(f"{name}/gamma") if scale else 1.0
        beta = self.get(f"{name}/beta")
        if self.training:
            mean = tf.reduce_mean(x, [0, 1, 2])
            variance = tf.reduce_mean(tf.square(x - mean), [0, 1, 2])
            self.used |= {f"{name}/moving_mean", f"{name}/moving_variance"}
        else:
            mean, variance = self.get(f"{name}/moving_mean"), self.get(f"{name}/moving_variance")
        return gamma * (x - mean) / tf.sqrt(variance + 1e-5) + beta

    def block_v1(self, x, at, stride, project):
        s1, s2 = (stride, 1) if self.version == "v1" else (1, stride)
        i = 0
        shortcut = x
        if project:
            shortcut = self.norm(self.conv(x, f"{at}/conv0", stride), f"{at}/batchnorm0")
            i = 1
        y = tf.nn.relu(self.norm(self.conv(x, f"{at}/conv{i}", s1), f"{at}/batchnorm{i}"))
        i += 1
        y = tf.nn.relu(self.norm(self.conv(y, f"{at}/conv{i}", s2), f"{at}/batchnorm{i}"))
        i += 1
        y = self.norm(self.conv(y, f"{at}/conv{i}"), f"{at}/batchnorm{i}")
        return tf.nn.relu(y + shortcut)

    def block_v2(self, x, at, stride, project):
        active = tf.nn.relu(self.norm(x, f"{at}/batchnorm0", scale=False))
        shortcut = self.conv(active, f"{at}/conv0", stride) if project else x
        i = int(project)
        y = tf.nn.relu(self.norm(self.conv(active, f"{at}/conv{i}", stride), f"{at}/batchnorm1"))
        y = tf.nn.relu(self.norm(self.conv(y, f"{at}/conv{i + 1}"), f"{at}/batchnorm2"))
        return self.conv(y, f"{at}/conv{i + 2}") + shortcut

    def __call__(self, images):
        x = tf.cast(images, tf.float64)
        x = tf.nn.relu(self.norm(self.conv(x, "conv0", 2), "batchnorm0"))
        # SAME pooling of an even image: one row more after than before, and zeros do as
        # padding because nothing is negative after a ReLU.
        x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [0, 1], [0, 1], [0, 0]]), 3, 2, "VALID")
        block = self.block_v2 if self.version == "v2" else self.block_v1
        for stage, blocks in enumerate(self.blocks):
            for b in range(blocks):
                stride = 2 if (stage > 0 and b == 0) else 1
                x = block(x, f"stage{stage}/block{b}", stride, project=b == 0)
        if self.version == "v2":
            x = tf.nn.relu(self.norm(x, "batchnorm1", scale=False))
        x = tf.reduce_mean(x, [1, 2])
        return x @ self.get("affine0/kernel") + self.get("affine0/bias")


@pytest.mark.parametrize(
    ("name", "version", "training"),
    [
        ("resnet50", "v1", False),
        ("resnet50_v1.5", "v1.5", True),
        ("resnet50_v2", "v2", False),
        ("resnet50_v2", "v2", True),
    ],
)
def test_resnet50_equals_the_reference(name, version, training, make_weights):
    model = small(name, 64)
    model.blocks = Reference.blocks
    weights = make_weights(declare(model, 1001).variables)
    images = noise(64, count=4)
    reference = Reference(version, weights, training)
    expected = reference(images)
    assert reference.used == set(weights.values)
    ours = forward(model, 1001, tf.constant(images), weights.read, training=training).outputs
    error = tf.norm(tf.cast(ours, tf.float64) - expected) / tf.norm(expected)
    assert float(error) < 1e-4


# Arithmetic -----------------------------------------------------------------------------------


def bottleneck_macs(strided):
    """Multiply-adds of ResNet-50, block by block; ``strided`` names the convolution that is."""
    total = 112 * 112 * 7 * 7 * 3 * 64
    side, depth = 56, 64
    for stage, (width, blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True)):
        for block in range(blocks):
            out = side // 2 if stage and block == 0 else side
            middle = out if strided == "first" else side
            total += middle**2 * depth * width  # 1 x 1
            total += out**2 * 9 * width * width  # 3 x 3
            total += out**2 * width * 4 * width  # 1 x 1
            if block == 0:
                total += out**2 * depth * 4 * width
            side, depth = out, 4 * width
    return total + 2048 * 1001


@pytest.mark.parametrize(
    ("name", "strided", "giga"),
    [
        ("resnet50", "first", 3.858),
        ("resnet50_v1.5", "middle", 4.089),
        ("resnet50_v2", "first", 3.858),
    ],
)
def test_flops_by_hand(name, strided, giga):
    spec = declare(get_model(name, "imagenet"), 1001)
    macs = bottleneck_macs(strided)
    assert macs == pytest.approx(giga * 1e9, rel=2e-4)
    assert spec.forward_flops_per_image == 2 * macs
    stem = 112 * 112 * 7 * 7 * 3 * 64  # its input is the images: no gradient to compute
    assert spec.training_flops_per_image == 2 * (3 * macs - stem)


def test_learning_rate_and_batch_sizes():
    rate = get_model("resnet152_v2", "imagenet").learning_rate
    assert (rate.base, rate.base_batch, rate.warmup_epochs) == (0.128, 256, 5.0)
    assert rate.boundaries_epochs == (30.0, 60.0, 80.0, 90.0)
    assert rate.factors == (1.0, 0.1, 0.01, 0.001, 0.0001)
    sizes = [get_model(f"resnet{d}", "imagenet").batch_size for d in (50, 101, 152)]
    assert sizes == [64, 32, 32]
