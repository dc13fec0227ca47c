"""ImageNet: decodes and distorts images, reads the records, and converts folders of photos to
records.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from cnnbench.data import folder
from cnnbench.data.augment import augment_image
from cnnbench.data.dataset import InputSpec
from cnnbench.data.folder import (
    Findings,
    ImageClass,
    ImageFacts,
    ImageFolder,
    ImageTally,
    RecordDefect,
    read_data_file,
)
from cnnbench.data.open import IMAGENET
from cnnbench.data.pipeline import draw_uniform_int, stateless_seed
from cnnbench.data.records import RecordPipeline, assert_in_graph, check_records
from cnnbench.errors import DataError, UsageError, informative_line

# Preprocessing of JPEG images for networks: decoding, cropping, resizing and normalising

# An evaluation crops an image to its centre: 1/1.145 of its height and width (224 of 256 pixels).
CENTRAL_SCALE = 1.145
# TensorFlow's official models resize the shorter side to this size before they crop.
OFFICIAL_SHORTER_SIDE = 256
# Mean red, green and blue values of the images in ImageNet, in the range 0..255
CHANNEL_MEANS = (123.68, 116.78, 103.94)

# Limits of random colour changes. The limit of the hue is a fraction of pi (YIQ) or of 2 pi (HSV).
_BRIGHTNESS = 32.0 / 255.0
_CONTRAST = (0.5, 1.5)
_SATURATION = (0.5, 1.5)
_HUE = 0.2

_ROUND_ROBIN = ("nearest", "bilinear", "bicubic", "area")


def preprocess_train_image(
    jpeg: Any, shape: Any, boxes: Any, position: Any, spec: InputSpec
) -> tf.Tensor:
    """Preprocesses an image for training: a normalised random crop, float32 [image_size,
    image_size, 3]. Half of the crops are mirrored.

    `shape`, int32 [3], is the result of `tf.io.extract_jpeg_shape`. `boxes`, float32 [1, n, 4], are
    as in `parse_with_boxes`. `position`, an int64 scalar, determines all random choices.
    """
    size = spec.image_size
    if spec.resize_method == "crop":
        image = decode_jpeg(jpeg, spec)
        top, left = _excess_pixels(image, size)
        top = draw_uniform_int(position, spec.seed, "crop top", top + 1)
        left = draw_uniform_int(position, spec.seed, "crop left", left + 1)
        image = tf.cast(tf.slice(image, tf.stack([top, left, 0]), [size, size, 3]), tf.float32)
    else:
        image = _decode_crop(jpeg, shape, boxes, position, spec)
        image = resize_image(image, size, size, position, spec)
    mirrored = draw_uniform_int(position, spec.seed, "mirror", 2) == 1
    image = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
    if spec.distortions:
        image = distort_colour(image, position, spec)
    if spec.augment != "none":
        image = tf.ensure_shape(image, [size, size, 3])
        rounded = tf.saturate_cast(tf.round(image), tf.uint8)
        image = tf.cast(augment_image(rounded, position, spec), tf.float32)
    return normalise_image(image, spec)


def preprocess_eval_image(jpeg: Any, position: Any, spec: InputSpec) -> tf.Tensor:
    """Preprocesses an image for an evaluation: its normalised centre, float32 [image_size,
    image_size, 3].

    The image is resized with the same aspect ratio so that the shorter side is 1.145 times
    ``image_size``, and then cropped. With the preprocessing of the official models, the shorter
    side becomes 256, or ``image_size`` if that is larger. If ``resize_method`` is "crop", the image
    is only cropped.
    """
    size = spec.image_size
    image = decode_jpeg(jpeg, spec)
    if spec.resize_method != "crop":
        sides = tf.shape(image)[:2]
        if spec.official_preprocessing:
            sides = sides * max(OFFICIAL_SHORTER_SIDE, size) // tf.reduce_min(sides)
        else:
            # The factors are multiplied in the order of tf_cnn_benchmarks. Another order may round
            # to another size.
            exact = tf.cast(sides, tf.float32)
            sides = tf.cast(exact * tf.reduce_max(size / exact) * CENTRAL_SCALE, tf.int32)
        image = resize_image(image, sides[0], sides[1], position, spec)
    top, left = _excess_pixels(image, size)
    begin = tf.stack([top // 2, left // 2, 0])
    image = tf.cast(tf.slice(image, begin, [size, size, 3]), tf.float32)
    return normalise_image(image, spec)


def decode_jpeg(jpeg: Any, spec: InputSpec) -> tf.Tensor:
    """Decodes a JPEG to a uint8 image [height, width, 3]. Grey and CMYK images become RGB."""
    return tf.io.decode_jpeg(jpeg, **_jpeg_options(spec))


def _jpeg_options(spec: InputSpec) -> dict[str, Any]:
    return {
        "channels": 3,
        "fancy_upscaling": spec.jpeg_fancy_upscaling,
        "dct_method": "INTEGER_FAST",
    }


def normalise_image(image: Any, spec: InputSpec) -> tf.Tensor:
    """Scales the values of an image from 0..255 to -1..1 or, with --ml_perf or the official
    preprocessing, subtracts the channel means.

    Also sets the static shape of the image.
    """
    image = tf.ensure_shape(image, [spec.image_size, spec.image_size, 3])
    less_means = spec.ml_perf or spec.official_preprocessing
    return image - tf.constant(CHANNEL_MEANS) if less_means else image / 127.5 - 1.0


def resize_image(image: Any, height: Any, width: Any, position: Any, spec: InputSpec) -> tf.Tensor:
    """Resizes an image with the method of --resize_method: float32 with values in 0..255."""
    image = tf.cast(image, tf.float32)

    def resize_by(method: str) -> tf.Tensor:
        resized = tf.image.resize(image, tf.stack([height, width]), method)
        # Bicubic interpolation can leave the range 0..255 at edges, and area averages by rounding
        # errors.
        within = method in ("nearest", "bilinear")
        return resized if within else tf.clip_by_value(resized, 0.0, 255.0)

    if spec.resize_method != "round_robin":
        return resize_by(spec.resize_method)
    turn = tf.cast(position % len(_ROUND_ROBIN), tf.int32)
    return tf.switch_case(turn, [lambda m=method: resize_by(m) for method in _ROUND_ROBIN])


def _decode_crop(jpeg: Any, shape: Any, boxes: Any, position: Any, spec: InputSpec) -> tf.Tensor:
    """Crops a JPEG at random. The crop covers at least a tenth of a box (or of the image, if there
    are no boxes).
    """
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        boxes[:, :0] if spec.ml_perf else boxes,
        stateless_seed(position, spec.seed, "distorted box"),
        min_object_covered=0.1,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    if not spec.fuse_decode_and_crop:
        return tf.slice(decode_jpeg(jpeg, spec), begin, extent)
    window = tf.concat([begin[:2], extent[:2]], axis=0)
    return tf.image.decode_and_crop_jpeg(jpeg, window, **_jpeg_options(spec))


def _excess_pixels(image: Any, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns by how many rows and columns the image is larger than the crop: int32 >= 0."""
    shape = tf.shape(image)
    checked = tf.debugging.assert_greater_equal(shape[:2], size, "image smaller than the crop")
    with tf.control_dependencies([checked]):
        return shape[0] - size, shape[1] - size


