"""CIFAR-10: the whole subset in host memory, batches made by gathering rows."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cnnbench.data import cifar10_files
from cnnbench.data.pipeline import Pipeline, shuffled_indices, with_threads
from cnnbench.data.position import uniform_int
from cnnbench.data.spec import InputSpec
from cnnbench.errors import FlagError

_PAD = 4


class Cifar10Pipeline(Pipeline):
    """Shuffles the whole subset every epoch; batches are assembled at once, not per image.

    Raises:
      FlagError: no files, or an image size other than 32.
      DataError: a file that cannot be used.
    """

    def __init__(self, spec: InputSpec) -> None:
        if spec.image_size != cifar10_files.SIZE or spec.channels != cifar10_files.CHANNELS:
            raise FlagError(
                "data_dir",
                spec.data_dir,
                f"CIFAR-10 images are 32x32x3, but the model takes "
                f"{spec.image_size}x{spec.image_size}x{spec.channels}",
            )
        assert spec.data_dir is not None
        parts = cifar10_files.read_subset(spec.data_dir, spec.subset, spec.num_classes)
        super().__init__(spec, sum(len(part.labels) for part in parts))
        with tf.device("CPU:0"):
            # Eager tensors captured by the pipeline are its arguments, not part of its graph.
            self._images = tf.constant(np.concatenate([part.images for part in parts]))
            labels = np.concatenate([part.labels for part in parts])
            self._labels = tf.constant(labels, tf.int64)

    def tower_batches(self) -> tf.data.Dataset:
        """See `Pipeline.tower_batches`."""
        spec = self.spec
        indices = self._indices().enumerate()
        batches = indices.batch(spec.batch_per_device, drop_remainder=spec.training).map(
            tf.autograph.experimental.do_not_convert(self._load),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        ahead = spec.num_devices * max(1, spec.multi_device_iterator_max_buffer_size)
        return with_threads(batches.prefetch(ahead), spec.datasets_num_private_threads)

    def _indices(self) -> tf.data.Dataset:
        spec = self.spec
        if spec.datasets_repeat_cached_sample:
            one = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64))
            return one.repeat(None if spec.training else self.num_examples)
        if spec.training:
            return shuffled_indices(self.num_examples, spec.seed, spec.num_shards, spec.shard_index)
        return tf.data.Dataset.range(self.num_examples).shard(spec.num_shards, spec.shard_index)

    def _load(self, positions: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        spec = self.spec
        images = tf.gather(self._images, indices)
        if spec.training and spec.distortions:
            images = pad_crop_flip(images, positions, spec.seed)
        images = tf.cast(images, tf.float32) / 127.5 - 1.0
        return tf.cast(images, spec.dtype), tf.gather(self._labels, indices)


def pad_crop_flip(images: tf.Tensor, positions: tf.Tensor, seed: int) -> tf.Tensor:
    """Each image padded by 4 zeros, cropped at random to its old size, mirrored half the time.

    Args:
      images: [n, size, size, channels].
      positions: int64 [n], places in the stream of examples; they decide what is random.
      seed: of the run.

    Returns:
      Images of the same shape and dtype.
    """
    size = images.shape[1]
    padded = tf.pad(images, [[0, 0], [_PAD, _PAD], [_PAD, _PAD], [0, 0]])
    top = uniform_int(positions, seed, "crop top", 2 * _PAD + 1)
    left = uniform_int(positions, seed, "crop left", 2 * _PAD + 1)
    mirrored = uniform_int(positions, seed, "mirror", 2) == 1
    ramp = tf.range(size, dtype=tf.int64)
    rows = top[:, None] + ramp
    columns = left[:, None] + tf.where(mirrored[:, None], ramp[::-1], ramp)
    cropped = tf.gather(padded, rows, axis=1, batch_dims=1)
    return tf.gather(cropped, columns, axis=2, batch_dims=1)
