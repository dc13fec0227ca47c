"""Convolutions and dense layers made of matrix products against TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from covering import covering_pairs

from cnnbench.flags import Params
from cnnbench.models import get_model
from cnnbench.models.cpu_products import (
    few_rows_matmul,
    patches_conv,
    patches_pay,
    pointwise_conv,
    sized_conv,
    transposed_rows_pay,
)
from cnnbench.models.graph import forward
from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN


def same_conv(images, kernel):
    return sized_conv(images, kernel, [1, 1, 1, 1], "SAME")


def normal(*shape, seed, dtype=tf.float32):
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
    images = normal(2, 9, 8, 3, seed=1)
    kernel = normal(3, 2, 3, 4, seed=2)
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


# Dense layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(16, 300, 70), (3, 5, 1), (1, 1, 4)])
def test_values_and_gradients_are_those_of_the_plain_product(rows, inputs, outputs):
    x, kernel = normal(rows, inputs, seed=1), normal(inputs, outputs, seed=2)
    check(few_rows_matmul, tf.linalg.matmul, x, kernel, 1e-5)


@pytest.mark.parametrize(
    ("rows", "kernel", "dtype", "expected"),
    [
        (16, (4096, 1001), tf.float32, True),
        (160, (512, 512), tf.float32, True),
        (15, (4096, 1001), tf.float32, False),
        (161, (4096, 1001), tf.float32, False),
        (32, (256, 256), tf.float32, False),
        (32, (1 << 19, 1), tf.float32, False),
        (32, (4096, 1001), tf.bfloat16, False),
    ],
)
def test_it_is_for_few_rows_and_large_kernels(rows, kernel, dtype, expected):
    x, weights = tf.zeros([rows, kernel[0]], dtype), tf.zeros(kernel, dtype)
    assert transposed_rows_pay(x, weights) is expected


def test_an_unknown_number_of_rows_takes_the_plain_product():
    answers = []

    @tf.function(input_signature=[tf.TensorSpec([None, 512])], autograph=False)
    def run(rows):
        answers.append(transposed_rows_pay(rows, tf.zeros([512, 512])))
        return rows

    run(tf.zeros([32, 512]))
    assert answers == [False]


def transposing_products(model, **flags):
    """Products of a traced step that take a large matrix as it is, by whether it is transposed."""
    params = Params(model=model, device="cpu", num_warmup_batches=0, **flags)
    built = BenchmarkCNN(params).build()
    found = {"kernel first": 0, "kernel transposed": 0}
    for operation in built.step.graph.get_operations():
        if operation.type == "MatMul" and operation.get_attr("transpose_b"):
            first, second = (tensor.shape.num_elements() for tensor in operation.inputs)
            found["kernel first" if first > second else "kernel transposed"] += 1
    built.close()
    return found


def test_the_step_of_a_dense_layer_multiplies_with_the_kernel_as_it_lies():
    found = transposing_products("lenet", batch_size=16)
    assert found == {"kernel first": 2, "kernel transposed": 0}
    assert transposing_products("lenet", batch_size=8)["kernel first"] == 0