def distort_colour(image: Any, position: Any, spec: InputSpec) -> tf.Tensor:
    """Changes the colours of an image, float32 [height, width, 3], at random. The result is clipped
    to 0..255.

    The result depends on the order of the changes, so two orders alternate: at even positions, it
    is brightness, saturation and hue, contrast; at odd positions, brightness, contrast, saturation
    and hue. With ``distort_color_in_yiq``, saturation and hue are changed by scaling and rotating
    the chroma plane of YIQ; otherwise they are changed in HSV.
    """
    seed = partial(stateless_seed, position, spec.seed)

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
        return scale_and_rotate_chroma(x, scale, angle)

    image = image / 255.0
    image = tf.cond(
        position % 2 == 0,
        lambda: contrast(colour(brightness(image))),
        lambda: colour(contrast(brightness(image))),
    )
    return 255.0 * tf.clip_by_value(image, 0.0, 1.0)


def scale_and_rotate_chroma(image: Any, scale: Any, angle: Any) -> tf.Tensor:
    """Scales the chroma of an image [height, width, 3] and rotates it by ``angle`` radians.

    Luma (Y of YIQ) does not change. A scale of 0 results in grey. The result is not clipped.
    """
    # All colour operations are linear, so their results for pure red, green and blue are the
    # columns of a matrix.
    y, i, q = tf.unstack(tf.image.rgb_to_yiq(tf.eye(3)), axis=-1)
    cosine, sine = scale * tf.cos(angle), scale * tf.sin(angle)
    turned = tf.stack([y, cosine * i - sine * q, sine * i + cosine * q], axis=-1)
    return tf.tensordot(image, tf.image.yiq_to_rgb(turned), axes=1)


