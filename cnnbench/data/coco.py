"""COCO for SSD: the pipeline of images with boxes, and the conversion of COCO into TFRecord
files.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from cnnbench.base.files import converting_parse_errors, read_json
from cnnbench.data import folder as output
from cnnbench.data.folder import Findings, RecordDefect, check_class_name
from cnnbench.data.imagenet import (
    BOX_SIDES,
    ENCODED,
    boxes_are_inside,
    check_boxes,
    decode_jpeg,
    decoded_image_size,
    distort_colour,
    is_usable_image_size,
    normalise_image,
    parse_features,
    parse_with_boxes,
    resize_image,
    serialize_features,
    single_value,
    write_images,
)
from cnnbench.data.pipeline import draw_uniform_int, stateless_seed
from cnnbench.data.records import RecordPipeline, assert_in_graph, check_records, pad_rows
from cnnbench.errors import DataError, UsageError
from cnnbench.models.networks.ssd import MAX_BOXES, intersection_over_union

# Records of images with boxes around their objects, and the pipeline that reads them

PREFIX = "coco-"

LABELS = "image/object/class/label"
CROWD = "image/object/is_crowd"
SOURCE_ID = "image/source_id"


class CocoObject(NamedTuple):
    """An object in an image: its class, its box, and whether it is a crowd.

    `label` is the class, starting at 1. `box` is top, left, bottom and right, as fractions of the
    height and width of the image. `is_crowd` means that the box contains many objects without
    separate annotations.
    """

    label: int
    box: tuple[float, float, float, float]
    is_crowd: bool


def validate_record(record: bytes, num_classes: int) -> tuple[list[int], tuple[int, int, int, int]]:
    """Checks the parts of a record that a run uses: the image, the boxes, and the labels, which
    must be in [1, num_classes).

    Returns the labels, and a tuple of height, width, number of boxes and number of crowd boxes.
    """
    features = parse_features(record)
    source_id = single_value(features, SOURCE_ID, "bytes_list")
    if not source_id.isdigit() or int(source_id) >= 2**63:
        raise RecordDefect(f"{SOURCE_ID} {source_id!r} is not a number")
    boxes = check_boxes(features)
    if boxes > MAX_BOXES:
        raise RecordDefect(f"{boxes} boxes, but at most {MAX_BOXES} are possible")
    values = {}
    for key in (LABELS, CROWD):
        values[key] = list(features[key].int64_list.value) if key in features else []
        if len(values[key]) != boxes:
            raise RecordDefect(f"{boxes} boxes, but {len(values[key])} values of {key}")
    for label in values[LABELS]:
        if not 1 <= label < num_classes:
            raise RecordDefect(f"label {label} is not in [1, {num_classes})")
    height, width = decoded_image_size(single_value(features, ENCODED, "bytes_list"))
    crowds = sum(map(bool, values[CROWD]))
    return values[LABELS], (height, width, boxes, crowds)


def check_files(files: Sequence[Path], num_classes: int) -> Findings:
    """Checks every record in the files of a subset; see `Dataset.check`."""
    labels: Counter[int] = Counter()
    facts: list[tuple[int, int, int, int]] = []

    def add_record_facts(example: tuple[list[int], tuple[int, int, int, int]]) -> None:
        labels.update(example[0])
        facts.append(example[1])

    findings = check_records(
        files, lambda record: validate_record(record, num_classes), add_record_facts
    )
    if facts:
        heights, widths, boxes, crowds = zip(*facts, strict=True)
        findings.details = [
            f"images: {min(heights)} to {max(heights)} high, {min(widths)} to {max(widths)} wide",
            f"boxes: {sum(boxes)} of {len(labels)} classes, {min(boxes)} to {max(boxes)} in an "
            f"image, {sum(crowds)} of crowds",
        ]
    return findings


def serialize(
    jpeg: bytes,
    height: int,
    width: int,
    source_id: int,
    name: str,
    objects: Sequence[CocoObject],
) -> bytes:
    """Serializes an image and its objects as a record with the keys of TensorFlow's object
    detection API. Sizes are in pixels.
    """
    return serialize_features(
        ints={
            "image/height": [height],
            "image/width": [width],
            LABELS: [box_object.label for box_object in objects],
            CROWD: [int(box_object.is_crowd) for box_object in objects],
        },
        floats={
            side: [box_object.box[i] for box_object in objects] for i, side in enumerate(BOX_SIDES)
        },
        texts={
            "image/format": "jpeg",
            "image/filename": name,
            SOURCE_ID: str(source_id),
            ENCODED: jpeg,
        },
    )


# Minimum overlap of a random window with a box, drawn per image (SSD paper, Liu et al. 2016); 0
# means no minimum.
_OVERLAPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
CROP_TRIES = 50
_SMALLEST_SIDE = 0.3
_ASPECTS = (0.5, 2.0)


_KEYS = {
    **{key: tf.io.VarLenFeature(tf.int64) for key in (LABELS, CROWD)},
    **{key: tf.io.FixedLenFeature([], tf.string) for key in (ENCODED, SOURCE_ID)},
}


class CocoPipeline(RecordPipeline):
    """Pipeline of images with boxes. Images are resized without keeping their aspect ratio.

    In training, a record becomes a window of the image with the boxes that have their centres in
    it, without crowd boxes. Half of the windows are mirrored. In evaluation, a record becomes the
    whole image with all boxes.
    """

    def decode(self, record: tf.Tensor, position: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """See `RecordPipeline.decode`."""
        spec = self.spec
        features, boxes = parse_with_boxes(record, _KEYS)
        jpeg, classes, is_crowd = features[ENCODED], features[LABELS].values, features[CROWD].values
        count = tf.shape(boxes)[0]
        sound = [
            # This operation fails unless the data is a JPEG.
            assert_in_graph(is_usable_image_size(tf.io.extract_jpeg_shape(jpeg)), "size"),
            assert_in_graph(boxes_are_inside(boxes), boxes),
            assert_in_graph(tf.reduce_all((classes >= 1) & (classes < spec.num_classes)), classes),
            assert_in_graph(tf.equal(tf.shape(classes)[0], count), "labels"),
            assert_in_graph(tf.equal(tf.shape(is_crowd)[0], count), "crowds"),
            assert_in_graph(count <= MAX_BOXES, count),
        ]
        with tf.control_dependencies(sound):
            image = decode_jpeg(jpeg, spec)
        if spec.training:
            told_apart = is_crowd == 0
            boxes, classes, is_crowd = (
                tf.boolean_mask(values, told_apart) for values in (boxes, classes, is_crowd)
            )
            image, boxes, kept = crop_to_random_window(image, boxes, position, spec.seed)
            boxes, classes, is_crowd = (
                tf.boolean_mask(values, kept) for values in (boxes, classes, is_crowd)
            )
        size = spec.image_size
        image = resize_image(image, size, size, position, spec)
        if spec.training:
            mirrored = draw_uniform_int(position, spec.seed, "mirror", 2) == 1
            image = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: tf.identity(image))
            top, left, bottom, right = tf.unstack(boxes, axis=-1)
            turned = tf.stack([top, 1 - right, bottom, 1 - left], axis=-1)
            boxes = tf.where(mirrored, turned, boxes)
            if spec.distortions:
                image = distort_colour(image, position, spec)
        return {
            "image": normalise_image(image, spec),
            "num_boxes": tf.shape(boxes, tf.int64)[0],
            "boxes": pad_rows(boxes, MAX_BOXES),
            "classes": pad_rows(classes, MAX_BOXES),
            "is_crowd": pad_rows(is_crowd, MAX_BOXES),
            "source_id": tf.strings.to_number(features[SOURCE_ID], tf.int64),
        }

    def examine(self, record: bytes) -> object:
        """See `RecordPipeline.examine`."""
        return validate_record(record, self.spec.num_classes)


def crop_to_random_window(
    image: Any, boxes: Any, position: Any, seed: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Crops an image, uint8 [height, width, 3], to a random window that contains at least one box,
    as in SSD.

    Fifty windows and a minimum overlap are drawn. The result is the first window that contains the
    centre of a box and has at least this overlap with every such box, or the whole image if there
    is no such window.

    Boxes are float32 [n, 4], fractions in the order top, left, bottom, right.

    Returns the window, the boxes as fractions of the window (clipped to it), and bool [n]: whether
    a box has its centre in the window.
    """
    overlap = tf.gather(
        # An overlap is at most 1, so no window reaches 2.0, and the whole image is used.
        tf.constant([*_OVERLAPS, 2.0]),
        draw_uniform_int(position, seed, "overlap", len(_OVERLAPS) + 1),
    )
    windows, good = _draw_windows(boxes, overlap, position, seed)
    window = tf.cond(
        tf.reduce_any(good),
        lambda: windows[tf.argmax(tf.cast(good, tf.int32))],
        lambda: tf.constant([0.0, 0.0, 1.0, 1.0]),
    )
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    begin = tf.cast(window[:2] * sides, tf.int32)
    end = tf.maximum(tf.cast(window[2:] * sides, tf.int32), begin + 1)
    part = image[begin[0] : end[0], begin[1] : end[1]]
    # The boxes must match the pixels that are cut out, so the window is rounded to whole pixels
    # before they are computed.
    window = tf.concat([tf.cast(begin, tf.float32) / sides, tf.cast(end, tf.float32) / sides], 0)
    kept = _contain_centres(window[tf.newaxis], boxes)[0]
    origin, extent = tf.tile(window[:2], [2]), tf.tile(window[2:] - window[:2], [2])
    return part, tf.clip_by_value((boxes - origin) / extent, 0.0, 1.0), kept


