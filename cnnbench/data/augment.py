"""Augmentation of training images: TrivialAugment, RandAugment, mixup and CutMix.

Every random choice depends on the seed and on the position of an image in the stream (see
`cnnbench.data.pipeline`). The images that are mixed with each other are neighbours in the stream:
rows 2k and 2k + 1 of a batch. A global batch therefore contains the same images for any number of
towers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.data.dataset import OTHER_LABEL, OWN_SHARE, InputSpec
from cnnbench.data.pipeline import Pipeline, draw_uniform_int, positions_of, stateless_seed
from cnnbench.models.elements import elements_of_role

# Mixing of images: mixup (Zhang et al., arXiv:1710.09412), CutMix (Yun et al., arXiv:1905.04899)


def mixed_batches(pipeline: Pipeline) -> tf.data.Dataset:
    """Returns the batches of a pipeline. With mixup or CutMix, each image is mixed with another
    image of its batch.

    Images are mixed on the host. The batches have the elements `InputSpec.delivered_elements`.
    """
    batches, spec = pipeline.tower_batches(), pipeline.spec
    if not spec.mixes_images:
        return batches
    count, first = spec.batch_per_device, pipeline.delivered

    def mix_batch(number: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        numbers_in_shard = first + number * count + tf.range(count, dtype=tf.int64)
        return mix_with_neighbours(batch, positions_of(numbers_in_shard, spec), spec)

    return batches.enumerate().map(
        tf.autograph.experimental.do_not_convert(mix_batch),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def mix_with_neighbours(
    batch: Mapping[str, tf.Tensor], positions: tf.Tensor, spec: InputSpec
) -> dict[str, tf.Tensor]:
    """Mixes each of n images in a batch with its neighbour. n must be even.

    Args:
      batch: the elements of the spec, images [n, height, width, channels] and classes [n].
      positions: int64 [n].

    Returns:
      The elements `InputSpec.delivered_elements`. Images are mixed in float32 and have the dtype of
      the batch.
    """
    (feature,), (label,) = (elements_of_role(spec.elements, role) for role in ("feature", "label"))
    images, classes = batch[feature.name], batch[label.name]
    height, width = feature.sizes[:2]
    own, shares = draw_mix_shares(positions, height, width, spec)
    neighbours = tf.bitwise.bitwise_xor(tf.range(positions.shape[0]), 1)
    exact = tf.cast(images, tf.float32)
    together = own * exact + (1.0 - own) * tf.gather(exact, neighbours)
    return {
        feature.name: tf.cast(together, images.dtype),
        label.name: classes,
        OTHER_LABEL: tf.gather(classes, neighbours),
        OWN_SHARE: shares,
    }


def draw_mix_shares(
    positions: tf.Tensor, height: int, width: int, spec: InputSpec
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws, for mixup and CutMix, how much of each image remains when it is mixed with another
    image.

    Returns:
      The share of each pixel, float32 [n, height, width, 1] or, without CutMix, [n, 1, 1, 1]; and
      the share of each image, float32 [n], which is the mean over its pixels.
    """
    if not spec.cutmix_alpha:
        drawn = draw_beta(positions, spec.seed, tf.fill(positions.shape, spec.mixup_alpha))
        return drawn[:, None, None, None], drawn
    cuts = tf.ones(positions.shape, tf.bool)
    if spec.mixup_alpha:
        cuts = draw_uniform_int(positions, spec.seed, "mixup or CutMix", 2) == 1
    drawn = draw_beta(positions, spec.seed, tf.where(cuts, spec.cutmix_alpha, spec.mixup_alpha))
    down = draw_uniform_int(positions, spec.seed, "CutMix row", height)
    across = draw_uniform_int(positions, spec.seed, "CutMix column", width)
    rows, columns = _cutmix_side_mask(down, drawn, height), _cutmix_side_mask(across, drawn, width)
    inside = rows[:, :, None, None] & columns[:, None, :, None]
    area = tf.math.count_nonzero(rows, 1) * tf.math.count_nonzero(columns, 1)
    left = 1.0 - tf.cast(area, tf.float32) / float(height * width)
    by_pixel = tf.where(inside, 0.0, 1.0)
    share = tf.where(cuts, left, drawn)
    return tf.where(cuts[:, None, None, None], by_pixel, drawn[:, None, None, None]), share


