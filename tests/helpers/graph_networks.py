"""A network that makes operations of variables with given values, for tests of single layers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cnnbench.models import BatchNorm
from cnnbench.models.graph import GraphNetwork


def network(values, data_format="NHWC", dtype=tf.float32, **options):
    """A network, in training by default, which reads its variables from ``values`` by name."""
    given = {"training": True, "batch_norm": BatchNorm(), "seed": 0, "on_cpu": True, **options}
    return GraphNetwork(
        4,
        lambda spec, wanted: tf.cast(values[spec.name], wanted),
        data_format=data_format,
        compute_dtype=dtype,
        **given,
    )


def normal(*shape, seed=0):
    """Standard normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
