"""A network that makes operations of variables with given values, for tests of single layers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cnnbench.models import BatchNorm
from cnnbench.models.graph import GraphNetwork


def network(values, data_format="NHWC", dtype=tf.float32):
    """A network in training, which reads its variables from ``values`` by name."""
    return GraphNetwork(
        4,
        lambda spec, wanted: tf.cast(values[spec.name], wanted),
        training=True,
        batch_norm=BatchNorm(),
        data_format=data_format,
        compute_dtype=dtype,
        seed=0,
        on_cpu=True,
    )


def normal(*shape, seed=0):
    """Standard normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
