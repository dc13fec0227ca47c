"""Preparation of JPEG images for networks: decoding, cropping, resizing, normalising."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from cnnbench.data.position import seed_pair, uniform_int
from cnnbench.data.spec import InputSpec

# Evaluation looks at the central 1/1.145 of an image: 224 of 256 pixels.
CENTRAL_SCALE = 1.145
# The official models of TensorFlow resize the shorter side to this before they cut.
OFFICIAL_SHORTER_SIDE = 256
# Mean red, green and blue of ImageNet, on the scale 0..255.
CHANNEL_MEANS = (123.68, 116.78, 103.94)

# Limits of random colour changes; the hue as a fraction of pi in YIQ, of a full turn in HSV.
_BRIGHTNESS = 32.0 / 255.0
_CONTRAST = (0.5, 1.5)
_SATURATION = (0.5, 1.5)
_HUE = 0.2

_ROUND_ROBIN = ("nearest", "bilinear", "bicubic", "area")


def train_image(jpeg: Any, shape: Any, boxes: Any, position: Any, spec: InputSpec) -> tf.Tensor:
    """A random crop, mirrored half the time: float32 [image_size, image_size, 3], normalised.

    The shape is that of `tf.io.extract_jpeg_shape`, int32 [3]; boxes, float32 [1, n, 4], are as in
    `imagenet.parse`; the position, an int64 scalar, determines the randomness.
    """
    size = spec.image_size
    if spec.resize_method == "crop":
        image = decode(jpeg, spec)
        top, left = _free_room(image, size)
        top = uniform_int(position, spec.seed, "crop top", top + 1)
        left = uniform_int(position, spec.seed, "crop left", left + 1)
        image = tf.cast(tf.slice(image, tf.stack([top, left, 0]), [size, size, 3]), tf.float32)
    else:
        image = _distorted_crop(jpeg, shape, boxes, position, spec)
        image = resize(image, size, size, position, spec)
    mirrored = uniform_int(position, spec.seed, "mirror", 2) == 1
    image = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
    if spec.distortions:
        image = distort_colour(image, position, spec)
    return normalise(image, spec)


def eval_image(jpeg: Any, position: Any, spec: InputSpec) -> tf.Tensor:
    """The centre of an image: float32 [image_size, image_size, 3], normalised.

    The image is resized, keeping its aspect ratio, until both sides are at least 1.145 times
    ``image_size``, or, as in the official models, until the shorter one is 256, or ``image_size``
    if larger; then cropped. With ``resize_method`` crop it is only cropped.
    """
    size = spec.image_size
    image = decode(jpeg, spec)
    if spec.resize_method != "crop":
        sides = tf.shape(image)[:2]
        if spec.official:
            sides = sides * max(OFFICIAL_SHORTER_SIDE, size) // tf.reduce_min(sides)
        else:
            # Rounded down from the float32 product in this order, as in tf_cnn_benchmarks: another
            # order gives some images a row more or less.
            exact = tf.cast(sides, tf.float32)
            sides = tf.cast(exact * tf.reduce_max(size / exact) * CENTRAL_SCALE, tf.int32)
        image = resize(image, sides[0], sides[1], position, spec)
    top, left = _free_room(image, size)
    begin = tf.stack([top // 2, left // 2, 0])
    image = tf.cast(tf.slice(image, begin, [size, size, 3]), tf.float32)
    return normalise(image, spec)


def decode(jpeg: Any, spec: InputSpec) -> tf.Tensor:
    """uint8 [height, width, 3] of a JPEG; grey and CMYK become RGB."""
    return tf.io.decode_jpeg(jpeg, **_decoding(spec))


def _decoding(spec: InputSpec) -> dict[str, Any]:
    return {
        "channels": 3,
        "fancy_upscaling": spec.jpeg_fancy_upscaling,
        "dct_method": "INTEGER_FAST",
    }


def normalise(image: Any, spec: InputSpec) -> tf.Tensor:
    """0..255 to -1..1, or (ml_perf, official) minus the channel means; sets the static shape."""
    image = tf.ensure_shape(image, [spec.image_size, spec.image_size, 3])
    less_means = spec.ml_perf or spec.official
    return image - tf.constant(CHANNEL_MEANS) if less_means else image / 127.5 - 1.0


def resize(image: Any, height: Any, width: Any, position: Any, spec: InputSpec) -> tf.Tensor:
    """The image resized by the method of ``spec``; float32 in 0..255."""
    image = tf.cast(image, tf.float32)

    def by(method: str) -> tf.Tensor:
        resized = tf.image.resize(image, tf.stack([height, width]), method)
        # Bicubic interpolation overshoots at edges, and averages of areas by rounding.
        within = method in ("nearest", "bilinear")
        return resized if within else tf.clip_by_value(resized, 0.0, 255.0)

    if spec.resize_method != "round_robin":
        return by(spec.resize_method)
    turn = tf.cast(position % len(_ROUND_ROBIN), tf.int32)
    return tf.switch_case(turn, [lambda m=method: by(m) for method in _ROUND_ROBIN])


def _distorted_crop(jpeg: Any, shape: Any, boxes: Any, position: Any, spec: InputSpec) -> tf.Tensor:
    """A random crop that covers at least a tenth of a box, or of an image without boxes."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        boxes[:, :0] if spec.ml_perf else boxes,
        seed_pair(position, spec.seed, "distorted box"),
        min_object_covered=0.1,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    if not spec.fuse_decode_and_crop:
        return tf.slice(decode(jpeg, spec), begin, extent)
    window = tf.concat([begin[:2], extent[:2]], axis=0)
    return tf.image.decode_and_crop_jpeg(jpeg, window, **_decoding(spec))


