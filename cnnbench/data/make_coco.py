"""Conversion of COCO's published images and annotations into TFRecord files."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from cnnbench.base.reading import document, read_json
from cnnbench.data import output
from cnnbench.data.coco import PREFIX, CocoObject, serialize
from cnnbench.data.image_folder import check_name
from cnnbench.data.make_imagenet import write_images
from cnnbench.errors import DataError, UsageError
from cnnbench.models.networks.ssd import MAX_BOXES

LABELS_FILE = "coco-labels.txt"
MAX_CLASSES = 80
_PUBLISHED = {"train": "train", "validation": "val"}
# Boxes are rounded to hundredths of a pixel; some end just outside of their image.
_SLACK = 1.0


CocoImage: TypeAlias = tuple[Path, int, Sequence[CocoObject]]
"""An image file, its number in the annotations, and its objects."""


@dataclass(frozen=True)
class Coco:
    """Content of annotation files: classes by label from 1, and images of the existing subsets.

    `without_boxes` counts training images without objects, and `empty_boxes` boxes without an area;
    both are left out.
    """

    classes: tuple[str, ...]
    subsets: Mapping[str, Sequence[CocoImage]]
    without_boxes: int
    empty_boxes: int


def read_annotations(source: Path) -> Coco:
    """Reads ``annotations/instances_train*.json`` and ``instances_val*.json`` of a folder.

    The images are in folders beside: ``train2017`` for ``instances_train2017.json``.
    """
    subsets: dict[str, Sequence[CocoImage]] = {}
    categories: dict[int, str] | None = None
    without_boxes = empty_boxes = 0
    for subset, name in _PUBLISHED.items():
        path = _find(source, name)
        if path is None:
            continue
        content = _load(path)
        with document(path, "annotations"):
            own = _categories(path, content)
            labels = {number: label for label, number in enumerate(sorted(own), start=1)}
            images, empty = _images(path, content, source, labels)
        if categories not in (None, own):
            raise UsageError(f"{path}: has other categories than the annotations for training")
        categories = own
        empty_boxes += empty
        if subset == "train":
            kept = [
                (file, number, objects)
                for file, number, objects in images
                if any(not one.is_crowd for one in objects)
            ]
            without_boxes = len(images) - len(kept)
            images = kept
        subsets[subset] = images
    if categories is None:
        raise UsageError(f"{source}: holds neither annotations/instances_train*.json nor _val*")
    if not any(subsets.values()):
        raise UsageError(f"{source}: the annotations name no image with a box")
    classes = tuple(categories[number] for number in sorted(categories))
    return Coco(classes, subsets, without_boxes, empty_boxes)


def make_coco(found: Coco, out: Path, shards: Mapping[str, int], seed: int) -> None:
    """Writes ``coco-<subset>-*-of-*`` and ``coco-labels.txt``; see `output.write_set`."""

    def write(path: Path, images: Sequence[CocoImage]) -> int:
        made = [
            (file, partial(serialize, source_id=number, name=file.name, objects=objects))
            for file, number, objects in images
        ]
        return write_images(path, made)

    subsets = {
        subset: random.Random(seed).sample(images, len(images))
        for subset, images in found.subsets.items()
    }
    labels = {LABELS_FILE: ["background", *found.classes]}
    output.write_set(out, PREFIX, subsets, shards, write, labels)


def _find(source: Path, name: str) -> Path | None:
    if not source.is_dir():
        raise UsageError(f"{source}: there is no such folder")
    found = sorted((source / "annotations").glob(f"instances_{name}*.json"))
    if len(found) > 1:
        raise UsageError(f"{source}: has {found[0].name} and {found[1].name}; leave one of them")
    return found[0] if found else None


def _load(path: Path) -> Any:
    content = read_json(path)
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{path}: holds no list {key!r}")
    return content


def _categories(path: Path, content: Any) -> dict[int, str]:
    found: dict[int, str] = {}
    for one in content["categories"]:
        try:
            found[int(one["id"])] = str(one["name"])
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: {one!r:.80} is no category: {error}") from error
        check_name("category", found[int(one["id"])])
    if len(found) > MAX_CLASSES:
        raise UsageError(f"{len(found)} categories, but at most {MAX_CLASSES} fit")
    return found


def _images(
    path: Path, content: Any, source: Path, labels: Mapping[int, int]
) -> tuple[list[CocoImage], int]:
    folder = source / path.stem.partition("_")[2]
    files: dict[int, Path] = {}
    sizes: dict[int, tuple[int, int]] = {}
    objects: defaultdict[int, list[CocoObject]] = defaultdict(list)
    empty = 0
    one: Any = None
    try:
        for one in content["images"]:
            name = str(one["file_name"])
            if os.path.basename(name) != name or name in ("", ".", ".."):
                raise ValueError(f"{name!r} is no name of a file in {folder}")
            files[int(one["id"])] = folder / name
            sizes[int(one["id"])] = (int(one["height"]), int(one["width"]))
        for one in content["annotations"]:
            made = _object(path, one, sizes, labels)
            if made is None:
                empty += 1
            else:
                objects[int(one["image_id"])].append(made)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {one!r:.80} is no entry: {error}") from error
    for number, file in files.items():
        if not file.is_file():
            raise DataError(f"{path}: image {number}: there is no file {file}")
        if len(objects[number]) > MAX_BOXES:
            raise DataError(f"{path}: image {number}: more than {MAX_BOXES} boxes")
    return [(file, number, objects[number]) for number, file in files.items()], empty


def _object(
    path: Path, one: Any, sizes: Mapping[int, tuple[int, int]], labels: Mapping[int, int]
) -> CocoObject | None:
    """An object of an annotation; None if its box has no area."""
    where = f"{path}: annotation {one['id']}"
    if int(one["image_id"]) not in sizes:
        raise DataError(f"{where}: there is no image {one['image_id']}")
    if int(one["category_id"]) not in labels:
        raise DataError(f"{where}: there is no category {one['category_id']}")
    height, width = sizes[int(one["image_id"])]
    left, top, across, down = map(float, one["bbox"])
    inside = left >= -_SLACK and left + across <= width + _SLACK
    inside = inside and top >= -_SLACK and top + down <= height + _SLACK
    if not inside or across < 0 or down < 0:
        raise DataError(f"{where}: box {one['bbox']} is outside its image of {width}x{height}")
    sides = (top / height, left / width, (top + down) / height, (left + across) / width)
    box = tuple(min(max(side, 0.0), 1.0) for side in sides)
    if box[0] >= box[2] or box[1] >= box[3]:
        return None
    label = labels[int(one["category_id"])]
    return CocoObject(label, (box[0], box[1], box[2], box[3]), bool(one.get("iscrowd", 0)))
