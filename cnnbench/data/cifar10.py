"""CIFAR-10: stores the whole subset in host memory and gathers its images to batches."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cnnbench.data import cifar10_files
from cnnbench.data.augment import augment_batch
from cnnbench.data.dataset import InputSpec
from cnnbench.data.pipeline import ArrayPipeline, draw_uniform_int
from cnnbench.errors import FlagError

_PAD = 4


class Cifar10Pipeline(ArrayPipeline):
    """Pipeline of the images and labels of CIFAR-10. Images are resized from 32 x 32 to
    `spec.image_size` (bilinear).
    """

    def __init__(self, spec: InputSpec) -> None:
        if spec.channels != cifar10_files.CHANNELS:
            reason = f"CIFAR-10 images have 3 channels, but the model takes {spec.channels}"
            raise FlagError("data_dir", spec.data_dir, reason)
        assert spec.data_dir is not None
        files = cifar10_files.find_files(spec.data_dir, spec.subset)
        parts = (cifar10_files.read_cifar10_file(path, spec.num_classes) for path in files)
        images, labels = map(np.concatenate, zip(*parts, strict=True))
        super().__init__(spec, images, labels.astype(np.int64))

    def prepare(self, positions: tf.Tensor, *rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """See `ArrayPipeline.prepare`. The rows are images, uint8 [n, 32, 32, 3], and labels, int64
        [n].
        """
        images, labels = rows
        spec = self.spec
        if spec.training and spec.distortions:
            images = pad_crop_flip(images, positions, spec.seed)
        if spec.training and spec.augment != "none":
            images = augment_batch(images, positions, spec)
        images = tf.cast(images, tf.float32) / 127.5 - 1.0
        if spec.image_size != cifar10_files.SIZE:
            images = tf.image.resize(images, [spec.image_size, spec.image_size])
        return images, labels


def pad_crop_flip(images: tf.Tensor, positions: tf.Tensor, seed: int) -> tf.Tensor:
    """Pads images [n, size, size, c] with 4 zeros on each side, crops them at random, and mirrors
    half of them.
    """
    size = images.shape[1]
    padded = tf.pad(images, [[0, 0], [_PAD, _PAD], [_PAD, _PAD], [0, 0]])
    top = draw_uniform_int(positions, seed, "crop top", 2 * _PAD + 1)
    left = draw_uniform_int(positions, seed, "crop left", 2 * _PAD + 1)
    mirrored = draw_uniform_int(positions, seed, "mirror", 2) == 1
    ramp = tf.range(size, dtype=tf.int64)
    rows = top[:, None] + ramp
    columns = left[:, None] + tf.where(mirrored[:, None], ramp[::-1], ramp)
    cropped = tf.gather(padded, rows, axis=1, batch_dims=1)
    return tf.gather(cropped, columns, axis=2, batch_dims=1)
