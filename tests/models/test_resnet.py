"""ResNet-50 against keras.applications, and all versions against a reference."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from residual_networks import ResNet

from cnnbench.models import BatchNorm, declare, get_model
from cnnbench.models.graph import forward

KERAS_EPSILON = 1.001e-5


def small(name, image_size, epsilon=1e-5):
    """The network at a size a CPU likes; its weights do not depend on the size."""
    model = get_model(name, "imagenet")
    model.image_size = image_size
    model.batch_norm = BatchNorm(decay=0.9, epsilon=epsilon, scale=True)
    return model


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
    images = np.random.default_rng(1).standard_normal((4, size, size, 3)).astype(np.float32)
    expected = theirs(images, training=True)
    ours = forward(model, 1001, tf.constant(images), weights.read, training=True)
    assert float(tf.norm(ours.outputs - expected) / tf.norm(expected)) < 1e-4
    # Keras' averages move by a hundredth of the batch's.
    for moments, (_, name) in zip(ours.moments, keras_layers(), strict=True):
        mean = theirs.get_layer(f"{name}_bn").moving_mean
        old = weights.values[moments.layer.mean.name].numpy()
        np.testing.assert_allclose(mean, 0.99 * old + 0.01 * moments.batch_mean, atol=1e-4)


# A reference of all versions ---------------------------------------------------------------------

FEW = (2, 2, 1, 1)  # blocks; those of ResNet-50 are compared above
V2 = {"preactivation": True, "scale": False}


@pytest.mark.parametrize(
    ("name", "strides", "options"),
    [
        ("resnet18", (2, 1), {"projects": False}),
        ("resnet50", (2, 1, 1), {}),
        ("resnet50_v1.5", (1, 2, 1), {"training": True}),
        ("resnet50_v2", (2, 1, 1), V2),
        ("resnet50_v2", (2, 1, 1), {**V2, "training": True}),
    ],
)
def test_it_equals_the_reference(name, strides, options, check_logits):
    model = small(name, 64)
    model.blocks = FEW
    check_logits(
        model,
        lambda values: ResNet(values, FEW, strides, **options),
        count=4,
        training=options.get("training", False),
    )


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