def _cutmix_side_mask(centres: tf.Tensor, kept_shares: tf.Tensor, size: int) -> tf.Tensor:
    """Returns, for each row (or column) of n images, whether it is inside the rectangle that CutMix
    replaces: bool [n, size].

    The rectangle has the aspect ratio of the image, and its area is the share 1 - `kept_shares` of
    the image's area. Height and width are rounded down to an even number of pixels, as in the
    authors' program. Then the rectangle is cut off at the border of the image.
    """
    half = tf.cast(float(size) * tf.sqrt(1.0 - kept_shares), tf.int64) // 2
    numbers = tf.range(size, dtype=tf.int64)
    return (numbers >= (centres - half)[:, None]) & (numbers < (centres + half)[:, None])


def draw_beta(positions: tf.Tensor, seed: int, alphas: tf.Tensor) -> tf.Tensor:
    """Draws a number from the distribution Beta(alpha, alpha) for each position (int64 [n]) and its
    alpha: float32 [n].

    If A and B are gamma variables of shape alpha, A / (A + B) has this distribution. A gamma
    variable of shape alpha is one of shape alpha + 1 times U^(1 / alpha), with U uniform in (0, 1].
    Logarithms are used, because for a small alpha A and B are often too small for a double.
    """

    def draw_one(position_and_alpha: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        position, alpha = position_and_alpha
        pair = stateless_seed(position, seed, "gamma")
        gamma = tf.random.stateless_gamma([2], pair, alpha + 1.0, dtype=tf.float64)
        pair = stateless_seed(position, seed, "power of gamma")
        uniform = 1.0 - tf.random.stateless_uniform([2], pair, dtype=tf.float64)
        first, second = tf.unstack(tf.math.log(gamma) + tf.math.log(uniform) / alpha)
        return tf.cast(tf.sigmoid(first - second), tf.float32)

    of_each = (positions, tf.cast(alphas, tf.float64))
    made = tf.TensorSpec([], tf.float32)
    return tf.map_fn(draw_one, of_each, fn_output_signature=made, parallel_iterations=16)


# Augmentation of single images: RandAugment (arXiv:1909.13719), TrivialAugment (arXiv:2103.10158)


class AugmentationSettings(NamedTuple):
    """Settings of an augmentation: how many operations change an image, and how strongly.

    Attributes:
      operations: number of operations per image.
      strength: strength of all operations, from 0 to 1; None to draw one of 31 strengths for each
        operation.
      shear: largest shift in pixels of a row by pixel of height, or of a column by pixel of width.
      translation: function from the height or width of the image, in pixels, to the largest shift
        in pixels.
      angle: largest angle of a rotation in degrees.
      factors: factors of colour, contrast, brightness and sharpness at strength 0 and at strength
        1. A factor of 1 does not change the image.
      bits: number of bits of a posterized value at strength 1.
    """

    operations: int
    strength: float | None
    shear: float
    translation: Callable[[int], float]
    angle: float
    factors: tuple[float, float]
    bits: int


AUGMENTATIONS = {
    # RandAugment makes 2 changes of strength 9 of 10. AutoAugment defines the ranges for images of
    # 331 pixels.
    "randaugment": AugmentationSettings(
        2, 0.9, 0.3, lambda side: side * 150.0 / 331.0, 30.0, (0.1, 1.9), 4
    ),
    # TrivialAugment uses the ranges that its paper calls "wide".
    "trivialaugment": AugmentationSettings(1, None, 0.99, lambda side: 32.0, 135.0, (0.01, 2.0), 2),
}
"""Augmentations by the values of --augment."""

# A strength is a whole number from 0 to this number; dividing by it gives a share from 0 to 1.
_STRONGEST = 30


def augment_image(image: tf.Tensor, position: tf.Tensor, spec: InputSpec) -> tf.Tensor:
    """Changes an image, uint8 [height, width, 3] with known sizes, by the augmentation that
    --augment names.

    `position`, an int64 scalar, determines the operations, their strengths and their directions.
    """
    settings = AUGMENTATIONS[spec.augment]
    draw = partial(draw_uniform_int, position, spec.seed)
    for number in range(settings.operations):
        if settings.strength is None:
            level = draw(f"strength {number}", _STRONGEST + 1)
            strength = tf.cast(level, tf.float64) / _STRONGEST
        else:
            strength = tf.constant(settings.strength, tf.float64)
        signed = tf.where(draw(f"direction {number}", 2) == 1, -strength, strength)
        chosen = tf.cast(draw(f"operation {number}", len(OPERATIONS)), tf.int32)
        given = image, Change(strength, signed, settings)
        branches = [partial(operation, *given) for operation in OPERATIONS.values()]
        image = tf.switch_case(chosen, branches)
    return image


def augment_batch(images: tf.Tensor, positions: tf.Tensor, spec: InputSpec) -> tf.Tensor:
    """Changes images, uint8 [n, height, width, 3], by the augmentation that --augment names.
    `positions`, int64 [n], determine the random choices; see `augment_image`.
    """

    def augment_one(image_and_position: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        image, position = image_and_position
        return augment_image(image, position, spec)

    made = tf.TensorSpec(images.shape[1:], tf.uint8)
    return tf.map_fn(augment_one, (images, positions), fn_output_signature=made)


# Operations of RandAugment and TrivialAugment. They round values as Pillow does.


class Change(NamedTuple):
    """How an operation changes an image.

    `strength` is from 0 to 1, and `signed` is the strength with a random sign.
    """

    strength: tf.Tensor
    signed: tf.Tensor
    settings: AugmentationSettings


def _rotate(image: Any, change: Change) -> tf.Tensor:
    angle = change.signed * (change.settings.angle * math.pi / 180.0)
    height, width, _ = image.shape
    cosine, sine = tf.cos(angle), tf.sin(angle)
    across, down = width / 2.0, height / 2.0
    first = (cosine, -sine, across - cosine * across + sine * down)
    return _resample_affine(image, first, (sine, cosine, down - sine * across - cosine * down))


_SAME_COLUMN, _SAME_ROW = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)
"""The column and the row of a pixel that stays where it is; see `_resample_affine`."""


def _shear_factor(change: Change) -> tf.Tensor:
    return change.signed * change.settings.shear


def _shift_pixels(change: Change, side: int) -> tf.Tensor:
    """Whole pixels by which an image with sides of so many pixels is moved."""
    shift = tf.cast(change.signed * change.settings.translation(side), tf.int32)
    return tf.cast(shift, tf.float64)


def _resample_affine(
    image: Any, column: tuple[Any, Any, Any], row: tuple[Any, Any, Any]
) -> tf.Tensor:
    """Applies an affine transformation to an image: the new pixel (x, y) is the old pixel nearest
    to (column, row), or black if that point is outside of the image.

    `column` and `row` contain the factors of x, y and 1. Coordinates refer to the centres of
    pixels, so the first pixel is at (0.5, 0.5).
    """
    flat = []
    for x, y, constant in (column, row):
        flat += [x, y, constant + 0.5 * (x + y) - 0.5]
    transform = tf.stack([tf.cast(value, tf.float32) for value in (*flat, 0.0, 0.0)])
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=transform[tf.newaxis],
        output_shape=image.shape[:2],
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(moved[0], image.shape)


def _auto_contrast(image: Any, change: Change) -> tf.Tensor:
    exact = tf.cast(image, tf.float64)
    low, high = tf.reduce_min(exact, (0, 1)), tf.reduce_max(exact, (0, 1))
    scale = tf.where(high > low, 255.0 / tf.maximum(high - low, 1.0), 1.0)
    return _clip_to_uint8(exact * scale - tf.where(high > low, low * scale, 0.0))


def _equalize(image: Any, change: Change) -> tf.Tensor:
    values = tf.transpose(tf.reshape(tf.cast(image, tf.int32), [-1, 3]))
    counts = tf.math.bincount(values, minlength=256, maxlength=256, axis=-1)
    last = tf.gather(counts, tf.reduce_max(values, 1)[:, None], axis=1, batch_dims=1)
    step = (tf.reduce_sum(counts, 1, keepdims=True) - last) // 255
    table = (step // 2 + tf.cumsum(counts, axis=1, exclusive=True)) // tf.maximum(step, 1)
    table = tf.where(step > 0, tf.minimum(table, 255), tf.range(256))
    found = tf.gather(table, values, axis=1, batch_dims=1)
    return tf.cast(tf.reshape(tf.transpose(found), image.shape), tf.uint8)


def _solarize(image: Any, change: Change) -> tf.Tensor:
    threshold = 256 - tf.cast(256.0 * change.strength, tf.int32)
    return tf.where(tf.cast(image, tf.int32) < threshold, image, 255 - image)


def _posterize(image: Any, change: Change) -> tf.Tensor:
    lost = tf.cast(tf.cast((8 - change.settings.bits) * change.strength, tf.int32), tf.uint8)
    return tf.bitwise.left_shift(tf.bitwise.right_shift(image, lost), lost)


def _change_contrast(image: Any, change: Change) -> tf.Tensor:
    mean = tf.floor(tf.reduce_mean(tf.cast(_compute_luma(image), tf.float64)) + 0.5)
    return _enhance(mean, image, change)


def _change_sharpness(image: Any, change: Change) -> tf.Tensor:
    if min(image.shape[:2]) < 3:
        return image
    kernel = tf.constant([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]])[:, :, None, None]
    exact = tf.cast(image, tf.float32)
    sums = tf.nn.depthwise_conv2d(
        exact[tf.newaxis], tf.tile(kernel, [1, 1, 3, 1]), [1, 1, 1, 1], "VALID"
    )[0]
    inner = [[1, 1], [1, 1], [0, 0]]
    smooth = tf.pad(tf.floor(sums / 13.0 + 0.5), inner)
    # The smoothing filter needs all neighbours of a pixel, so the pixels at the border remain
    # unchanged.
    inside = tf.pad(tf.ones_like(sums, tf.bool), inner)
    return _enhance(tf.where(inside, smooth, exact), image, change)


def _enhance(without: Any, image: Any, change: Change) -> tf.Tensor:
    """Strengthens or weakens a property of an image, such as its colour.

    `without` is the image without this property, in a shape that broadcasts to the image.
    """
    low, high = change.settings.factors
    factor = tf.cast(low + (high - low) * change.strength, tf.float32)
    without = tf.cast(without, tf.float32)
    return _clip_to_uint8(without + factor * (tf.cast(image, tf.float32) - without))


def _compute_luma(image: Any) -> tf.Tensor:
    """Computes the luma (brightness) of an image, int32 [height, width]."""
    weights = tf.constant([19595, 38470, 7471])
    return (tf.reduce_sum(tf.cast(image, tf.int32) * weights, 2) + 2**15) // 2**16


def _clip_to_uint8(values: Any) -> tf.Tensor:
    return tf.cast(tf.clip_by_value(values, 0.0, 255.0), tf.uint8)


OPERATIONS: Mapping[str, Callable[[Any, Change], tf.Tensor]] = {
    "identity": lambda image, change: image,
    "auto_contrast": _auto_contrast,
    "equalize": _equalize,
    "rotate": _rotate,
    "solarize": _solarize,
    "color": lambda image, change: _enhance(_compute_luma(image)[:, :, tf.newaxis], image, change),
    "posterize": _posterize,
    "contrast": _change_contrast,
    "brightness": lambda image, change: _enhance(0.0, image, change),
    "sharpness": _change_sharpness,
    "shear_x": lambda image, change: _resample_affine(
        image, (1.0, _shear_factor(change), 0.0), _SAME_ROW
    ),
    "shear_y": lambda image, change: _resample_affine(
        image, _SAME_COLUMN, (_shear_factor(change), 1.0, 0.0)
    ),
    "translate_x": lambda image, change: _resample_affine(
        image, (1.0, 0.0, _shift_pixels(change, image.shape[1])), _SAME_ROW
    ),
    "translate_y": lambda image, change: _resample_affine(
        image, _SAME_COLUMN, (0.0, 1.0, _shift_pixels(change, image.shape[0]))
    ),
}
"""The operations of RandAugment and TrivialAugment, by name."""