# Records and pipeline of ImageNet and of other sets of labelled images

ENCODED = "image/encoded"
LABEL = "image/class/label"
BOX_SIDES = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))

MAX_ASPECT = 100
"""Maximum ratio of height to width, and of width to height. Resizing a narrower image would need
too much memory.
"""
MAX_PIXELS = 2**27
"""Maximum number of pixels in an image, which take 1.5 GiB as float32."""


def parse_with_boxes(
    record: tf.Tensor, keys: Mapping[str, Any]
) -> tuple[dict[str, Any], tf.Tensor]:
    """Parses a serialized record (a string scalar) in the graph. Returns the features with the
    given keys, and the boxes.

    Boxes are float32 [n, 4], fractions of height and width in the order ymin, xmin, ymax, xmax.
    """
    sides = {side: tf.io.VarLenFeature(tf.float32) for side in BOX_SIDES}
    features = tf.io.parse_single_example(record, {**keys, **sides})
    return features, tf.stack([features[side].values for side in BOX_SIDES], axis=-1)


def is_usable_image_size(shape: Any) -> tf.Tensor:
    """Whether an image with this shape, int32 [3], is neither too narrow (`MAX_ASPECT`) nor too
    large (`MAX_PIXELS`). For use in a graph.
    """
    height, width, _ = tf.unstack(tf.cast(tf.convert_to_tensor(shape), tf.int64))
    even = (height <= MAX_ASPECT * width) & (width <= MAX_ASPECT * height)
    return even & (height * width <= MAX_PIXELS)


def boxes_are_inside(boxes: Any) -> tf.Tensor:
    """Whether all boxes, [..., 4] with top, left, bottom and right, are inside the image. For use
    in a graph.
    """
    ahead = [[0, 0]] * (len(boxes.shape) - 1)
    # Each value k of the list 0, 0, top, left, bottom, right, 1, 1 must be at most value k + 2.
    bounded = tf.pad(tf.pad(boxes, [*ahead, [2, 0]]), [*ahead, [0, 2]], constant_values=1.0)
    return tf.reduce_all(bounded[..., :-2] <= bounded[..., 2:])


def check_files(files: Sequence[Path], num_classes: int) -> Findings:
    """Checks every record in the files of a subset; see `Dataset.check`."""
    tally = ImageTally()
    findings = check_records(files, lambda record: validate_record(record, num_classes), tally.add)
    findings.details = tally.lines()
    labels = tally.labels
    if labels and num_classes == IMAGENET.num_classes and min(labels) == 0:
        about = "label 0 is the background, the classes of ImageNet begin with 1"
        unused = num_classes - 1
        numbered = f"; no record has label {unused}" if max(labels) < unused else ""
        findings.details.append(f"{about}{numbered}. Are the labels numbered from 0?")
    return findings


