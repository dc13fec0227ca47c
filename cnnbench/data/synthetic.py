"""Synthetic data that lives on the devices and costs a step nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.data.source import InputSource, TowerBatch
from cnnbench.data.spec import InputSpec

_IMAGE_STREAM, _LABEL_STREAM = 0, 1


class SyntheticInput(InputSource):
    """Images and labels drawn once under the seed and kept in device variables.

    The images look like normalised photographs: a truncated normal in [-1, 1] with standard
    deviation near one half. The labels are fixed, so that the loss can fall and stays finite.
    Row i of the global batch depends on the seed and on i only: any number of towers sees the
    same global batch, tower t its rows [t*b, (t+1)*b).
    """

    synthetic = True

    def __init__(self, spec: InputSpec, devices: Sequence[str]) -> None:
        super().__init__(spec, devices, spec.dataset.num_examples(spec.subset))
        self._towers = [self._variables(tower) for tower in range(spec.num_devices)]

    def _variables(self, tower: int) -> tuple[tf.Variable, tf.Variable]:
        spec = self.spec
        first = tower * spec.batch_per_device
        # On the host, so that every kind of device starts from the same bits.
        with tf.device("CPU:0"):
            images, labels = synthetic_rows(
                tf.range(first, first + spec.batch_per_device),
                spec.seed,
                spec.image_size,
                spec.channels,
                spec.num_classes,
            )
            images = tf.cast(images, spec.dtype)
        with tf.device(self.devices[tower]):
            return (
                tf.Variable(images, trainable=False, name=f"synthetic_images_{tower}"),
                tf.Variable(labels, trainable=False, name=f"synthetic_labels_{tower}"),
            )

    @property
    def signature(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.signature`: the step takes nothing."""
        return ()

    def of_tower(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """See `InputSource.of_tower`: reads the tower's variables."""
        images, labels = self._towers[tower]
        return TowerBatch(images.read_value(), labels.read_value())

    def next(self) -> tuple[TowerBatch, ...]:
        """Nothing: the step reads variables."""
        return ()


@tf.function
def synthetic_rows(
    rows: tf.Tensor, seed: int, image_size: int, channels: int, num_classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows of the synthetic global batch.

    Args:
      rows: int32 [n], indices into the global batch.
      seed: of the run.
      image_size: height and width.
      channels: colour channels.
      num_classes: labels are uniform in [0, num_classes).

    Returns:
      images float32 [n, image_size, image_size, channels] and labels int64 [n].
    """

    def one(row: tf.Tensor) -> tuple[Any, Any]:
        shape = [image_size, image_size, channels]
        # A row has two streams; the seed pair must be unique for (row, stream).
        image_seed = tf.stack([seed, 2 * row + _IMAGE_STREAM])
        label_seed = tf.stack([seed, 2 * row + _LABEL_STREAM])
        image = tf.random.stateless_truncated_normal(shape, image_seed, stddev=0.5)
        label = tf.random.stateless_uniform([], label_seed, 0, num_classes, tf.int32)
        label = tf.cast(label, tf.int64)
        return image, label

    signature = (
        tf.TensorSpec([image_size, image_size, channels], tf.float32),
        tf.TensorSpec([], tf.int64),
    )
    images, labels = tf.map_fn(one, rows, fn_output_signature=signature, parallel_iterations=16)
    return images, labels