def _draw_windows(boxes: Any, overlap: Any, position: Any, seed: int) -> tuple[Any, Any]:
    """Draws random windows of an image, [tries, 4]. Also returns, as bool [tries], which of the
    windows `crop_to_random_window` may use.
    """
    drawn = tf.random.stateless_uniform([4, CROP_TRIES], stateless_seed(position, seed, "window"))
    height, width = (_SMALLEST_SIDE + (1 - _SMALLEST_SIDE) * side for side in tf.unstack(drawn[:2]))
    top, left = drawn[2] * (1 - height), drawn[3] * (1 - width)
    windows = tf.stack([top, left, top + height, left + width], axis=1)
    aspect = height / width
    held = _contain_centres(windows, boxes)
    fits = tf.reduce_all(~held | (intersection_over_union(windows, boxes) >= overlap), axis=1)
    shaped = (aspect >= _ASPECTS[0]) & (aspect <= _ASPECTS[1])
    return windows, shaped & tf.reduce_any(held, axis=1) & fits & (overlap <= 1)


def _contain_centres(windows: Any, boxes: Any) -> Any:
    """Returns which windows contain the centres of which boxes: bool [windows, boxes]."""
    centres = (boxes[None, :, :2] + boxes[None, :, 2:]) / 2
    inside = (centres > windows[:, None, :2]) & (centres < windows[:, None, 2:])
    return tf.reduce_all(inside, axis=-1)