def validate_record(record: bytes, num_classes: int, min_size: int = 1) -> ImageFacts:
    """Checks the parts of a record that a run uses: the label must be less than `num_classes`, and
    each side of the image at least `min_size`.
    """
    features = parse_features(record)
    label = single_value(features, LABEL, "int64_list")
    if not 0 <= label < num_classes:
        raise RecordDefect(f"label {label} is not in [0, {num_classes})")
    boxes = check_boxes(features)
    jpeg = single_value(features, ENCODED, "bytes_list")
    height, width = decoded_image_size(jpeg)
    if min(height, width) < min_size:
        raise RecordDefect(
            f"the image is {height}x{width}, but --resize_method=crop needs {min_size}x{min_size}"
        )
    return ImageFacts(label, height, width, len(jpeg), boxes)


def parse_features(record: bytes) -> Any:
    """Parses a record and returns its features by key. RecordDefect if that is impossible."""
    try:
        return tf.train.Example.FromString(record).features.feature
    except Exception as error:
        # The class of the exception differs between implementations of protobuf.
        raise RecordDefect("is not a serialized tf.train.Example") from error


def single_value(features: Any, key: str, kind: str) -> Any:
    """Returns the value of a feature that must have exactly one value. `kind` is "int64_list",
    "float_list" or "bytes_list".
    """
    if key not in features:
        raise RecordDefect(f"key {key} is missing")
    values = getattr(features[key], kind).value
    if len(values) != 1:
        raise RecordDefect(
            f"key {key} must contain one value of {kind}, but contains {len(values)}"
        )
    return values[0]


def check_boxes(features: Any) -> int:
    """Counts the boxes in a record. RecordDefect if a box is not inside the image."""
    sides = [list(features[key].float_list.value) if key in features else [] for key in BOX_SIDES]
    if len({len(side) for side in sides}) != 1:
        raise RecordDefect("the sides of image/object/bbox have different lengths")
    for ymin, xmin, ymax, xmax in zip(*sides, strict=True):
        if not (0 <= ymin <= ymax <= 1 and 0 <= xmin <= xmax <= 1):
            box = f"ymin={ymin:g} xmin={xmin:g} ymax={ymax:g} xmax={xmax:g}"
            raise RecordDefect(f"box {box} is not inside the image")
    return len(sides[0])


def check_image_size(shape: Any) -> None:
    """Raises RecordDefect for an image that is too large or narrow; see `is_usable_image_size`."""
    if not bool(is_usable_image_size(shape)):
        height, width, _ = map(int, shape)
        raise RecordDefect(
            f"the image is {height}x{width}; it must have at most {MAX_PIXELS:,} pixels, "
            f"and no side more than {MAX_ASPECT} times as long as the other"
        )


def decoded_image_size(jpeg: bytes) -> tuple[int, int]:
    """Decodes a whole JPEG, and returns its height and width. RecordDefect if it is damaged."""
    with tf.device("CPU:0"):
        if not bool(tf.io.is_jpeg(jpeg)):
            kind = "a PNG" if jpeg.startswith(b"\x89PNG") else "no JPEG"
            raise RecordDefect(f"the image is {kind}; cnnbench data make-imagenet writes JPEGs")
        try:
            check_image_size(tf.io.extract_jpeg_shape(jpeg))
            image = tf.io.decode_jpeg(jpeg, channels=3)
        except tf.errors.InvalidArgumentError as error:
            raise RecordDefect("the JPEG cannot be decoded") from error
    return int(image.shape[0]), int(image.shape[1])


def serialize(
    jpeg: bytes, height: int, width: int, label: int, name: str, synset: str, text: str
) -> bytes:
    """Serializes an image and its label as a record with the keys of ImageNet's TFRecord files,
    without boxes. Sizes are in pixels.
    """
    return serialize_features(
        ints={
            "image/height": [height],
            "image/width": [width],
            "image/channels": [3],
            LABEL: [label],
            "image/object/bbox/label": [],
        },
        floats=dict.fromkeys(BOX_SIDES, ()),
        texts={
            "image/colorspace": "RGB",
            "image/class/synset": synset,
            "image/class/text": text,
            "image/format": "JPEG",
            "image/filename": name,
            ENCODED: jpeg,
        },
    )


