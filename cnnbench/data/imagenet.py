"""ImageNet, or any set of labelled images: records and their pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from cnnbench.data.check_records import check_records
from cnnbench.data.findings import Findings, ImageFacts, ImageTally, RecordDefect
from cnnbench.data.image import eval_image, train_image
from cnnbench.data.records import RecordPipeline, require

ENCODED = "image/encoded"
LABEL = "image/class/label"
BOX_SIDES = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))

MAX_ASPECT = 100
"""Largest ratio of sides; a resized narrow strip would exhaust the memory."""
MAX_PIXELS = 2**27
"""Pixels per image: 1.5 GiB as float32."""


def parse(record: tf.Tensor, keys: Mapping[str, Any]) -> tuple[dict[str, Any], tf.Tensor]:
    """The features of a serialized record (string scalar) with these keys, and its boxes.

    Boxes are float32 [n, 4], fractions of height and width in the order ymin, xmin, ymax, xmax.
    """
    sides = {side: tf.io.VarLenFeature(tf.float32) for side in BOX_SIDES}
    found = tf.io.parse_single_example(record, {**keys, **sides})
    return found, tf.stack([found[side].values for side in BOX_SIDES], axis=-1)


def is_usable_size(shape: Any) -> tf.Tensor:
    """Whether a JPEG's shape, int32 [3], respects `MAX_ASPECT` and `MAX_PIXELS`, in a graph."""
    height, width, _ = tf.unstack(tf.cast(tf.convert_to_tensor(shape), tf.int64))
    even = (height <= MAX_ASPECT * width) & (width <= MAX_ASPECT * height)
    return even & (height * width <= MAX_PIXELS)


def are_inside(boxes: Any) -> tf.Tensor:
    """Whether all boxes, [..., 4] in the order top, left, bottom, right, are inside the image."""
    ahead = [[0, 0]] * (len(boxes.shape) - 1)
    # 0, 0, top, left, bottom, right, 1, 1: none is above its next but one. NaN compares false.
    bounded = tf.pad(tf.pad(boxes, [*ahead, [2, 0]]), [*ahead, [0, 2]], constant_values=1.0)
    return tf.reduce_all(bounded[..., :-2] <= bounded[..., 2:])


def check_files(files: Sequence[Path], num_classes: int) -> Findings:
    """Reads every record of the files of a subset; see `Dataset.check`."""
    tally = ImageTally()
    found = check_records(files, lambda record: examine(record, num_classes), tally.add)
    found.details = tally.lines()
    return found


def examine(record: bytes, num_classes: int, min_size: int = 1) -> ImageFacts:
    """Checks what a run uses of a record; label in [0, num_classes), sides >= `min_size`."""
    features = features_of(record)
    label = single(features, LABEL, "int64_list")
    if not 0 <= label < num_classes:
        raise RecordDefect(f"label {label} is not in [0, {num_classes})")
    boxes = check_boxes(features)
    jpeg = single(features, ENCODED, "bytes_list")
    height, width = decoded_size(jpeg)
    if min(height, width) < min_size:
        raise RecordDefect(
            f"the image is {height}x{width}, but --resize_method=crop needs {min_size}x{min_size}"
        )
    return ImageFacts(label, height, width, len(jpeg), boxes)


def features_of(record: bytes) -> Any:
    """The features of a serialized record by key; RecordDefect if it is none."""
    try:
        return tf.train.Example.FromString(record).features.feature
    except Exception as error:
        # The exception's class belongs to whichever protobuf implementation is at work.
        raise RecordDefect("is not a serialized tf.train.Example") from error


def single(features: Any, key: str, kind: str) -> Any:
    """The only value of a feature of kind "int64_list", "float_list" or "bytes_list"."""
    if key not in features:
        raise RecordDefect(f"key {key} is missing")
    values = getattr(features[key], kind).value
    if len(values) != 1:
        raise RecordDefect(f"key {key} must hold one value of {kind}, but holds {len(values)}")
    return values[0]


