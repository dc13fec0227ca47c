"""Batch moments, and batch normalisation by the moments of the batches of all towers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.models.spec import BatchNormLayer

Tensor = Any  # tf.Tensor; TensorFlow ships no types
# (name of the layer, mean, biased variance) of one batch to those of all towers' batches, and the
# number of towers. Moments are float32 [channels]; the gradient goes the same way back.
Synchronise = Callable[[str, Tensor, Tensor], tuple[Tensor, Tensor, int]]


class Moments(NamedTuple):
    """Batch moments of a batch-norm layer, float32 ``[channels]``, the variance unbiased.

    The train step updates the averages: new = decay * old + (1 - decay) * batch.
    """

    layer: BatchNormLayer
    batch_mean: Tensor
    batch_variance: Tensor


def synchronised_batch_norm(
    x: Tensor,
    scale: Tensor | None,
    offset: Tensor,
    *,
    name: str,
    epsilon: float,
    channels_at: int,
    synchronise: Synchronise,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises a tower's batch by the moments of all towers; computes in float32.

    Args:
      x: values of any float dtype, with the same shape in all towers.
      scale, offset: float32 [channels]; None for a scale of 1.
      channels_at: axis of the channels; may be negative.

    Returns:
      The result in the dtype of `x`, and mean and unbiased variance (divided by the count less
      one) over all batches.
    """
    whole = tf.cast(x, tf.float32)
    rank = len(x.shape)
    axes = [axis for axis in range(rank) if axis != channels_at % rank]
    mean, variance, towers = synchronise(name, *tf.nn.moments(whole, axes))
    y = normalised(whole, mean, variance, scale, offset, epsilon, channels_at)
    count = tf.cast(towers * tf.size(x) // offset.shape[0], tf.float32)
    return tf.cast(y, x.dtype), mean, variance * (count / tf.maximum(count - 1.0, 1.0))


def normalised(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    scale: Tensor | None,
    offset: Tensor,
    epsilon: float,
    channels_at: int,
) -> Tensor:
    """Batch norm of float32 values by given moments, for channels on any axis.

    Args:
      mean, variance, scale, offset: float32 [channels]; None for a scale of 1.
    """
    shape = [1] * len(x.shape)
    shape[channels_at] = -1
    mean, variance, offset = (tf.reshape(v, shape) for v in (mean, variance, offset))
    scale = None if scale is None else tf.reshape(scale, shape)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon)
