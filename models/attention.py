"""Scaled dot-product attention of several heads."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def attend(query: Any, key: Any, value: Any, heads: int, bias: Any | None) -> Any:
    """The heads' weighted means of the values, side by side.

    Args:
      query: ``[b, ..., n, c]``.
      key: ``[b, ..., m, c]``.
      value: ``[b, ..., m, c]``.
      heads: parts of the channels.
      bias: added to the scores ``[b, ..., heads, n, m]``, or None.

    Returns:
      ``[b, ..., n, c]``.
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