def _free_room(image: Any, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows and columns by which the image exceeds the crop, int32 >= 0."""
    shape = tf.shape(image)
    checked = tf.debugging.assert_greater_equal(shape[:2], size, "image smaller than the crop")
    with tf.control_dependencies([checked]):
        return shape[0] - size, shape[1] - size


def distort_colour(image: Any, position: Any, spec: InputSpec) -> tf.Tensor:
    """Changes the colours of an image, float32 [height, width, 3], clipped to 0..255.

    Contrast and brightness do not commute, so the two orders alternate: at even positions
    brightness, saturation and hue, contrast; at odd ones brightness, contrast, saturation and hue.
    With ``distort_color_in_yiq`` saturation and hue change by scaling and rotating the chroma plane
    of YIQ, otherwise in HSV.
    """

    def seed(purpose: str) -> tf.Tensor:
        return seed_pair(position, spec.seed, purpose)

    def brightness(x: Any) -> Any:
        return tf.image.stateless_random_brightness(x, _BRIGHTNESS, seed("brightness"))

    def contrast(x: Any) -> Any:
        return tf.image.stateless_random_contrast(x, *_CONTRAST, seed=seed("contrast"))

    def colour(x: Any) -> Any:
        if not spec.distort_color_in_yiq:
            x = tf.image.stateless_random_saturation(x, *_SATURATION, seed=seed("saturation"))
            return tf.image.stateless_random_hue(x, _HUE, seed("hue"))
        scale = tf.random.stateless_uniform([], seed("saturation"), *_SATURATION)
        limit = _HUE * math.pi
        angle = tf.random.stateless_uniform([], seed("hue"), -limit, limit)
        return scale_and_turn_chroma(x, scale, angle)

    image = image / 255.0
    image = tf.cond(
        position % 2 == 0,
        lambda: contrast(colour(brightness(image))),
        lambda: colour(contrast(brightness(image))),
    )
    return 255.0 * tf.clip_by_value(image, 0.0, 1.0)


def scale_and_turn_chroma(image: Any, scale: Any, angle: Any) -> tf.Tensor:
    """Scales the chroma of an image [height, width, 3] and rotates it by ``angle`` radians.

    The Y of YIQ does not change, and a scale of 0 gives grey. The result is not clipped.
    """
    # All of this is linear, so it is done once, to the three unit colours: a 3x3 matrix.
    y, i, q = tf.unstack(tf.image.rgb_to_yiq(tf.eye(3)), axis=-1)
    cosine, sine = scale * tf.cos(angle), scale * tf.sin(angle)
    turned = tf.stack([y, cosine * i - sine * q, sine * i + cosine * q], axis=-1)
    return tf.tensordot(image, tf.image.yiq_to_rgb(turned), axes=1)
