"""Random changes of brightness, contrast, saturation and hue."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from cnnbench.data.position import seed_pair

_BRIGHTNESS = 32.0 / 255.0
_CONTRAST = (0.5, 1.5)
_SATURATION = (0.5, 1.5)
_HUE = 0.2  # as a fraction of pi in YIQ, of a full turn in HSV


def distort_colour(image: Any, position: Any, seed: int, *, in_yiq: bool) -> tf.Tensor:
    """The image with other colours, clipped to 0..1.

    Contrast and brightness do not commute, so the two orders take turns: at even positions
    brightness, saturation and hue, contrast; at odd ones brightness, contrast, saturation
    and hue.

    Args:
      image: float32 [height, width, 3] in 0..1.
      position: int64 scalar, place in the stream of examples; decides what is random.
      seed: of the run.
      in_yiq: change saturation and hue by scaling and turning the chroma plane of YIQ,
        otherwise in HSV.

    Returns:
      float32 of the same shape.
    """

    def brightness(x: Any) -> Any:
        return tf.image.stateless_random_brightness(
            x, _BRIGHTNESS, seed_pair(position, seed, "brightness")
        )

    def contrast(x: Any) -> Any:
        return tf.image.stateless_random_contrast(
            x, *_CONTRAST, seed=seed_pair(position, seed, "contrast")
        )

    def colour(x: Any) -> Any:
        change = _saturation_and_hue_in_yiq if in_yiq else _saturation_and_hue_in_hsv
        return change(x, position, seed)

    image = tf.cond(
        position % 2 == 0,
        lambda: contrast(colour(brightness(image))),
        lambda: colour(contrast(brightness(image))),
    )
    return tf.clip_by_value(image, 0.0, 1.0)


def _saturation_and_hue_in_hsv(image: Any, position: Any, seed: int) -> Any:
    image = tf.image.stateless_random_saturation(
        image, *_SATURATION, seed=seed_pair(position, seed, "saturation")
    )
    return tf.image.stateless_random_hue(image, _HUE, seed_pair(position, seed, "hue"))


def _saturation_and_hue_in_yiq(image: Any, position: Any, seed: int) -> Any:
    scale = tf.random.stateless_uniform([], seed_pair(position, seed, "saturation"), *_SATURATION)
    limit = _HUE * math.pi
    angle = tf.random.stateless_uniform([], seed_pair(position, seed, "hue"), -limit, limit)
    return scale_and_turn_chroma(image, scale, angle)


def scale_and_turn_chroma(image: Any, scale: Any, angle: Any) -> tf.Tensor:
    """Multiplies the chroma of an image by ``scale`` and turns it by ``angle`` radians.

    Brightness (the Y of YIQ) stays as it is.

    Args:
      image: float32 [height, width, 3].
      scale: scalar; 0 gives grey.
      angle: scalar.

    Returns:
      float32 of the same shape, not clipped.
    """
    # All of this is linear, so it is done once, to the three unit colours: a 3x3 matrix.
    y, i, q = tf.unstack(tf.image.rgb_to_yiq(tf.eye(3)), axis=-1)
    cosine, sine = scale * tf.cos(angle), scale * tf.sin(angle)
    turned = tf.stack([y, cosine * i - sine * q, sine * i + cosine * q], axis=-1)
    return tf.tensordot(image, tf.image.yiq_to_rgb(turned), axes=1)
