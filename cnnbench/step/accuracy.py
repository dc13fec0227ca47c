"""Which predictions count as right."""

from __future__ import annotations

import tensorflow as tf

TOP = 5


def top_hits(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether the label is the largest logit, and whether it is among the largest five.

    Args:
      logits: float32 [n, classes].
      labels: integers [n].

    Returns:
      Two float32 tensors [n] of zeros and ones. With fewer than five classes, the second
      is all ones but for logits that are not finite.
    """
    among = min(TOP, int(logits.shape[1]))
    return (
        tf.cast(tf.math.in_top_k(labels, logits, 1), tf.float32),
        tf.cast(tf.math.in_top_k(labels, logits, among), tf.float32),
    )