def serialize_features(
    ints: Mapping[str, Sequence[int]],
    floats: Mapping[str, Sequence[float]],
    texts: Mapping[str, str | bytes],
) -> bytes:
    """Serializes a record from its features by key. Equal features result in equal bytes."""
    features = {
        key: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for key, values in ints.items()
    }
    features |= {
        key: tf.train.Feature(float_list=tf.train.FloatList(value=values))
        for key, values in floats.items()
    }
    for key, text in texts.items():
        # In Python's file names, surrogates stand for bytes that are not UTF-8.
        value = text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
        features[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    example = tf.train.Example(features=tf.train.Features(feature=features))
    # Equal images must give equal files. Without `deterministic`, the order of the keys would vary.
    data: bytes = example.SerializeToString(deterministic=True)
    return data


_KEYS = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    LABEL: tf.io.FixedLenFeature([], tf.int64),
}


class ImageNetPipeline(RecordPipeline):
    """Pipeline of ImageNet: decodes, crops and resizes the JPEGs in records."""

    def decode(self, record: tf.Tensor, position: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """See `RecordPipeline.decode`."""
        spec = self.spec
        features, boxes = parse_with_boxes(record, _KEYS)
        jpeg, label = features[ENCODED], features[LABEL]
        # This operation fails unless the data is a JPEG.
        shape = tf.io.extract_jpeg_shape(jpeg)
        sound = assert_in_graph(
            (label >= 0)
            & (label < spec.num_classes)
            & is_usable_image_size(shape)
            & boxes_are_inside(boxes),
            label,
        )
        with tf.control_dependencies([sound]):
            jpeg = tf.identity(jpeg)
        if spec.training:
            image = preprocess_train_image(jpeg, shape, boxes[tf.newaxis], position, spec)
        else:
            image = preprocess_eval_image(jpeg, position, spec)
        return {"image": image, "label": label}

    def examine(self, record: bytes) -> object:
        """See `RecordPipeline.examine`."""
        spec = self.spec
        min_size = spec.image_size if spec.resize_method == "crop" else 1
        return validate_record(record, spec.num_classes, min_size)


# Conversion of a folder of images into TFRecord files in the format of ImageNet

LABELS_FILE = "labels.txt"
_MAX_CLASSES = IMAGENET.num_classes - 1
_CHUNK = 64


def write_imagenet(images: ImageFolder, out: Path, shards: Mapping[str, int]) -> int:
    """Writes the images as TFRecord files ``<subset>-*-of-*``, and the names of the classes as
    ``labels.txt``; see `folder.write_dataset_files`.

    Upright RGB JPEGs are stored unchanged. PNGs, grey or CMYK JPEGs, and JPEGs that their EXIF
    orientation turns, are converted to RGB JPEGs with quality 100. Returns the number of
    re-encoded images.
    """
    if len(images.classes) > _MAX_CLASSES:
        raise UsageError(f"{len(images.classes)} classes, but at most {_MAX_CLASSES} are possible")

    def write(path: Path, files: Sequence[tuple[Path, ImageClass]]) -> int:
        made = [
            (file, partial(serialize, label=c.label, name=file.name, synset=c.name, text=c.text))
            for file, c in files
        ]
        return write_images(path, made, upright=True)

    # In labels.txt, the line number (from 0) is the label.
    lines = ["background"]
    lines += [c.name if c.text == c.name else f"{c.name} {c.text}" for c in images.classes]
    return sum(
        folder.write_dataset_files(out, "", images.subsets, shards, write, {LABELS_FILE: lines})
    )


def write_images(
    path: Path,
    files: Sequence[tuple[Path, Callable[[bytes, int, int], bytes]]],
    *,
    upright: bool = False,
) -> int:
    """Writes images as one file of records. Returns the number of images that were re-encoded.

    `files` are pairs of an image file and a function that creates a record from the JPEG, height
    and width of the image. `upright` is as in `read_as_rgb_jpeg`.
    """
    count = 0
    read = partial(read_as_rgb_jpeg, upright=upright)
    with (
        folder.converting_write_errors(path, tf.errors.OpError),
        ThreadPoolExecutor(os.cpu_count()) as pool,
        tf.io.TFRecordWriter(str(path)) as writer,
    ):
        # The thread pool works on chunks; otherwise, it could read all images into memory before
        # they are written.
        for begin in range(0, len(files), _CHUNK):
            part = files[begin : begin + _CHUNK]
            images = pool.map(read, (source for source, _ in part))
            for (_, record), (jpeg, height, width, reencoded) in zip(part, images, strict=True):
                count += reencoded
                writer.write(record(jpeg, height, width))
    return count


_EXIF = b"Exif\0\0"
_ORIENTATION = 0x0112
_UPRIGHT: dict[int, Callable[[Any], Any]] = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: image.swapaxes(0, 1)[:, ::-1],
    7: lambda image: image.swapaxes(0, 1)[::-1, ::-1],
    8: lambda image: image.swapaxes(0, 1)[::-1],
}
"""Functions that turn a stored image, [height, width, channels], upright, by EXIF orientation."""


