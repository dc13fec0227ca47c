"""Convolutions made of matrix products against TensorFlow's own."""

import numpy as np
import pytest
import tensorflow as tf
from covering import covering_pairs

from cnnbench.models import get_model
from cnnbench.models.cpu_products import (
    patches_conv,
    patches_pay,
    pointwise_conv,
    sized_conv,
)
from cnnbench.models.graph import forward


def same_conv(images, kernel):
    return sized_conv(images, kernel, [1, 1, 1, 1], "SAME")


def normal(*shape, dtype, seed):
    values = np.random.default_rng(seed).standard_normal(shape)
    return tf.constant(values.astype(np.float32), dtype)


TOLERANCES = {tf.float32: 1e-4, tf.bfloat16: 0.15, tf.float16: 0.05}


@pytest.mark.parametrize(
    ("dtype", "make", "shape"),
    covering_pairs(
        TOLERANCES,
        [pointwise_conv, patches_conv, same_conv],
        [(2, 7, 7, 5), (3, 5, 4, 6), (1, 1, 1, 3)],
    ),
)
def test_values_and_gradients_are_those_of_the_plain_convolution(dtype, make, shape):
    size = 1 if make is pointwise_conv else 3
    images = normal(*shape, dtype=dtype, seed=1)
    kernel = normal(size, size, shape[3], 4, dtype=dtype, seed=2)
    check(make, lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), images, kernel, TOLERANCES[dtype])


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_sized_convolutions_take_strides(padding):
    images = normal(2, 9, 8, 3, dtype=tf.float32, seed=1)
    kernel = normal(3, 2, 3, 4, dtype=tf.float32, seed=2)
    check(
        lambda x, k: sized_conv(x, k, [1, 2, 3, 1], padding),
        lambda x, k: tf.nn.conv2d(x, k, (2, 3), padding),
        images,
        kernel,
        1e-4,
    )


def check(make, plain_one, images, kernel, tolerance):
    upstream = normal(*plain_one(images, kernel).shape, dtype=images.dtype, seed=3)
    results = []
    for convolve in (make, plain_one):
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


@pytest.mark.parametrize("make", [pointwise_conv, patches_conv, same_conv])
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


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_training_asks_no_rectified_image_for_its_shape(dtype):
    # Such a reader keeps TensorFlow from joining a batch norm with its ReLU.
    model = get_model("resnet20", "cifar10")

    @tf.function(autograph=False)
    def step(images):
        with tf.GradientTape() as tape:
            kernels = {}

            def read(spec, dtype):
                kernels[spec.name] = tf.zeros(spec.shape, dtype)
                tape.watch(kernels[spec.name])
                return kernels[spec.name]

            made = forward(model, 10, images, read, training=True, compute_dtype=dtype)
            loss = tf.reduce_sum(made.outputs)
        return tape.gradient(loss, kernels)

    graph = step.get_concrete_function(tf.TensorSpec([2, 32, 32, 3])).graph
    relus = [one for one in graph.get_operations() if one.type == "Relu"]
    readers = {reader.type for one in relus for reader in one.outputs[0].consumers()}
    assert len(relus) == 18
    assert "Conv2DBackpropFilter" in readers
    assert readers.isdisjoint({"Shape", "ShapeN"})
