"""COCO records: keys, reading, writing, checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from cnnbench.data.check_records import check_records
from cnnbench.data.findings import Findings, RecordDefect
from cnnbench.data.imagenet_records import (
    BOX_SIDES,
    ENCODED,
    check_boxes,
    decoded_size,
    features_of,
    ints,
    serialized,
    single,
    text_of,
)

PREFIX = "coco-"
MAX_BOXES = 200
"""Maximum number of boxes of an image; COCO has fewer than a hundred."""

LABELS = "image/object/class/label"
CROWD = "image/object/is_crowd"
SOURCE_ID = "image/source_id"


@dataclass(frozen=True)
class CocoObject:
    """An object of an image.

    `label` is its class from 1, `box` top, left, bottom and right as fractions of the sides;
    `is_crowd` marks many objects that are not annotated separately.
    """

    label: int
    box: tuple[float, float, float, float]
    is_crowd: bool


@dataclass(frozen=True)
class CocoFacts:
    """Facts of a valid record."""

    labels: tuple[int, ...]
    height: int
    width: int
    crowds: int


def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """The parts of a serialized record (string scalar), in a graph.

    ``jpeg`` string scalar; ``boxes`` float32 [n, 4], fractions of height and width in the order
    top, left, bottom, right; ``classes`` and ``is_crowd`` int64 [n]; ``source_id`` int64 scalar.
    """
    keys: dict[str, Any] = {side: tf.io.VarLenFeature(tf.float32) for side in BOX_SIDES}
    keys |= {key: tf.io.VarLenFeature(tf.int64) for key in (LABELS, CROWD)}
    keys |= {key: tf.io.FixedLenFeature([], tf.string) for key in (ENCODED, SOURCE_ID)}
    found = tf.io.parse_single_example(record, keys)
    return {
        "jpeg": found[ENCODED],
        "boxes": tf.stack([found[side].values for side in BOX_SIDES], axis=-1),
        "classes": found[LABELS].values,
        "is_crowd": found[CROWD].values,
        "source_id": tf.strings.to_number(found[SOURCE_ID], tf.int64),
    }


def examine(record: bytes, num_classes: int) -> CocoFacts:
    """Checks everything that a run uses of a record; labels are in [1, num_classes)."""
    features = features_of(record)
    source_id = single(features, SOURCE_ID, "bytes_list")
    if not source_id.isdigit() or int(source_id) >= 2**63:
        raise RecordDefect(f"{SOURCE_ID} {source_id!r} is no number")
    boxes = check_boxes(features)
    if boxes > MAX_BOXES:
        raise RecordDefect(f"{boxes} boxes, but at most {MAX_BOXES} fit")
    values = {}
    for key in (LABELS, CROWD):
        values[key] = list(features[key].int64_list.value) if key in features else []
        if len(values[key]) != boxes:
            raise RecordDefect(f"{boxes} boxes, but {len(values[key])} values of {key}")
    for label in values[LABELS]:
        if not 1 <= label < num_classes:
            raise RecordDefect(f"label {label} is not in [1, {num_classes})")
    height, width = decoded_size(single(features, ENCODED, "bytes_list"))
    return CocoFacts(tuple(values[LABELS]), height, width, sum(map(bool, values[CROWD])))


def check_files(files: Sequence[Path], num_classes: int) -> Findings:
    """Reads every record of the files of a subset; see `Dataset.check`."""
    labels: Counter[int] = Counter()
    facts: list[tuple[int, int, int, int]] = []

    def add(one: CocoFacts) -> None:
        labels.update(one.labels)
        facts.append((one.height, one.width, len(one.labels), one.crowds))

    found = check_records(files, lambda record: examine(record, num_classes), add)
    if facts:
        heights, widths, boxes, crowds = zip(*facts, strict=True)
        found.details = [
            f"images: {min(heights)} to {max(heights)} high, {min(widths)} to {max(widths)} wide",
            f"boxes: {sum(boxes)} of {len(labels)} classes, {min(boxes)} to {max(boxes)} in an "
            f"image, {sum(crowds)} of crowds",
        ]
    return found


def serialize(
    jpeg: bytes,
    height: int,
    width: int,
    source_id: int,
    name: str,
    objects: Sequence[CocoObject],
) -> bytes:
    """A record with the keys of TensorFlow's object detection files; sizes in pixels."""
    sides = zip(BOX_SIDES, zip(*(one.box for one in objects), strict=True), strict=False)
    boxes: dict[str, Sequence[float]] = dict.fromkeys(BOX_SIDES, ())
    boxes |= dict(sides)
    return serialized(
        {
            "image/height": ints([height]),
            "image/width": ints([width]),
            "image/format": text_of("jpeg"),
            "image/filename": text_of(name),
            SOURCE_ID: text_of(str(source_id)),
            **{
                side: tf.train.Feature(float_list=tf.train.FloatList(value=values))
                for side, values in boxes.items()
            },
            LABELS: ints([one.label for one in objects]),
            CROWD: ints([int(one.is_crowd) for one in objects]),
            ENCODED: tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
        }
    )
