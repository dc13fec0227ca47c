"""Attention and recurrent layers in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.models.sequence import Cell


def attend(query: Any, key: Any, value: Any, heads: int, bias: Any | None) -> Any:
    """The heads' weighted means of the values, side by side: ``[b, ..., n, c]``.

    Args:
      query: ``[b, ..., n, c]``; key and value are ``[b, ..., m, c]``.
      bias: added to the scores ``[b, ..., heads, n, m]``, or None.
    """
    *groups, tokens, channels = query.shape[1:]
    width = channels // heads
    scaled = _by_head(query * width**-0.5, heads)
    scores = tf.linalg.matmul(scaled, _by_head(key, heads), transpose_b=True)
    if bias is not None:
        grouped = tf.reshape(scores, [-1, *groups, *scores.shape[1:]])
        scores = tf.reshape(grouped + bias, [-1, *scores.shape[1:]])
    # The sum of many 16-bit exponentials would have two digits.
    precise = tf.cast(scores, tf.float32) if scores.dtype.size == 2 else scores
    shares = tf.cast(tf.nn.softmax(precise), query.dtype)
    mixed = tf.linalg.matmul(shares, _by_head(value, heads))
    return tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, *groups, tokens, channels])


def _by_head(x: Any, heads: int) -> Any:
    """``[b, ..., n, c]`` to ``[b * ..., heads, n, c / heads]``."""
    tokens, channels = x.shape[-2:]
    return tf.transpose(tf.reshape(x, [-1, tokens, heads, channels // heads]), [0, 2, 1, 3])


States = tuple[Any, ...]  # output of the cell, then its internal state
Step = Callable[[Any, States, Any], States]

FORGET_BIAS = 1.0  # without it an LSTM learns long spans late


def recurrence(x: Any, cell: Cell, weights: Sequence[Any], reverse: bool) -> Any:
    """Runs a cell along a sequence ``[n, tokens, c]``, from a state of zeros; tokens is static.

    Args:
      cell: see `Network.recurrent`.
      weights: kernel ``[c, gates * units]``, recurrent kernel ``[units, gates * units]``,
        bias, and for ``gru`` the recurrent bias. The gates are update, reset, candidate
        (gru) or input, forget, candidate, output (lstm).
      reverse: whether the last token comes first.

    Returns:
      ``[n, tokens, units]``, each state in its token's place.
    """
    kernel, recurrent, bias, *recurrent_bias = weights
    tokens, units = x.shape[1], recurrent.shape[0]
    by_token = tf.transpose(x, [1, 0, 2])
    products = tf.linalg.matmul(tf.reshape(by_token, [-1, x.shape[2]]), kernel) + bias
    batch = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
    # A TensorArray, since the gradient of each slice of a tensor is as large as the tensor.
    inputs = tf.TensorArray(x.dtype, tokens, element_shape=[x.shape[0], kernel.shape[1]])
    inputs = inputs.unstack(tf.reshape(products, [tokens, batch, kernel.shape[1]]))
    outputs = tf.TensorArray(x.dtype, tokens, element_shape=[x.shape[0], units])
    zeros = tf.zeros([batch, units], x.dtype)
    states = (zeros, zeros) if cell == "lstm" else (zeros,)
    step = _STEPS[cell]

    def body(index: Any, states: States, outputs: Any) -> tuple[Any, States, Any]:
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
        maximum_iterations=tokens,  # needed by XLA
    )
    return tf.transpose(outputs.stack(), [1, 0, 2])


def _gru(given: Any, states: States, product: Any) -> States:
    update, reset, candidate = tf.split(given, 3, axis=1)
    to_update, to_reset, to_candidate = tf.split(product, 3, axis=1)
    update = tf.sigmoid(update + to_update)
    candidate = tf.tanh(candidate + tf.sigmoid(reset + to_reset) * to_candidate)
    return (update * states[0] + (1.0 - update) * candidate,)


def _lstm(given: Any, states: States, product: Any) -> States:
    take, forget, candidate, put = tf.split(given + product, 4, axis=1)
    memory = tf.sigmoid(forget + FORGET_BIAS) * states[1] + tf.sigmoid(take) * tf.tanh(candidate)
    return tf.sigmoid(put) * tf.tanh(memory), memory


def _rnn(given: Any, states: States, product: Any) -> States:
    return (tf.tanh(given + product),)


_STEPS: dict[Cell, Step] = {"gru": _gru, "lstm": _lstm, "rnn": _rnn}