# Conversion of COCO's published images and annotations into TFRecord files

LABELS_FILE = "coco-labels.txt"
MAX_CLASSES = 80
_PUBLISHED = {"train": "train", "validation": "val"}
# Some published boxes are rounded and end slightly outside of the image; they are accepted.
_SLACK = 1.0


CocoImage: TypeAlias = tuple[Path, int, Sequence[CocoObject]]
"""Image file, number of the image in the annotations, and objects in the image."""


class CocoAnnotations(NamedTuple):
    """Content of COCO's annotation files: the names of the classes by label (from 1), and the
    images by subset.

    `without_boxes` is the number of training images without objects, and `empty_boxes` the number
    of boxes without area. Both are left out.
    """

    classes: tuple[str, ...]
    subsets: Mapping[str, Sequence[CocoImage]]
    without_boxes: int
    empty_boxes: int


def read_annotations(source: Path) -> CocoAnnotations:
    """Reads COCO's annotations: ``annotations/instances_train*.json`` and ``instances_val*.json``
    in a folder.

    The images for ``instances_train2017.json`` are in the subfolder ``train2017``, and so on.
    """
    subsets: dict[str, Sequence[CocoImage]] = {}
    categories: dict[int, str] | None = None
    without_boxes = empty_boxes = 0
    for subset, name in _PUBLISHED.items():
        path = _find_annotations(source, name)
        if path is None:
            continue
        content = _read_annotations(path)
        with converting_parse_errors(path, "annotations"):
            own = _categories(path, content)
            labels = {number: label for label, number in enumerate(sorted(own), start=1)}
            images, empty = _images_with_objects(path, content, source, labels)
        if categories not in (None, own):
            raise UsageError(
                f"{path}: its categories differ from those of the training annotations"
            )
        categories = own
        empty_boxes += empty
        if subset == "train":
            kept = [
                (file, number, objects)
                for file, number, objects in images
                if any(not coco_object.is_crowd for coco_object in objects)
            ]
            without_boxes = len(images) - len(kept)
            images = kept
        subsets[subset] = images
    if categories is None:
        raise UsageError(f"{source}: contains neither annotations/instances_train*.json nor _val*")
    if not any(subsets.values()):
        raise UsageError(f"{source}: the annotations name no image with a box")
    classes = tuple(categories[number] for number in sorted(categories))
    return CocoAnnotations(classes, subsets, without_boxes, empty_boxes)


