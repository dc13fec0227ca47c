"""Layers of tokens and sequences against Keras' cells and formulas in NumPy.

Tests models/graph.py and models/network.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import network, normal

from cnnbench.errors import UsageError
from cnnbench.models import Initializer

# Recurrent layers -------------------------------------------------------------------------------

GATES = {"gru": 3, "lstm": 4, "rnn": 1}


def weights(cell, inputs, units, direction="forward"):
    """Values of one cell by canonical name."""
    width = GATES[cell] * units
    parts = {"kernel": (inputs, width), "recurrent": (units, width), "bias": (width,)}
    if cell == "gru":
        parts["recurrent_bias"] = (width,)
    return {
        f"{cell}0/{direction}/{part}": 0.5 * normal(*shape, seed=index + len(direction))
        for index, (part, shape) in enumerate(parts.items())
    }


def keras_cell(cell, inputs, units, values):
    """Keras' layer with the same weights; it adds nothing to the forget gate's bias."""
    layer = {
        "gru": tf.keras.layers.GRU,
        "lstm": tf.keras.layers.LSTM,
        "rnn": tf.keras.layers.SimpleRNN,
    }[cell](units, return_sequences=True)
    layer.build((None, None, inputs))
    kernel, recurrent, bias, *rest = values
    if cell == "gru":
        bias = np.stack([bias, *rest])
    if cell == "lstm":
        bias = bias + np.repeat([0.0, 1.0, 0.0, 0.0], units)
    layer.set_weights([kernel, recurrent, bias])
    return layer


@pytest.mark.parametrize("cell", GATES)
def test_recurrent_layers_equal_those_of_keras(cell):
    x = normal(3, 5, 4)
    values = weights(cell, 4, 6)
    y = network(values).recurrent(tf.constant(x), 6, cell)
    theirs = keras_cell(cell, 4, 6, list(values.values()))
    np.testing.assert_allclose(y, theirs(x), atol=1e-5)


def test_a_second_cell_runs_backwards():
    x = normal(3, 5, 4)
    values = weights("lstm", 4, 6) | weights("lstm", 4, 6, "backward")
    y = network(values).recurrent(tf.constant(x), 6, "lstm", bidirectional=True).numpy()
    ahead, back = (
        keras_cell("lstm", 4, 6, [v for k, v in values.items() if f"/{d}/" in k])
        for d in ("forward", "backward")
    )
    np.testing.assert_allclose(y[..., :6], ahead(x), atol=1e-5)
    np.testing.assert_allclose(y[..., 6:], np.asarray(back(x[:, ::-1]))[:, ::-1], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "batch", "xla"),
    [
        ("float32", None, False),
        ("bfloat16", None, False),
        ("float16", 3, False),
        ("float32", 3, True),
    ],
)
def test_a_recurrent_layer_trains_in_a_traced_function(batch, dtype, xla):
    values = {k: tf.constant(v) for k, v in weights("gru", 4, 6).items()}

    @tf.function(
        input_signature=[tf.TensorSpec([batch, 5, 4], dtype)], autograph=False, jit_compile=xla
    )
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch([x, values])
            y = network(values, dtype=tf.as_dtype(dtype)).recurrent(x, 6)
        return y, tape.gradient(y, [x, values])

    y, gradients = run(tf.cast(normal(3, 5, 4), dtype))
    assert (y.dtype, tuple(y.shape)) == (dtype, (3, 5, 6))
    for gradient in tf.nest.flatten(gradients):
        assert np.isfinite(tf.cast(gradient, tf.float32)).all()
        assert np.asarray(tf.cast(gradient, tf.float32)).any()


# Attention --------------------------------------------------------------------------------------


def attention_by_definition(query, key, value, heads, bias):
    """Head by head, token by token."""
    width = query.shape[-1] // heads
    out = np.zeros((*query.shape[:-1], value.shape[-1]))
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        q, k, v = (t[..., part].astype(np.float64) for t in (query, key, value))
        scores = np.einsum("...nc,...mc->...nm", q, k) / np.sqrt(width) + bias[..., head, :, :]
        shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        out[..., part] = np.einsum("...nm,...mc->...nc", shares, v)
    return out


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_attention_by_definition(data_format):
    query, key, value = normal(2, 5, 6), normal(2, 7, 6, seed=1), normal(2, 7, 6, seed=2)
    y = network({}, data_format).attention(
        tf.constant(query), tf.constant(key), tf.constant(value), 3
    )
    expected = attention_by_definition(query, key, value, 3, np.zeros((3, 5, 7)))
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 5, 5), (1, 1, 5), (4, 2, 1, 5, 5)])
def test_attention_of_groups_with_a_bias(shape):
    x, bias = normal(2, 4, 2, 5, 6), normal(*shape, seed=1)
    net = network({"B": bias})
    y = net.attention(
        *[tf.constant(x)] * 3, 3, bias=net.variable("B", shape, Initializer.constant(0.0))
    )
    expected = attention_by_definition(x, x, x, 3, np.broadcast_to(bias, (4, 2, 3, 5, 5)))
    np.testing.assert_allclose(y, expected, atol=1e-5)
    assert net.shape(y) == (4, 2, 5, 6)


def test_a_bias_that_differs_between_examples_or_does_not_fit_is_refused():
    net = network({"B": normal(2, 5, 5)})
    x = tf.constant(normal(2, 5, 6))
    with pytest.raises(UsageError, match="computed only from variables, so that it has no batch"):
        net.attention(x, x, x, 1, bias=tf.zeros([2, 1, 5, 5]))
    with pytest.raises(
        UsageError, match=r"bias of shape \(2, 5, 5\) does not broadcast to \(3, 5, 5\)"
    ):
        net.attention(x, x, x, 3, bias=net.variable("B", (2, 5, 5), Initializer.constant(0.0)))
    with pytest.raises(UsageError, match="cannot divide 6 channels among 4 heads"):
        net.attention(x, x, x, 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_attention_shares_add_up_to_one_in_16_bits(dtype):
    # 4096 equal shares: a sum of 16-bit exponentials would stop growing at 256 or 2048.
    x = tf.zeros([1, 4096, 2], dtype)
    y = network({}, dtype=tf.as_dtype(dtype)).attention(x[:, :1], x, tf.ones_like(x), 1)
    np.testing.assert_allclose(tf.cast(y, tf.float32), 1.0, atol=0.01)


# Others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (2, 5, 6), (2, 3, 4, 5, 6)])
def test_layer_norm_by_formula(shape, layout):
    x = 3.0 + 2.0 * normal(*shape)
    values = {f"layernorm0/{part}": normal(6, seed=i) for i, part in enumerate(("gamma", "beta"))}
    net = network(values, layout)
    given = tf.constant(x) if len(shape) != 4 else net.convert_feature(tf.constant(x))
    y = net.layer_norm(given, epsilon=1e-3)
    if len(shape) == 4 and layout == "NCHW":
        y = tf.transpose(y, [0, 2, 3, 1])
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    expected = (x - mean) / np.sqrt(variance + 1e-3) * values["layernorm0/gamma"]
    np.testing.assert_allclose(y, expected + values["layernorm0/beta"], atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_layer_norm_has_float32_statistics(dtype):
    # Squares of 300 overflow float16; bfloat16 cannot tell their means apart.
    x = tf.constant([[[300.0, 301.0, 299.0, 300.0]]], dtype)
    values = {"layernorm0/gamma": tf.ones(4), "layernorm0/beta": tf.zeros(4)}
    y = network(values, dtype=tf.as_dtype(dtype)).layer_norm(x)
    assert y.dtype == dtype
    seen = tf.cast(x, tf.float64).numpy()
    expected = (seen - seen.mean()) / np.sqrt(seen.var() + 1e-6)
    np.testing.assert_allclose(tf.cast(y, tf.float32), expected, atol=0.02)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_shapes_change_as_if_channels_came_last(layout):
    images = normal(2, 4, 5, 6)
    net = network({}, layout)
    x = net.convert_feature(tf.constant(images))
    tokens = net.reshape(x, (20, 6))
    np.testing.assert_array_equal(tokens, images.reshape(2, 20, 6))
    again = net.reshape(tokens, (4, 5, 6))
    np.testing.assert_array_equal(again, x)
    turned = net.transpose(x, (2, 0, 1))
    assert net.shape(turned) == (6, 4, 5)
    np.testing.assert_array_equal(net.flatten(turned), images.transpose(0, 3, 1, 2).reshape(2, -1))
    second = net.split(x, 2)[1]
    assert net.shape(second) == (4, 5, 3)
    np.testing.assert_array_equal(net.flatten(second), images[..., 3:].reshape(2, -1))
    assert net.reshape(x, (4, 5, 6)) is x


def test_variables_change_shape_without_a_batch():
    table = normal(6, 4)
    net = network({"A": table})
    a = net.variable("A", (6, 4), Initializer.constant(0.0))
    turned = net.transpose(net.reshape(a, (2, 3, 4)), (2, 0, 1))
    assert net.shape(turned) == (4, 2, 3)
    np.testing.assert_array_equal(turned, table.reshape(2, 3, 4).transpose(2, 0, 1))
    np.testing.assert_array_equal(net.split(turned, 3)[2], turned[..., 2:])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_an_embedding_looks_rows_up_and_has_a_sparse_gradient(layout):
    table = tf.constant(normal(9, 4))
    ids = tf.constant([[3, 3, 8], [0, 3, 1]])
    with tf.GradientTape() as tape:
        tape.watch(table)
        net = network({"embedding0/table": table}, layout)
        y = net.embedding(ids, 9, 4)
    np.testing.assert_array_equal(y, table.numpy()[ids.numpy()])
    gradient = tape.gradient(y, table)
    assert isinstance(gradient, tf.IndexedSlices)
    counts = [1, 1, 0, 3, 0, 0, 0, 0, 1]
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient)[:, 0], counts)


def test_an_embedding_of_fractions_is_refused():
    with pytest.raises(UsageError, match="embedding takes integers, not float32"):
        network({"embedding0/table": tf.zeros([9, 4])}).embedding(tf.zeros([1, 3]), 9, 4)