def check_boxes(features: Any) -> int:
    """The number of boxes; RecordDefect unless all are inside the image."""
    sides = [list(features[key].float_list.value) if key in features else [] for key in BOX_SIDES]
    if len({len(side) for side in sides}) != 1:
        raise RecordDefect("the sides of image/object/bbox have different lengths")
    for ymin, xmin, ymax, xmax in zip(*sides, strict=True):
        if not (0 <= ymin <= ymax <= 1 and 0 <= xmin <= xmax <= 1):
            box = f"ymin={ymin:g} xmin={xmin:g} ymax={ymax:g} xmax={xmax:g}"
            raise RecordDefect(f"box {box} is no part of the image")
    return len(sides[0])


def check_size(shape: Any) -> None:
    """Raises RecordDefect for an image of a size that `is_usable_size` refuses."""
    if not bool(is_usable_size(shape)):
        height, width, _ = map(int, shape)
        raise RecordDefect(
            f"the image is {height}x{width}; it must have at most {MAX_PIXELS:,} pixels, "
            f"and no side more than {MAX_ASPECT} times as long as the other"
        )


def decoded_size(jpeg: bytes) -> tuple[int, int]:
    """Height and width of a JPEG after decoding all of it; RecordDefect for unusable ones."""
    with tf.device("CPU:0"):
        if not bool(tf.io.is_jpeg(jpeg)):
            kind = "a PNG" if jpeg.startswith(b"\x89PNG") else "no JPEG"
            raise RecordDefect(f"the image is {kind}; cnnbench data make-imagenet writes JPEGs")
        try:
            check_size(tf.io.extract_jpeg_shape(jpeg))
            image = tf.io.decode_jpeg(jpeg, channels=3)
        except tf.errors.InvalidArgumentError as error:
            raise RecordDefect("the JPEG cannot be decoded") from error
    return int(image.shape[0]), int(image.shape[1])


def serialize(
    jpeg: bytes, height: int, width: int, label: int, name: str, synset: str, text: str
) -> bytes:
    """A record with the keys of the ImageNet files, without boxes; sizes in pixels."""
    return serialized(
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


def serialized(
    ints: Mapping[str, Sequence[int]],
    floats: Mapping[str, Sequence[float]],
    texts: Mapping[str, str | bytes],
) -> bytes:
    """A record with these features; equal features give equal bytes."""
    features = {
        key: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for key, values in ints.items()
    }
    features |= {
        key: tf.train.Feature(float_list=tf.train.FloatList(value=values))
        for key, values in floats.items()
    }
    for key, text in texts.items():
        # File names need not be UTF-8; Python keeps the bytes that are not as surrogates.
        value = text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
        features[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    example = tf.train.Example(features=tf.train.Features(feature=features))
    # Map order is undefined unless asked for, and equal input shall give equal files.
    data: bytes = example.SerializeToString(deterministic=True)
    return data


_KEYS = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    LABEL: tf.io.FixedLenFeature([], tf.int64),
}


class ImageNetPipeline(RecordPipeline):
    """Decodes, crops and resizes JPEGs."""

    def decode(self, record: tf.Tensor, position: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """See `RecordPipeline.decode`."""
        spec = self.spec
        found, boxes = parse(record, _KEYS)
        jpeg, label = found[ENCODED], found[LABEL]
        # Fails for data that are no JPEG.
        shape = tf.io.extract_jpeg_shape(jpeg)
        sound = require(
            (label >= 0) & (label < spec.num_classes) & is_usable_size(shape) & are_inside(boxes),
            label,
        )
        with tf.control_dependencies([sound]):
            jpeg = tf.identity(jpeg)
        if spec.training:
            image = train_image(jpeg, shape, boxes[tf.newaxis], position, spec)
        else:
            image = eval_image(jpeg, position, spec)
        return {"image": image, "label": label}

    def examine(self, record: bytes) -> object:
        """See `RecordPipeline.examine`."""
        spec = self.spec
        min_size = spec.image_size if spec.resize_method == "crop" else 1
        return examine(record, spec.num_classes, min_size)
