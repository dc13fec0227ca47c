"""Every kind of layer against formulas written anew, and its gradient against differences.

The layers run in float64 (the interpreter takes any compute dtype), so central differences are
good to about 1e-7; batch norm and LRN, whose kernels are float32, are compared with automatic
differentiation of the plain formula instead.

Tests models/graph.py and models/network.py.
"""

from __future__ import annotations

import functools

import networks
import numpy as np
import pytest
import tensorflow as tf

from cnnbench.errors import UsageError
from cnnbench.models import BatchNorm, Initializer

network = functools.partial(networks.network, dtype=tf.float64)


def normal(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).standard_normal(shape))


IMAGES = (2, 6, 6, 3)


def conv(size, *arguments, **options):
    """A convolution to four channels, and the shape of its kernel."""
    height, width = size if isinstance(size, tuple) else (size, size)

    def layer(net, images):
        return net.conv(images, 4, size, *arguments, **options)

    return layer, {"conv0/kernel": (height, width, 3, 4)}


def tokens(net, images):
    """The images' pixels as 36 tokens of 3 channels."""
    return net.reshape(images, (36, 3))


# Of two units over three channels.
GRU = {"kernel": (3, 6), "recurrent": (2, 6), "bias": (6,), "recurrent_bias": (6,)}
AFFINE = {"affine0/kernel": (108, 5), "affine0/bias": (5,)}
LAYERS = {
    # name: (layer, {variable: shape})
    "conv same": conv(3, activation=None),
    "conv same stride 4": conv(3, 4, activation=None),
    "conv valid stride 2": conv(3, 2, "VALID", activation=None),
    "conv same_resnet stride 2": conv(3, 2, "SAME_RESNET", activation=None),
    "conv same_resnet even kernel": conv((4, 1), 2, "SAME_RESNET", activation=None),
    "conv oblong, relu": conv((1, 3), (2, 1)),
    "conv 1x1": conv(1, activation=None),
    "conv 1x1 stride 2": conv(1, 2, "SAME_RESNET", activation=None),
    "conv 1x1 of two strides": conv(1, (2, 3), "VALID", activation=None),
    "max pool": (lambda n, x: n.max_pool(x, 3, 2), {}),
    "max pool same": (lambda n, x: n.max_pool(x, 3, 2, "SAME"), {}),
    "avg pool": (lambda n, x: n.avg_pool(x, 2, 2), {}),
    "avg pool same": (lambda n, x: n.avg_pool(x, 3, 2, "SAME"), {}),
    "avg pool 1x1": (lambda n, x: n.avg_pool(x, 1, 2), {}),
    "global avg pool": (lambda n, x: n.global_avg_pool(x), {}),
    "flatten, affine": (lambda n, x: n.affine(n.flatten(x), 5, None), AFFINE),
    "affine, relu": (lambda n, x: n.affine(n.flatten(x), 5), AFFINE),
    "relu": (lambda n, x: n.relu(x), {}),
    "add": (lambda n, x: n.add(x, n.relu(x)), {}),
    "concat": (lambda n, x: n.concat([x, n.relu(x)]), {}),
    "pad channels": (lambda n, x: n.pad_channels(x, 1, 2), {}),
    "depthwise": (
        lambda n, x: n.depthwise_conv(x, 3, 2, multiplier=2),
        {"depthwise0/kernel": (3, 3, 3, 2), "depthwise0/bias": (6,)},
    ),
    "separable": (
        lambda n, x: n.separable_conv(x, 4, 3, activation=None, bias=None),
        {"separable0/depthwise_kernel": (3, 3, 3, 1), "separable0/pointwise_kernel": (1, 1, 3, 4)},
    ),
    "multiply by each example's own": (
        lambda n, x: n.multiply(x, n.affine(n.global_avg_pool(x), 3, "sigmoid")),
        {"affine0/kernel": (3, 3), "affine0/bias": (3,)},
    ),
    "multiply by a variable": (
        lambda n, x: n.multiply(x, n.variable("A", (3,), Initializer.constant(1.0))),
        {"A": (3,)},
    ),
    "affine of tokens": (
        lambda n, x: n.affine(tokens(n, x), 5, "gelu"),
        {"affine0/kernel": (3, 5), "affine0/bias": (5,)},
    ),
    "layer norm": (
        lambda n, x: n.layer_norm(x),
        {"layernorm0/gamma": (3,), "layernorm0/beta": (3,)},
    ),
    "transpose, split, attention": (
        lambda n, x: n.attention(
            *n.split(n.reshape(n.transpose(x, (2, 0, 1)), (9, 12)), 3),
            2,
            bias=n.variable("B", (2, 9, 9), Initializer.constant(0.0)),
        ),
        {"B": (2, 9, 9)},
    ),
    "gru, two directions": (
        lambda n, x: n.recurrent(tokens(n, x), 2, "gru", bidirectional=True),
        {f"gru0/{d}/{p}": shape for d in ("forward", "backward") for p, shape in GRU.items()},
    ),
    "dropout in evaluation": (lambda n, x: n.dropout(x), {}),
    "scalar variable": (
        lambda n, x: n.apply(lambda y, a: y * a, x, n.variable("A", (), Initializer.constant(1.0))),
        {"A": ()},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_equals_finite_differences(name):
    layer, shapes = LAYERS[name]
    shapes = dict(shapes)
    if "conv0/kernel" in shapes:
        shapes["conv0/bias"] = shapes["conv0/kernel"][-1:]
    training = name != "dropout in evaluation"
    declared = networks.shape_of(layer, image_size=6)
    names = list(shapes)
    start = [normal(*IMAGES), *(normal(*s, seed=i + 1) for i, s in enumerate(shapes.values()))]
    direction = [normal(*s.shape, seed=100 + i) for i, s in enumerate(start)]

    def loss(images, *weights):
        net = network(dict(zip(names, weights, strict=True)), training=training)
        y = layer(net, images)
        assert tuple(y.shape[1:]) == declared
        return tf.reduce_sum(y * normal(*y.shape, seed=50))

    if any("recurrent" in one for one in shapes):  # a loop, which is traced at each call
        loss = tf.function(loss, autograph=False)
    with tf.GradientTape() as tape:
        tape.watch(start)
        value = loss(*start)
    gradients = tape.gradient(value, start)
    for i, gradient in enumerate(gradients):
        step = 1e-6

        def moved(h, i=i):
            return loss(*start[:i], start[i] + h * direction[i], *start[i + 1 :])

        slope = (moved(step) - moved(-step)) / (2 * step)
        assert float(tf.reduce_sum(gradient * direction[i])) == pytest.approx(
            float(slope), rel=1e-6, abs=1e-7
        )


# Values ---------------------------------------------------------------------------------------


NONE = ((0, 0), (0, 0))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("size", "padding", "strides", "zeros"),
    [
        ((3, 3), "SAME", (1, 1), [(1, 1)] * 2),
        # TensorFlow's SAME puts the odd zero of an even side last.
        ((3, 3), "SAME", (2, 2), [(0, 1), (1, 1)]),
        ((3, 3), "VALID", (2, 2), NONE),
        ((3, 5), "SAME_RESNET", (1, 1), [(1, 1), (2, 2)]),
        ((3, 3), "SAME_RESNET", (2, 1), [(1, 1)] * 2),
        ((2, 7), "SAME_RESNET", (2, 2), [(0, 1), (3, 3)]),
        ((4, 3), "SAME_RESNET", (2, 2), [(1, 2), (1, 1)]),
        *(((1, 1), padding, (1, 1), NONE) for padding in ("SAME", "VALID")),
        *(((1, 1), padding, (2, 3), NONE) for padding in ("SAME", "VALID", "SAME_RESNET")),
    ],
)
def test_convolution_by_definition(size, padding, strides, zeros, training):
    images, kernel, bias = normal(2, 6, 7, 3), normal(*size, 3, 4, seed=1), normal(4, seed=2)
    net = network({"conv0/kernel": kernel, "conv0/bias": bias}, training=training)
    y = net.conv(images, 4, size, strides, padding)
    expected = networks.convolved(images, kernel.numpy(), strides, zeros) + bias
    np.testing.assert_allclose(y, np.maximum(expected, 0.0), atol=1e-12)


def test_two_strided_pointwise_convolutions_of_one_input_have_their_own_gradients():
    images = normal(*IMAGES)
    kernels = {f"conv{i}/kernel": normal(1, 1, 3, 4, seed=i) for i in range(2)}
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([images, kernels])
        net = network(kernels)
        ys = [net.conv(images, 4, 1, 2, activation=None, bias=None) for _ in range(2)]
        plain = [tf.nn.conv2d(images, k, 2, "SAME") for k in kernels.values()]
        sums = [sum(tf.reduce_sum(tf.sin(y)) for y in pair) for pair in (ys, plain)]
    for one, other in zip(
        *(tf.nest.flatten(tape.gradient(s, [images, kernels])) for s in sums), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_convolutions_take_batches_of_unknown_size():
    values = {"conv0/kernel": normal(1, 1, 3, 4)}

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 3], tf.float64)], autograph=False)
    def run(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            net = network(values)
            y = net.dropout(net.conv(images, 4, 1, 2, activation=None, bias=None))
        return y, tape.gradient(y, images)

    y, gradient = run(normal(5, 6, 6, 3))
    assert (tuple(y.shape), tuple(gradient.shape)) == ((5, 3, 3, 4), (5, 6, 6, 3))


def norm_values(channels):
    draw = np.random.default_rng(5)
    return {
        f"batchnorm0/{name}": tf.constant(draw.uniform(0.5, 1.5, channels).astype(np.float32))
        for name in ("gamma", "beta", "moving_mean", "moving_variance")
    }


def test_batch_norm_in_training_equals_its_formula_and_gradient():
    images = tf.constant(np.random.default_rng(0).standard_normal((8, 5, 5, 3)), tf.float32)
    weights = tf.constant(np.random.default_rng(1).standard_normal((8, 5, 5, 3)), tf.float32)
    values = norm_values(3)
    gamma, beta = values["batchnorm0/gamma"], values["batchnorm0/beta"]

    def formula(x):
        x = tf.cast(x, tf.float64)
        mean = tf.reduce_mean(x, [0, 1, 2])
        variance = tf.reduce_mean((x - mean) ** 2, [0, 1, 2])
        scaled = (x - mean) / tf.sqrt(variance + 1e-5) * tf.cast(gamma, tf.float64)
        return scaled + tf.cast(beta, tf.float64)

    sources = [images, gamma, beta]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        net = network(values, dtype=tf.float32)
        ours = net.batch_norm(images)
        plain = formula(images)
        our_loss = tf.reduce_sum(ours * weights)
        plain_loss = tf.reduce_sum(plain * tf.cast(weights, tf.float64))
    np.testing.assert_allclose(ours, plain, atol=1e-5)
    for one, other in zip(
        tape.gradient(our_loss, sources), tape.gradient(plain_loss, sources), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("shape", [(50, 3), (8, 6, 3), (4, 2, 5, 6, 3)])
def test_batch_norm_of_sequences_is_over_batch_and_tokens(shape, layout):
    x = 2.0 + np.random.default_rng(0).standard_normal(shape)
    values = norm_values(3)
    net = network(values, dtype=tf.float32, data_format=layout)
    y = net.batch_norm(tf.constant(x, tf.float32))
    rows = x.reshape(-1, 3)
    gamma, beta = (values[f"batchnorm0/{n}"].numpy() for n in ("gamma", "beta"))
    expected = (x - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-5) * gamma + beta
    np.testing.assert_allclose(y, expected, atol=1e-4)
    np.testing.assert_allclose(net.updates[1].value, rows.var(0, ddof=1), rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_many_long_sequences_has_as_many_examples(training):
    """128 utterances of 874 frames, not 111,872 examples: cuDNN has a limit of 65,535."""

    @tf.function(input_signature=[tf.TensorSpec([128, 874, 4], tf.float32)], autograph=False)
    def norm(x):
        return network(norm_values(4), dtype=tf.float32, training=training).batch_norm(x)

    graph = norm.get_concrete_function().graph
    (found,) = [one for one in graph.get_operations() if one.type == "FusedBatchNormV3"]
    assert found.inputs[0].shape == [128, 874, 1, 4]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_batch_moments_are_float32_and_the_variance_is_unbiased(dtype):
    raw = 3.0 + np.random.default_rng(0).standard_normal((4, 2, 2, 3))
    images = tf.cast(raw, dtype)
    net = network(norm_values(3), dtype=tf.as_dtype(dtype))
    assert net.batch_norm(images).dtype == dtype
    mean, variance = net.updates
    assert mean.value.dtype == variance.value.dtype == tf.float32
    seen = tf.cast(images, tf.float64).numpy().reshape(-1, 3)
    np.testing.assert_allclose(mean.value, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance.value, seen.var(0, ddof=1), rtol=1e-4)
    assert (mean.variable.name, variance.variable.name, mean.decay) == (
        "batchnorm0/moving_mean",
        "batchnorm0/moving_variance",
        0.9,
    )


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("scale", [True, False])
def test_batch_norm_in_evaluation_uses_the_moving_averages(scale, channels):
    images = np.random.default_rng(0).standard_normal((2, 4, 4, channels))
    images = tf.constant(images, tf.float32)
    values = norm_values(channels)
    net = network(values, training=False, dtype=tf.float32)
    y = net.batch_norm(images, settings=BatchNorm(epsilon=0.01, scale=scale))
    mean, variance, gamma, beta = (
        values[f"batchnorm0/{n}"].numpy()
        for n in ("moving_mean", "moving_variance", "gamma", "beta")
    )
    expected = (images - mean) / np.sqrt(variance + 0.01) * (gamma if scale else 1.0) + beta
    np.testing.assert_allclose(y, expected, atol=1e-5)
    assert net.updates == []


def test_lrn_equals_its_formula_and_gradient():
    images = tf.constant(np.random.default_rng(0).standard_normal((2, 3, 3, 7)), tf.float32)

    def formula(x):
        squares = tf.pad(x**2, [[0, 0], [0, 0], [0, 0], [2, 2]])
        total = sum(squares[..., i : i + 7] for i in range(5))
        return x / (1.5 + 0.3 * total) ** 0.75

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(images)
        ours = network({}, dtype=tf.float32).lrn(images, radius=2, bias=1.5, alpha=0.3, beta=0.75)
        plain = formula(images)
        our_loss, plain_loss = (tf.reduce_sum(y * tf.sin(images)) for y in (ours, plain))
    np.testing.assert_allclose(ours, plain, atol=1e-6)
    np.testing.assert_allclose(
        tape.gradient(our_loss, images), tape.gradient(plain_loss, images), atol=1e-5
    )


# Dropout --------------------------------------------------------------------------------------

ONES = tf.ones([40, 10, 10, 10])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("keep", [0.5, 0.8])
def test_dropout_keeps_the_share_it_is_told_and_scales(dtype, keep):
    images = tf.cast(ONES, dtype)
    y = tf.cast(network({}, dtype=tf.as_dtype(dtype), seed=3).dropout(images, keep), tf.float32)
    kept = y.numpy()[y.numpy() > 0]
    np.testing.assert_allclose(kept, 1.0 / keep, rtol=5e-3)
    spread = (keep * (1 - keep) / 40_000) ** 0.5
    assert abs(len(kept) / 40_000 - keep) < 5 * spread


def test_dropout_follows_the_seed_and_differs_between_layers():
    def draw(seed):
        net = network({}, dtype=tf.float32, seed=seed)
        return net.dropout(ONES).numpy(), net.dropout(ONES).numpy()

    first, second = draw(7)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, draw(7)[0])
    assert np.array_equal(first, draw(tf.constant([7, 0]))[0])
    assert np.array_equal(first, draw(tf.constant([7, 0], tf.int64))[0])
    assert not np.array_equal(first, draw(8)[0])
    assert not np.array_equal(first, draw([7, 1])[0])  # the next step


@pytest.mark.parametrize("layer", ["dropout", "drop_path"])
def test_what_keeps_all_or_evaluates_makes_no_operation(layer):
    assert getattr(network({}), layer)(ONES, keep=1.0) is ONES
    assert getattr(network({}, training=False), layer)(ONES, keep=0.5) is ONES


def test_drop_path_keeps_or_drops_whole_examples():
    images = tf.ones([2000, 2, 2, 3])
    y = network({}, dtype=tf.float32, seed=3).drop_path(images, 0.8).numpy()
    kept = y[:, 0, 0, 0] > 0
    np.testing.assert_allclose(y[kept], 1.25, rtol=1e-6)
    assert not y[~kept].any()
    assert abs(kept.mean() - 0.8) < 5 * (0.8 * 0.2 / 2000) ** 0.5


@pytest.mark.parametrize(
    ("step", "steps", "keep"), [(0, 40, 1.0), (20, 40, 0.75), (50, 40, 0.5), (3, 0, 0.5)]
)
def test_the_share_of_paths_kept_falls_with_progress(step, steps, keep):
    net = network({}, dtype=tf.bfloat16, seed=tf.constant([3, step]), training_steps=steps)
    y = tf.cast(net.drop_path(tf.ones([2000, 1], tf.bfloat16), 0.5, by_progress=True), tf.float32)
    kept = y.numpy() > 0
    np.testing.assert_allclose(y.numpy()[kept], 1.0 / keep, rtol=5e-3)
    assert abs(kept.mean() - keep) <= 5 * (keep * (1 - keep) / 2000) ** 0.5


# Functions of one's own -----------------------------------------------------------------------


def test_apply_hands_image_like_tensors_over_in_nhwc_and_leaves_variables_alone():
    seen = {}

    def function(x, kernel):
        seen.update(x=tuple(x.shape), kernel=tuple(kernel.shape))
        return x[:, :2]

    values = {"own": normal(3, 3, 4, 5)}
    net = network(values, data_format="NCHW")
    images = net.convert_feature(normal(2, 6, 8, 3))
    kernel = net.variable("own", (3, 3, 4, 5), Initializer.constant(0.0))
    y = net.apply(function, net.relu(images), kernel, shape=(2, 8, 3))
    assert seen == {"x": (2, 6, 8, 3), "kernel": (3, 3, 4, 5)}
    assert net.shape(y) == (2, 8, 3)
    assert tuple(y.shape) == (2, 3, 2, 8)
    assert net.shape(kernel) == (3, 3, 4, 5)


def test_apply_to_variables_alone_has_no_batch():
    net = network({"A": tf.constant(2.0), "B": tf.constant(3.0)})
    a, b = (net.variable(n, (), Initializer.constant(0.0)) for n in "AB")
    product = net.apply(lambda x, y: x * y, a, b)
    assert net.shape(product) == ()
    assert float(net.apply(lambda x, p: x * p, tf.ones([1, 1], tf.float64), product)[0, 0]) == 6.0


def test_apply_whose_function_makes_another_shape_is_refused():
    net = network({})
    with pytest.raises(UsageError, match=r"declares the shape \(6, 6, 3\).*returned \(6, 6, 2\)"):
        net.apply(lambda x: x[..., :2], normal(*IMAGES))
