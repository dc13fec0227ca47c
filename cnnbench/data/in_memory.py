"""Pipelines of CIFAR-10 and of MovieLens ratings: all examples are arrays in host memory."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from cnnbench.data import cifar10_files, ratings_files
from cnnbench.data.augment import augment_batch
from cnnbench.data.dataset import InputSpec
from cnnbench.data.pipeline import ArrayPipeline, draw_uniform_int
from cnnbench.data.ratings_files import ITEMS, NEGATIVES_PER_POSITIVE
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
        """See `ArrayPipeline.prepare`. `rows` are the images, uint8 [n, 32, 32, 3], and the labels,
        int64 [n].
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


# Maximum number of draws to find an item that the user has not rated. For a user who has rated a
# third of all items, all draws fail once in 7000 times.
_TRIES = 8


class RatingsPipeline(ArrayPipeline):
    """Pipeline of pairs of a user and an item, labelled 1 if the user rated the item and 0
    otherwise.

    In training, the examples are all ratings, and four unrated items for each rating, which are
    drawn again in every epoch. In evaluation, the examples are, for each user, the held-out item
    followed by its candidates.
    """

    def __init__(self, spec: InputSpec) -> None:
        assert spec.data_dir is not None
        (path,) = ratings_files.find_files(spec.data_dir, spec.subset)
        arrays = ratings_files.load_ratings(path)
        users, items = arrays["users"], arrays["items"]
        if not spec.training:
            candidates = np.concatenate([items[:, None], arrays["negatives"]], axis=1)
            labels = np.zeros_like(candidates)
            labels[:, 0] = 1
            every = np.repeat(users, candidates.shape[1])
            super().__init__(spec, every, candidates.reshape(-1), labels.reshape(-1))
            return
        super().__init__(spec, users, items)
        self.num_examples = len(users) * (1 + NEGATIVES_PER_POSITIVE)
        with tf.device(spec.host):
            self._rated = tf.constant(np.sort(ratings_files.pair_keys(users, items)))
            self._num_items = tf.constant(int(items.max()) + 1, tf.int64)

    def rows(self, positions: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """See `ArrayPipeline.rows`. Returns user, item and label (1 if rated), int64 [batch]."""
        if not self.spec.training:
            return super().rows(positions, indices)
        users, items = super().rows(positions, indices // (1 + NEGATIVES_PER_POSITIVE))
        rated = indices % (1 + NEGATIVES_PER_POSITIVE) == 0
        items = tf.where(rated, items, self._draw_unrated(users, positions))
        return users, items, tf.cast(rated, tf.int64)

    def _draw_unrated(self, users: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Draws several items for each user, and returns the first that is not rated."""
        tries = positions[:, None] * _TRIES + tf.range(_TRIES, dtype=tf.int64)
        drawn = draw_uniform_int(tries, self.spec.seed, "negative item", self._num_items)
        pairs = tf.reshape(users[:, None] * ITEMS + drawn, [-1])
        last = tf.size(self._rated, tf.int64) - 1
        at = tf.minimum(tf.searchsorted(self._rated, pairs, out_type=tf.int64), last)
        free = tf.reshape(tf.gather(self._rated, at) != pairs, tf.shape(drawn))
        return tf.gather(drawn, tf.argmax(free, axis=1), batch_dims=1)
