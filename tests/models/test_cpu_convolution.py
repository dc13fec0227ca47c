"""Convolutions made of matrix products against TensorFlow's own."""

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.models.cpu_convolution import patches_conv, patches_pay, pointwise_conv


def normal(*shape, dtype, seed):
    values = np.random.default_rng(seed).standard_normal(shape)
    return tf.constant(values.astype(np.float32), dtype)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(tf.float32, 1e-4), (tf.bfloat16, 0.15), (tf.float16, 0.05)]
)
@pytest.mark.parametrize(
    ("make", "size"), [(pointwise_conv, 1), (patches_conv, 3)], ids=["pointwise", "patches"]
)
@pytest.mark.parametrize("shape", [(2, 7, 7, 5), (3, 5, 4, 6), (1, 1, 1, 3)])
def test_values_and_gradients_are_those_of_the_plain_convolution(
    dtype, tolerance, make, size, shape
):
    images = normal(*shape, dtype=dtype, seed=1)
    kernel = normal(size, size, shape[3], 4, dtype=dtype, seed=2)
    upstream = normal(*shape[:3], 4, dtype=dtype, seed=3)
    results = []
    for convolve in (make, lambda x, k: tf.nn.conv2d(x, k, 1, "SAME")):
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            y = convolve(images, kernel)
        gradients = tape.gradient(y, [images, kernel], output_gradients=upstream)
        results.append([np.asarray(tf.cast(t, tf.float32)) for t in (y, *gradients)])
    for ours, plain in zip(*results, strict=True):
        assert ours.shape == plain.shape
        np.testing.assert_allclose(ours, plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("kernel", "size", "dtype", "expected"),
    [
        ((3, 3), 7, tf.bfloat16, True),
        ((3, 3), 7, tf.float16, True),
        ((3, 3), 7, tf.float32, False),
        ((3, 3), 8, tf.bfloat16, False),
        ((5, 5), 7, tf.bfloat16, False),
    ],
)
def test_patches_are_for_small_images_in_sixteen_bits(kernel, size, dtype, expected):
    assert patches_pay(kernel, tf.zeros([1, size, size, 3], dtype)) is expected


@pytest.mark.parametrize("make", [pointwise_conv, patches_conv])
def test_the_batch_size_may_be_unknown(make):
    size = 1 if make is pointwise_conv else 3
    kernel = normal(size, size, 3, 4, dtype=tf.bfloat16, seed=2)

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 3], tf.bfloat16)], autograph=False)
    def run(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            y = make(images, kernel)
        return y, tape.gradient(y, images)

    y, gradient = run(normal(5, 6, 6, 3, dtype=tf.bfloat16, seed=1))
    assert (tuple(y.shape), tuple(gradient.shape)) == ((5, 6, 6, 4), (5, 6, 6, 3))