def write_coco(dataset: CocoAnnotations, out: Path, shards: Mapping[str, int], seed: int) -> None:
    """Writes the TFRecord files ``coco-<subset>-*-of-*``, and the class names as
    ``coco-labels.txt``; see `folder.write_dataset_files`.
    """

    def write_coco_file(path: Path, images: Sequence[CocoImage]) -> int:
        made = [
            (file, partial(serialize, source_id=number, name=file.name, objects=objects))
            for file, number, objects in images
        ]
        return write_images(path, made)

    subsets = {
        subset: random.Random(seed).sample(images, len(images))
        for subset, images in dataset.subsets.items()
    }
    labels = {LABELS_FILE: ["background", *dataset.classes]}
    output.write_dataset_files(out, PREFIX, subsets, shards, write_coco_file, labels)


def _find_annotations(source: Path, name: str) -> Path | None:
    if not source.is_dir():
        raise UsageError(f"{source}: there is no such folder")
    files = sorted((source / "annotations").glob(f"instances_{name}*.json"))
    if len(files) > 1:
        raise UsageError(
            f"{source}: has both {files[0].name} and {files[1].name}; remove one of them"
        )
    return files[0] if files else None


def _read_annotations(path: Path) -> Any:
    content = read_json(path)
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{path}: contains no list {key!r}")
    return content


def _categories(path: Path, content: Any) -> dict[int, str]:
    names_by_id: dict[int, str] = {}
    for category in content["categories"]:
        try:
            names_by_id[int(category["id"])] = str(category["name"])
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: {category!r:.80} is not a category: {error}") from error
        check_class_name("category", names_by_id[int(category["id"])])
    if len(names_by_id) > MAX_CLASSES:
        raise UsageError(f"{len(names_by_id)} categories, but at most {MAX_CLASSES} are possible")
    return names_by_id


def _images_with_objects(
    path: Path, content: Any, source: Path, labels: Mapping[int, int]
) -> tuple[list[CocoImage], int]:
    folder = source / path.stem.partition("_")[2]
    files: dict[int, Path] = {}
    sizes: dict[int, tuple[int, int]] = {}
    objects: defaultdict[int, list[CocoObject]] = defaultdict(list)
    empty = 0
    entry: Any = None
    try:
        for entry in content["images"]:
            name = str(entry["file_name"])
            if os.path.basename(name) != name or name in ("", ".", ".."):
                raise ValueError(f"{name!r} is not a file name in {folder}")
            files[int(entry["id"])] = folder / name
            sizes[int(entry["id"])] = (int(entry["height"]), int(entry["width"]))
        for entry in content["annotations"]:
            made = _to_object(path, entry, sizes, labels)
            if made is None:
                empty += 1
            else:
                objects[int(entry["image_id"])].append(made)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {entry!r:.80} is not a valid entry: {error}") from error
    for number, file in files.items():
        if not file.is_file():
            raise DataError(f"{path}: image {number}: there is no file {file}")
        if len(objects[number]) > MAX_BOXES:
            raise DataError(f"{path}: image {number}: more than {MAX_BOXES} boxes")
    return [(file, number, objects[number]) for number, file in files.items()], empty


def _to_object(
    path: Path, annotation: Any, sizes: Mapping[int, tuple[int, int]], labels: Mapping[int, int]
) -> CocoObject | None:
    """Converts an annotation of COCO to an object; None if its box has no area."""
    where = f"{path}: annotation {annotation['id']}"
    if int(annotation["image_id"]) not in sizes:
        raise DataError(f"{where}: there is no image {annotation['image_id']}")
    if int(annotation["category_id"]) not in labels:
        raise DataError(f"{where}: there is no category {annotation['category_id']}")
    height, width = sizes[int(annotation["image_id"])]
    left, top, across, down = map(float, annotation["bbox"])
    inside = left >= -_SLACK and left + across <= width + _SLACK
    inside = inside and top >= -_SLACK and top + down <= height + _SLACK
    if not inside or across < 0 or down < 0:
        raise DataError(
            f"{where}: box {annotation['bbox']} is outside its image of {width}x{height}"
        )
    sides = (top / height, left / width, (top + down) / height, (left + across) / width)
    box = tuple(min(max(side, 0.0), 1.0) for side in sides)
    if box[0] >= box[2] or box[1] >= box[3]:
        return None
    label = labels[int(annotation["category_id"])]
    return CocoObject(label, (box[0], box[1], box[2], box[3]), bool(annotation.get("iscrowd", 0)))
