"""Random numbers determined by an example's position in the stream.

The stream is that of the whole run: the global batches of all steps, one after the other, rows in
the order of the towers of all shards. Crop and colours at a position are therefore the same for any
number of threads, towers and processes, and no position occurs twice, neither in two processes nor
after resuming.
"""

from __future__ import annotations

import zlib
from typing import Any

import tensorflow as tf

from cnnbench.data.spec import InputSpec


def positions_of(turns: Any, spec: InputSpec) -> Any:
    """Positions of the examples that a shard delivers, by their numbers in the order of delivery.

    The turns are an int or int64 of any shape. While training a shard delivers consecutive rows of
    every global batch; in an exact pass shards take examples in turn.
    """
    if spec.num_shards == 1:
        return turns
    if not spec.training:
        return turns * spec.num_shards + spec.shard_index
    share = spec.global_batch
    return turns + share * (turns // share * (spec.num_shards - 1) + spec.shard_index)


def turns_before(position: tf.Tensor, spec: InputSpec) -> tf.Tensor:
    """Number of a shard's training examples before ``position`` (int64 scalar)."""
    share = spec.global_batch
    together = share * spec.num_shards
    row = position % together - spec.shard_index * share
    return position // together * share + tf.clip_by_value(row, 0, share)


def uniform_int(positions: tf.Tensor, seed: int, purpose: str, below: Any) -> tf.Tensor:
    """Integers in [0, below), one per position (int64 of any shape); purposes are independent.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014) on the position; the bias of the
    modulus is below / 2**64.
    """
    start = (seed * 0x9E3779B97F4A7C15 + zlib.crc32(purpose.encode())) % 2**64
    x = tf.cast(positions, tf.uint64) * _u64(0x9E3779B97F4A7C15) + _u64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u64(shift))) * _u64(factor)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u64(31)))
    return tf.cast(x % tf.cast(below, tf.uint64), tf.int64)


def seed_pair(position: tf.Tensor, seed: int, purpose: str) -> tf.Tensor:
    """A seed, int64 [2], for TensorFlow's stateless random ops; purposes are independent."""
    mixed = (seed << 32) ^ zlib.crc32(purpose.encode())
    mixed = (mixed + 2**63) % 2**64 - 2**63
    return tf.stack([tf.constant(mixed, tf.int64), position])


def _u64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)
