"""Convolutions and dense layers made of matrix products against TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from covering import covering_pairs
from networks import forward
from short_runs import build

from cnnbench.models import cpu_products, get_model


def normal(*shape, seed, dtype=tf.float32):
    values = np.random.default_rng(seed).standard_normal(shape)
    return tf.constant(values.astype(np.float32), dtype)


def conv(images, kernel):
    return cpu_products.conv(images, kernel, [1, 1, 1, 1], "SAME")


TOLERANCES = {tf.float32: 1e-4, tf.bfloat16: 0.15, tf.float16: 0.05}


@pytest.mark.parametrize(
    ("dtype", "size", "shape"),
    covering_pairs(TOLERANCES, [1, 3, 5], [(2, 7, 7, 5), (3, 5, 4, 6), (1, 1, 1, 3), (1, 9, 8, 2)]),
)
def test_values_and_gradients_are_those_of_the_plain_convolution(dtype, size, shape):
    images = normal(*shape, dtype=dtype, seed=1)
    kernel = normal(size, size, shape[3], 4, dtype=dtype, seed=2)
    check(conv, lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), images, kernel, TOLERANCES[dtype])


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_convolutions_take_strides(padding):
    images = normal(2, 9, 8, 3, seed=1)
    kernel = normal(3, 2, 3, 4, seed=2)
    check(
        lambda x, k: cpu_products.conv(x, k, [1, 2, 3, 1], padding),
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


def gradient_operations(function, form, kernel):
    """Types of the operations of a product and its gradient, for rows or images of a form."""

    @tf.function(input_signature=[form], autograph=False)
    def run(x):
        weights = tf.zeros(kernel, x.dtype)
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            y = function(x, weights)
        gradients = tape.gradient(y, [x, weights])
        assert [tuple(g.shape) for g in gradients] == [tuple(form.shape), kernel]
        return gradients

    return {op.type for op in run.get_concrete_function().graph.get_operations()}


@pytest.mark.parametrize(
    ("side", "size", "dtype", "product"),
    [
        (3, 7, tf.bfloat16, True),
        (3, 7, tf.float16, True),
        (3, 7, tf.float32, False),
        (3, 8, tf.bfloat16, False),
        (5, 7, tf.bfloat16, False),
        (1, 8, tf.bfloat16, True),
        (1, 8, tf.float32, True),
    ],
)
@pytest.mark.parametrize("count", [2, None])
def test_gradients_of_pointwise_kernels_and_in_16_bits_of_small_images_are_products(
    count, side, size, dtype, product
):
    form = tf.TensorSpec([count, size, size, 3], dtype)
    found = gradient_operations(conv, form, (side, side, 3, 4))
    assert ("Conv2DBackpropFilter" not in found) is product


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


def test_values_and_gradients_are_those_of_the_plain_product():
    x, kernel = normal(16, 1024, seed=1), normal(1024, 256, seed=2)
    check(cpu_products.matmul, tf.linalg.matmul, x, kernel, 1e-3)


@pytest.mark.parametrize(
    ("rows", "kernel", "dtype", "kernel_first"),
    [
        (16, (4096, 1001), tf.float32, True),
        (160, (512, 512), tf.float32, True),
        (15, (4096, 1001), tf.float32, False),
        (161, (4096, 1001), tf.float32, False),
        (32, (256, 256), tf.float32, False),
        (32, (1 << 19, 1), tf.float32, False),
        (32, (4096, 1001), tf.bfloat16, False),
        (None, (512, 512), tf.float32, False),
    ],
)
def test_the_gradient_of_few_rows_multiplies_with_a_large_kernel_first(
    rows, kernel, dtype, kernel_first
):
    form = tf.TensorSpec([rows, kernel[0]], dtype)
    found = gradient_operations(cpu_products.matmul, form, kernel)
    assert ("Transpose" in found) is kernel_first


def transposing_products(model, **flags):
    """Products of a traced step that take a large matrix as it is, by whether it is transposed."""
    built = build(model, **flags)
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