def exif_orientation(jpeg: bytes) -> int:
    """Reads how a camera was held, from 1 (upright) to 8 (EXIF 2.3, tag 274); 1 if unknown."""
    place = 2
    while place + 4 <= len(jpeg) and jpeg[place] == 0xFF and jpeg[place + 1] != 0xDA:
        length = int.from_bytes(jpeg[place + 2 : place + 4], "big")
        segment = jpeg[place + 4 : place + 2 + length]
        if jpeg[place + 1] == 0xE1 and segment.startswith(_EXIF):
            return _orientation_in_tiff(segment[len(_EXIF) :])
        place += 2 + length
    return 1


def _orientation_in_tiff(tiff: bytes) -> int:
    order: Literal["little", "big"] = "little" if tiff.startswith(b"II") else "big"

    def number(place: int, size: int) -> int:
        return int.from_bytes(tiff[place : place + size], order)

    entries = number(4, 4)
    for entry in range(number(entries, 2)):
        place = entries + 2 + 12 * entry
        if number(place, 2) == _ORIENTATION:
            value = number(place + 8, 2)
            return value if value in _UPRIGHT else 1
    return 1


def read_as_rgb_jpeg(path: Path, *, upright: bool = False) -> tuple[bytes, int, int, bool]:
    """Reads a JPEG or PNG file (detected by its content) and converts it to an RGB JPEG without
    alpha channel. With `upright`, JPEGs are turned as their EXIF orientation says, which TensorFlow
    ignores.

    Returns the JPEG, its height and width, and whether it was re-encoded.
    """
    content = read_data_file(path)
    with tf.device("CPU:0"):
        is_jpeg = bool(tf.io.is_jpeg(content))
        if not is_jpeg and not content.startswith(b"\x89PNG\r\n\x1a\n"):
            raise DataError(f"{path}: is neither a JPEG nor a PNG")
        image: Any
        try:
            if is_jpeg:
                shape = tf.io.extract_jpeg_shape(content)
                check_image_size(shape)
                turned = _UPRIGHT.get(exif_orientation(content)) if upright else None
                keep = int(shape[2]) == 3 and turned is None
                method = "" if keep else "INTEGER_ACCURATE"
                image = tf.io.decode_jpeg(content, channels=3, dct_method=method)
                if turned is not None:
                    image = tf.constant(turned(image.numpy()))
            else:
                keep = False
                image = tf.io.decode_png(content, channels=3)
                check_image_size(image.shape)
        except RecordDefect as defect:
            raise DataError(f"{path}: {defect}") from None
        except tf.errors.OpError as error:
            kind = "JPEG" if is_jpeg else "PNG"
            raise DataError(f"{path}: the {kind} cannot be decoded") from error
        if not keep:
            try:
                encoded = tf.io.encode_jpeg(
                    image, format="rgb", quality=100, chroma_downsampling=False
                )
            # Encoding fails if, for example, the image is wider or higher than 65,500 pixels.
            except tf.errors.OpError as error:
                raise DataError(
                    f"{path}: cannot be encoded as a JPEG: {informative_line(error)}"
                ) from error
            content = bytes(encoded.numpy())
    return content, int(image.shape[0]), int(image.shape[1]), not keep
