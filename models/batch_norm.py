"""Batch norm by given moments, such as those of the batches of all towers."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from cnnbench.arrays import Tensor

Synchronise = Callable[[str, Tensor, Tensor], tuple[Tensor, Tensor, int]]
"""Function that converts moments of one tower's batch to moments of the batches of all towers.

It maps (layer name, mean, biased variance) to (mean, biased variance, number of towers). The
moments are float32 ``[channels]``. Gradients flow back through the function.
"""


def synchronised_batch_norm(
    x: Tensor,
    scale: Tensor | None,
    offset: Tensor,
    *,
    name: str,
    epsilon: float,
    channels_at: int,
    synchronise: Synchronise,
    unbiased: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalises the batch of one tower with mean and variance over the batches of all towers.

    All values are computed in float32.

    Args:
      x: values of any floating-point dtype, with the same shape in all towers.
      scale, offset: float32 [channels]; None for a scale of 1.
      channels_at: axis of the channels; may be negative.
      unbiased: whether the returned variance is divided by count - 1 instead of the count.

    Returns:
      The result in the dtype of `x`; and the mean and the variance of all batches.
    """
    precise = tf.cast(x, tf.float32)
    rank = len(x.shape)
    axes = [axis for axis in range(rank) if axis != channels_at % rank]
    mean, variance, towers = synchronise(name, *tf.nn.moments(precise, axes))
    y = normalise_channels(precise, mean, variance, scale, offset, epsilon, channels_at)
    count = tf.cast(towers * tf.size(x) // offset.shape[0], tf.float32)
    factor = count / tf.maximum(count - 1.0, 1.0) if unbiased else 1.0
    return tf.cast(y, x.dtype), mean, variance * factor


def normalise_channels(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    scale: Tensor | None,
    offset: Tensor,
    epsilon: float,
    channels_at: int,
) -> Tensor:
    """Normalises float32 values with the given mean and variance of each channel.

    The channels can be on any axis.

    Args:
      mean, variance, scale, offset: float32 [channels]; None for a scale of 1.
    """
    shape = [1] * len(x.shape)
    shape[channels_at] = -1
    mean, variance, offset = (tf.reshape(v, shape) for v in (mean, variance, offset))
    scale = None if scale is None else tf.reshape(scale, shape)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon)
