"""Conversion of a folder of images into TFRecord files with the layout of ImageNet."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from cnnbench.data import output
from cnnbench.data.dataset import SUBSETS
from cnnbench.data.findings import RecordDefect
from cnnbench.data.folder import content_of
from cnnbench.data.image_folder import ImageFile, ImageFolder
from cnnbench.data.imagenet import check_size, serialize
from cnnbench.data.open import IMAGENET
from cnnbench.errors import DataError, UsageError, first_line

LABELS_FILE = "labels.txt"
_MAX_CLASSES = IMAGENET.num_classes - 1
_CHUNK = 64


def make_imagenet(found: ImageFolder, out: Path, shards: dict[str, int]) -> int:
    """Writes ``<subset>-*-of-*`` and ``labels.txt`` to a folder, which is created if missing.

    RGB JPEGs are stored unchanged. PNGs, and grey or CMYK JPEGs, become RGB JPEGs of quality 100.
    The files are moved from a temporary folder inside ``out`` when all are complete, so that an
    interrupted run leaves nothing that looks like a data set. A subset has as many files as
    `shards` says, but at most as many as images. Returns the number of re-encoded images.
    """
    if len(found.classes) > _MAX_CLASSES:
        raise UsageError(f"{len(found.classes)} classes, but at most {_MAX_CLASSES} fit")
    written: list[Path] = []
    reencoded = 0
    with output.unfinished_folder(out, [f"{subset}-*-of-*" for subset in SUBSETS]) as unfinished:
        for subset in SUBSETS:
            for name, files in output.shards(subset, found.subsets[subset], shards[subset]):
                written.append(unfinished / name)
                reencoded += write_images(
                    written[-1], [(f.path, partial(_record, f)) for f in files]
                )
        labels = unfinished / LABELS_FILE
        lines = ["background"]  # the line number, from 0, is the label
        lines += [c.name if c.text == c.name else f"{c.name} {c.text}" for c in found.classes]
        with output.writing(labels):
            text = "\n".join(lines) + "\n"
            labels.write_text(text, encoding="utf-8", errors="surrogateescape")
        # Labels last, for they may replace a file that was there before.
        output.move([*written, labels], out, replacing=(LABELS_FILE,))
    return reencoded


def write_images(path: Path, files: Sequence[tuple[Path, Callable[[RgbJpeg], bytes]]]) -> int:
    """Writes the records that are made of images; returns the number of re-encoded ones."""
    reencoded = 0
    with (
        output.writing(path, tf.errors.OpError),
        ThreadPoolExecutor(os.cpu_count()) as pool,
        tf.io.TFRecordWriter(str(path)) as writer,
    ):
        # In chunks, because the pool would read ahead of the writer without bounds.
        for begin in range(0, len(files), _CHUNK):
            part = files[begin : begin + _CHUNK]
            images = pool.map(rgb_jpeg, (source for source, _ in part))
            for (_, record), image in zip(part, images, strict=True):
                reencoded += image.reencoded
                writer.write(record(image))
    return reencoded


def _record(file: ImageFile, image: RgbJpeg) -> bytes:
    of = file.image_class
    return serialize(
        image.jpeg, image.height, image.width, of.label, file.path.name, of.name, of.text
    )


@dataclass(frozen=True)
class RgbJpeg:
    """An image as an RGB JPEG, its size in pixels, and whether it was re-encoded."""

    jpeg: bytes
    height: int
    width: int
    reencoded: bool


def rgb_jpeg(path: Path) -> RgbJpeg:
    """Reads an image file, JPEG or PNG by its content, as an RGB JPEG without alpha channel."""
    content = content_of(path)
    with tf.device("CPU:0"):
        is_jpeg = bool(tf.io.is_jpeg(content))
        if not is_jpeg and not content.startswith(b"\x89PNG\r\n\x1a\n"):
            raise DataError(f"{path}: is neither a JPEG nor a PNG")
        image: Any
        try:
            if is_jpeg:
                shape = tf.io.extract_jpeg_shape(content)
                check_size(shape)
                keep = int(shape[2]) == 3
                method = "" if keep else "INTEGER_ACCURATE"
                image = tf.io.decode_jpeg(content, channels=3, dct_method=method)
            else:
                keep = False
                image = tf.io.decode_png(content, channels=3)
                check_size(image.shape)
        except RecordDefect as defect:
            raise DataError(f"{path}: {defect}") from None
        except tf.errors.OpError as error:
            kind = "JPEG" if is_jpeg else "PNG"
            raise DataError(f"{path}: the {kind} cannot be decoded") from error
        if not keep:
            content = _encoded(path, image)
    return RgbJpeg(content, int(image.shape[0]), int(image.shape[1]), not keep)


def _encoded(path: Path, image: Any) -> bytes:
    try:
        jpeg = tf.io.encode_jpeg(image, format="rgb", quality=100, chroma_downsampling=False)
    except tf.errors.OpError as error:  # JPEGs end at 65,500 pixels
        raise DataError(f"{path}: cannot become a JPEG: {first_line(error)}") from error
    return bytes(jpeg.numpy())
