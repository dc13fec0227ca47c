"""Convolutions over parts of the channels, and products that broadcast, in both layouts.

Tests models/network.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import convolved, network, normal

from cnnbench.models import Initializer


def run(layer, images, values, data_format):
    """The layer's result in NHWC, whatever the layout it ran in."""
    net = network(values, data_format)
    y = layer(net, net.convert_feature(tf.constant(images)))
    declared = net.shape(y)
    y = tf.transpose(y, [0, 2, 3, 1]) if data_format == "NCHW" else y
    assert tuple(y.shape[1:]) == declared
    return y.numpy()


LAYOUTS = pytest.mark.parametrize("layout", ["NHWC", "NCHW"])


NONE = ((0, 0), (0, 0))


@LAYOUTS
@pytest.mark.parametrize(
    ("padding", "stride", "zeros"),
    [
        ("SAME", 1, [(1, 1)] * 2),
        ("SAME", 2, [(0, 1)] * 2),
        ("VALID", 2, NONE),
        ("SAME_RESNET", 2, [(1, 1)] * 2),
    ],
)
def test_depthwise_convolution_by_definition(padding, stride, zeros, layout, nchw):
    images, kernel, bias = normal(2, 6, 6, 3), normal(3, 3, 3, 2, seed=1), normal(6, seed=2)
    values = {"depthwise0/kernel": kernel, "depthwise0/bias": bias}
    # The outputs of one channel are side by side.
    expected = convolved(images, kernel.reshape(3, 3, 1, 6), (stride, stride), zeros, 3) + bias
    y = run(
        lambda net, x: net.depthwise_conv(x, 3, stride, padding, multiplier=2, activation="relu6"),
        images,
        values,
        layout,
    )
    np.testing.assert_allclose(y, np.clip(expected, 0.0, 6.0), atol=1e-5)


@LAYOUTS
def test_separable_convolution_is_a_depthwise_and_a_pointwise_one(layout, nchw):
    images = normal(2, 6, 6, 3)
    values = {
        "separable0/depthwise_kernel": normal(3, 3, 3, 2, seed=1),
        "separable0/pointwise_kernel": normal(1, 1, 6, 5, seed=2),
        "separable0/bias": normal(5, seed=3),
    }
    depthwise, pointwise, bias = values.values()
    middle = convolved(images, depthwise.reshape(3, 3, 1, 6), (2, 2), [(0, 1)] * 2, 3)
    y = run(
        lambda net, x: net.separable_conv(x, 5, 3, 2, multiplier=2, activation=None),
        images,
        values,
        layout,
    )
    np.testing.assert_allclose(y, middle @ pointwise[0, 0] + bias, atol=1e-5)


@LAYOUTS
@pytest.mark.parametrize(("size", "zeros"), [(1, NONE), (3, [(0, 1)] * 2)])
def test_groups_by_definition(size, zeros, layout, nchw):
    images, kernel = normal(2, 6, 6, 6), normal(size, size, 2, 9, seed=1)
    values = {"conv0/kernel": kernel, "conv0/bias": normal(9, seed=2)}

    def layer(net, x):
        return net.conv(x, 9, size, 2, groups=3, activation=None)

    expected = convolved(images, kernel, (2, 2), zeros, 3) + values["conv0/bias"]
    np.testing.assert_allclose(run(layer, images, values, layout), expected, atol=1e-5)


def test_gradients_of_groups_are_those_of_convolutions_side_by_side():
    images, kernel = tf.constant(normal(2, 6, 6, 6)), tf.constant(normal(3, 3, 2, 9, seed=1))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([images, kernel])
        y = network({"conv0/kernel": kernel}).conv(
            images, 9, 3, groups=3, activation=None, bias=None
        )
        pairs = zip(tf.split(images, 3, 3), tf.split(kernel, 3, 3), strict=True)
        plain = tf.concat([tf.nn.conv2d(x, k, 1, "SAME") for x, k in pairs], 3)
        sums = [tf.reduce_sum(tf.sin(z)) for z in (y, plain)]
    for one, other in zip(*(tape.gradient(s, [images, kernel]) for s in sums), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1),
    "swish": lambda x: x / (1 + np.exp(-x)),
    # The integral of the normal density, by the trapezoidal rule from -12.
    "gelu": lambda x: x * np.array([_below(v) for v in x]),
}


def _below(x):
    grid = np.linspace(-12.0, x, 20_001)
    density = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    return float(np.sum((density[1:] + density[:-1]) / 2) * (grid[1] - grid[0]))


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_by_formula(name):
    x = np.linspace(-3.0, 9.0, 25)
    y = network({}, dtype=tf.float64).activate(tf.constant(x[None]), name)
    np.testing.assert_allclose(y[0], FORMULAS[name](x), atol=1e-6)
    assert network({}).activate(y, None) is y


@LAYOUTS
@pytest.mark.parametrize(
    ("operation", "shape"),
    [
        *(("multiply", shape) for shape in [(3,), (1, 3), (5, 3), (4, 5, 3), (1, 5, 1), ()]),
        ("add", (4, 5, 3)),
    ],
)
def test_variables_broadcast_as_in_numpy(operation, shape, layout, nchw):
    images, values = normal(2, 4, 5, 3), normal(*shape, seed=1)

    def layer(net, x):
        return getattr(net, operation)(net.variable("A", shape, Initializer.constant(1.0)), x)

    y = run(layer, images, {"A": values}, layout)
    np.testing.assert_allclose(y, getattr(np, operation)(images, values), atol=1e-6)


@LAYOUTS
def test_products_with_factors_of_each_example(layout, nchw):
    images = normal(2, 4, 5, 3)
    expected = images * images.mean((1, 2))[:, None, None]
    y = run(lambda net, x: net.multiply(x, net.global_avg_pool(x)), images, {}, layout)
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_products_and_sums_of_variables_stay_without_a_batch():
    values = {"A": normal(3), "B": normal(2, 3, seed=1)}
    net = network(values)
    a, b = (net.variable(n, v.shape, Initializer.constant(0.0)) for n, v in values.items())
    assert net.shape(net.multiply(a, b)) == (2, 3)
    assert net.shape(net.add(a, a)) == (3,)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_convolutions_run_in_16_bits(dtype):
    images = tf.constant(normal(2, 6, 6, 4))
    values = {
        "depthwise0/kernel": normal(3, 3, 4, 1, seed=1),
        "conv0/kernel": normal(3, 3, 2, 4, seed=2),
        "separable0/depthwise_kernel": normal(3, 3, 4, 1, seed=3),
        "separable0/pointwise_kernel": normal(1, 1, 4, 4, seed=4),
    }

    def body(net):
        x = net.convert_feature(images)
        x = net.depthwise_conv(x, 3, activation="swish", bias=None)
        x = net.conv(x, 4, 3, groups=2, activation="gelu", bias=None)
        return net.separable_conv(x, 4, 3, activation="sigmoid", bias=None)

    rough = body(network(values, dtype=tf.as_dtype(dtype)))
    assert rough.dtype == dtype
    np.testing.assert_allclose(tf.cast(rough, tf.float32), body(network(values)), atol=0.1)
