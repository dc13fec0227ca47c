"""Initial values that depend on nothing but the seed and the variable's name."""

from __future__ import annotations

import zlib

import tensorflow as tf

from cnnbench.variable_mgr.spec import VariableLike


def initial_value(variable: VariableLike, seed: int, tower: int = 0) -> tf.Tensor:
    """The value a variable starts with, a float32 tensor of the variable's shape.

    Every mode and number of towers gets the same value, whatever else is created
    before; only the tower distinguishes copies that shall differ.

    Args:
      variable: the declaration.
      seed: of the run.
      tower: 0 for variables that start equal on all towers.
    """
    initializer = variable.initializer
    if initializer.kind == "constant":
        return tf.fill(variable.shape, tf.constant(initializer.value, tf.float32))
    key = variable.name if tower == 0 else f"{variable.name}@{tower}"
    return tf.random.stateless_truncated_normal(
        variable.shape,
        seed=tf.constant([seed, zlib.crc32(key.encode())], tf.int64),
        stddev=initializer.draw_stddev(variable.shape),
        # Named, because the default differs between kinds of device.
        alg="philox",
    )
