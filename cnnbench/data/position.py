"""Random choices that depend on an example's place in the stream and on nothing else.

However many threads, towers or batches the stream is cut into, example number p of a run
gets the same crop and colours.
"""

from __future__ import annotations

import zlib
from typing import Any

import tensorflow as tf


def uniform_int(positions: tf.Tensor, seed: int, purpose: str, below: Any) -> tf.Tensor:
    """Integers in [0, below), one per position.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014) on the position; the bias of the
    modulus is below / 2**64.

    Args:
      positions: int64, any shape.
      seed: of the run.
      purpose: names the choice; different purposes are independent.
      below: exclusive upper bound, an int or an integer tensor.

    Returns:
      int64 of the shape of ``positions``.
    """
    start = (seed * 0x9E3779B97F4A7C15 + zlib.crc32(purpose.encode())) % 2**64
    x = tf.cast(positions, tf.uint64) * _u64(0x9E3779B97F4A7C15) + _u64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u64(shift))) * _u64(factor)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u64(31)))
    return tf.cast(x % tf.cast(below, tf.uint64), tf.int64)


def seed_pair(position: tf.Tensor, seed: int, purpose: str) -> tf.Tensor:
    """A seed for TensorFlow's stateless random ops; int64 [2].

    Args:
      position: int64 scalar.
      seed: of the run.
      purpose: names the choice; different purposes are independent.
    """
    mixed = (seed << 32) ^ zlib.crc32(purpose.encode())
    mixed = (mixed + 2**63) % 2**64 - 2**63
    return tf.stack([tf.constant(mixed, tf.int64), position])


def _u64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)
