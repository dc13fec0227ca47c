"""Attention and recurrent layers as TensorFlow operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from cnnbench.arrays import Tensor
from cnnbench.models.sequence_layers import Cell


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | None
) -> Tensor:
    """Computes scaled dot-product attention with several heads: values ``[b, ..., n, c]``.

    Args:
      query: ``[b, ..., n, c]``. Key and value are ``[b, ..., m, c]``.
      bias: added to the scores ``[b, ..., heads, n, m]``, or None.
    """
    *groups, tokens, channels = query.shape[1:]
    width = channels // heads
    scaled = _split_heads(query * width**-0.5, heads)
    scores = tf.linalg.matmul(scaled, _split_heads(key, heads), transpose_b=True)
    if bias is not None:
        grouped = tf.reshape(scores, [-1, *groups, *scores.shape[1:]])
        scores = tf.reshape(grouped + bias, [-1, *scores.shape[1:]])
    # Softmax is computed in float32: a sum of many 16-bit exponentials has only two correct digits.
    precise = tf.cast(scores, tf.float32) if scores.dtype.size == 2 else scores
    shares = tf.cast(tf.nn.softmax(precise), query.dtype)
    mixed = tf.linalg.matmul(shares, _split_heads(value, heads))
    return tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, *groups, tokens, channels])


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Splits channels into heads, from ``[b, ..., n, c]`` to ``[b * ..., heads, n, c / heads]``."""
    tokens, channels = x.shape[-2:]
    return tf.transpose(tf.reshape(x, [-1, tokens, heads, channels // heads]), [0, 2, 1, 3])


States = tuple[Tensor, ...]  # Output of a recurrent cell, followed by its internal state.
Step = Callable[[Tensor, States, Tensor], States]

FORGET_BIAS = 1.0  # Without a forget bias, an LSTM learns long-range dependencies more slowly.


def run_recurrent_cell(x: Tensor, cell: Cell, weights: Sequence[Tensor], reverse: bool) -> Tensor:
    """Runs a recurrent cell on sequences ``[n, tokens, c]``, starting with zero state.

    Args:
      cell: see `Network.recurrent`.
      weights: kernel ``[c, gates * units]``, recurrent kernel ``[units, gates * units]``, bias, and
        for ``gru`` also the recurrent bias. The order of the gates is update, reset, candidate
        (gru), or input, forget, candidate, output (lstm).
      reverse: whether to start with the last token.

    Returns:
      ``[n, tokens, units]``: the state after each token, at the position of the token.
    """
    kernel, recurrent, bias, *recurrent_bias = weights
    tokens, units = x.shape[1], recurrent.shape[0]
    by_token = tf.transpose(x, [1, 0, 2])
    products = tf.linalg.matmul(tf.reshape(by_token, [-1, x.shape[2]]), kernel) + bias
    batch = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
    # A TensorArray saves memory: the gradient of a tensor slice is as large as the whole tensor.
    inputs = tf.TensorArray(x.dtype, tokens, element_shape=[x.shape[0], kernel.shape[1]])
    inputs = inputs.unstack(tf.reshape(products, [tokens, batch, kernel.shape[1]]))
    outputs = tf.TensorArray(x.dtype, tokens, element_shape=[x.shape[0], units])
    zeros = tf.zeros([batch, units], x.dtype)
    states = (zeros, zeros) if cell == "lstm" else (zeros,)
    step = _STEPS[cell]

    def body(
        index: Tensor, states: States, outputs: tf.TensorArray
    ) -> tuple[Tensor, States, tf.TensorArray]:
        at = tokens - 1 - index if reverse else index
        product = tf.linalg.matmul(states[0], recurrent)
        if recurrent_bias:
            product += recurrent_bias[0]
        states = step(inputs.read(at), states, product)
        return index + 1, states, outputs.write(at, states[0])

    _, _, outputs = tf.while_loop(
        lambda index, *_: index < tokens,
        body,
        (tf.constant(0), states, outputs),
        maximum_iterations=tokens,  # XLA needs to know the maximum number of iterations.
    )
    return tf.transpose(outputs.stack(), [1, 0, 2])


def _gru_step(projected: Tensor, states: States, product: Tensor) -> States:
    update, reset, candidate = tf.split(projected, 3, axis=1)
    to_update, to_reset, to_candidate = tf.split(product, 3, axis=1)
    update = tf.sigmoid(update + to_update)
    candidate = tf.tanh(candidate + tf.sigmoid(reset + to_reset) * to_candidate)
    return (update * states[0] + (1.0 - update) * candidate,)


def _lstm_step(projected: Tensor, states: States, product: Tensor) -> States:
    take, forget, candidate, put = tf.split(projected + product, 4, axis=1)
    memory = tf.sigmoid(forget + FORGET_BIAS) * states[1] + tf.sigmoid(take) * tf.tanh(candidate)
    return tf.sigmoid(put) * tf.tanh(memory), memory


def _rnn_step(projected: Tensor, states: States, product: Tensor) -> States:
    return (tf.tanh(projected + product),)


_STEPS: dict[Cell, Step] = {"gru": _gru_step, "lstm": _lstm_step, "rnn": _rnn_step}
