"""Turning a folder of images into TFRecord files with the layout of ImageNet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from cnnbench.data.dataset import IMAGENET, SUBSETS
from cnnbench.data.image_folder import ImageFile, ImageFolder
from cnnbench.data.imagenet_records import DECODING, serialize
from cnnbench.errors import DataError, UsageError

LABELS_FILE = "labels.txt"
_MAX_CLASSES = IMAGENET.num_classes - 1
_UNFINISHED = "unfinished-"
_CHUNK = 64


@dataclass(frozen=True)
class Made:
    """What was written: images per subset, classes, and how many images were re-encoded."""

    images: dict[str, int]
    classes: int
    reencoded: int


def make_imagenet(found: ImageFolder, out: Path, shards: dict[str, int]) -> Made:
    """Writes ``<subset>-*-of-*`` and ``labels.txt``.

    RGB JPEGs are stored as they are. PNGs, and grey or CMYK JPEGs, become RGB JPEGs of quality
    100. The files take their final names when all are written, so that a run that is cut
    short leaves nothing that looks like a data set.

    Args:
      found: the images and their classes.
      out: where the files go; created if missing.
      shards: files per subset; a subset never gets more files than it has images.

    Raises:
      UsageError: too many classes, or ``out`` holds such files already.
      DataError: an image that cannot be decoded; names the file.
    """
    if len(found.classes) > _MAX_CLASSES:
        raise UsageError(f"{len(found.classes)} classes, but at most {_MAX_CLASSES} fit")
    out.mkdir(parents=True, exist_ok=True)
    for subset in SUBSETS:
        existing = min(out.glob(f"{subset}-*-of-*"), default=None)
        if existing:
            raise UsageError(f"{out}: holds {existing.name} already; name another folder")
    written: list[Path] = []
    reencoded = 0
    try:
        for subset in SUBSETS:
            for name, files in _shards(subset, found.subsets[subset], shards[subset]):
                written.append(out / f"{_UNFINISHED}{name}")
                reencoded += _write_shard(written[-1], files)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    _write_labels(out / LABELS_FILE, found)
    for path in written:
        path.replace(path.with_name(path.name.removeprefix(_UNFINISHED)))
    images = {subset: len(files) for subset, files in found.subsets.items()}
    return Made(images, len(found.classes), reencoded)


def _shards(
    subset: str, files: list[ImageFile], count: int
) -> Iterator[tuple[str, list[ImageFile]]]:
    """Names and contents of the files of a subset, equal in length up to one image."""
    count = min(count, len(files))
    for i in range(count):
        begin, end = (len(files) * k // count for k in (i, i + 1))
        yield f"{subset}-{i:05d}-of-{count:05d}", files[begin:end]


def _write_shard(path: Path, files: list[ImageFile]) -> int:
    """Writes one file; returns how many images had to be encoded anew."""
    reencoded = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool, tf.io.TFRecordWriter(str(path)) as writer:
        # In chunks, because the pool would read ahead of the writer without bounds.
        for begin in range(0, len(files), _CHUNK):
            part = files[begin : begin + _CHUNK]
            images = pool.map(rgb_jpeg, (file.path for file in part))
            for file, image in zip(part, images, strict=True):
                reencoded += image.reencoded
                writer.write(_record(file, image))
    return reencoded


def _record(file: ImageFile, image: RgbJpeg) -> bytes:
    of = file.image_class
    return serialize(
        image.jpeg, image.height, image.width, of.label, file.path.name, of.name, of.text
    )


@dataclass(frozen=True)
class RgbJpeg:
    """An image as an RGB JPEG, its size in pixels, and whether it was something else before."""

    jpeg: bytes
    height: int
    width: int
    reencoded: bool


def rgb_jpeg(path: Path) -> RgbJpeg:
    """Reads an image file as an RGB JPEG; what it is, its content tells and not its name.

    An alpha channel is dropped.

    Raises:
      DataError: not a JPEG or PNG, or damaged; names the file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    with tf.device("CPU:0"):
        is_jpeg = bool(tf.io.is_jpeg(content))
        if not is_jpeg and not content.startswith(b"\x89PNG\r\n\x1a\n"):
            raise DataError(f"{path}: is neither a JPEG nor a PNG")
        try:
            image: Any = (
                tf.io.decode_jpeg(content, **DECODING)
                if is_jpeg
                else tf.io.decode_png(content, channels=3)
            )
            keep = is_jpeg and int(tf.image.extract_jpeg_shape(content)[2]) == 3
        except tf.errors.InvalidArgumentError as error:
            kind = "JPEG" if is_jpeg else "PNG"
            raise DataError(f"{path}: the {kind} cannot be decoded") from error
        if not keep:
            if is_jpeg:
                image = tf.io.decode_jpeg(content, channels=3, dct_method="INTEGER_ACCURATE")
            content = bytes(
                tf.io.encode_jpeg(
                    image, format="rgb", quality=100, chroma_downsampling=False
                ).numpy()
            )
    return RgbJpeg(content, int(image.shape[0]), int(image.shape[1]), not keep)


def _write_labels(path: Path, found: ImageFolder) -> None:
    """One class per line; the line number, from 0, is the label."""
    lines = ["background", *(_label_line(c.name, c.text) for c in found.classes)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _label_line(name: str, text: str) -> str:
    return name if text == name else f"{name} {text}"
