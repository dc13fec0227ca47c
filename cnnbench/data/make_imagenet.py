"""Conversion of a folder of images into TFRecord files with the layout of ImageNet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from cnnbench.data import output
from cnnbench.data.findings import RecordDefect
from cnnbench.data.folder import content_of
from cnnbench.data.image_folder import ImageClass, ImageFolder
from cnnbench.data.imagenet import check_size, serialize
from cnnbench.data.open import IMAGENET
from cnnbench.errors import DataError, UsageError, first_line

LABELS_FILE = "labels.txt"
_MAX_CLASSES = IMAGENET.num_classes - 1
_CHUNK = 64


def make_imagenet(found: ImageFolder, out: Path, shards: Mapping[str, int]) -> int:
    """Writes ``<subset>-*-of-*`` and ``labels.txt``; see `output.write_set`.

    RGB JPEGs are stored unchanged. PNGs, and grey or CMYK JPEGs, become RGB JPEGs of quality 100.
    Returns the number of re-encoded images.
    """
    if len(found.classes) > _MAX_CLASSES:
        raise UsageError(f"{len(found.classes)} classes, but at most {_MAX_CLASSES} fit")

    def write(path: Path, files: Sequence[tuple[Path, ImageClass]]) -> int:
        made = [
            (file, partial(serialize, label=c.label, name=file.name, synset=c.name, text=c.text))
            for file, c in files
        ]
        return write_images(path, made)

    lines = ["background"]  # the line number, from 0, is the label
    lines += [c.name if c.text == c.name else f"{c.name} {c.text}" for c in found.classes]
    return sum(output.write_set(out, "", found.subsets, shards, write, {LABELS_FILE: lines}))


def write_images(
    path: Path, files: Sequence[tuple[Path, Callable[[bytes, int, int], bytes]]]
) -> int:
    """Writes a file of records, each made of an image's JPEG, height and width.

    Returns the number of re-encoded images.
    """
    count = 0
    with (
        output.writing(path, tf.errors.OpError),
        ThreadPoolExecutor(os.cpu_count()) as pool,
        tf.io.TFRecordWriter(str(path)) as writer,
    ):
        # In chunks, because the pool would read ahead of the writer without bounds.
        for begin in range(0, len(files), _CHUNK):
            part = files[begin : begin + _CHUNK]
            images = pool.map(rgb_jpeg, (source for source, _ in part))
            for (_, record), (jpeg, height, width, reencoded) in zip(part, images, strict=True):
                count += reencoded
                writer.write(record(jpeg, height, width))
    return count


def rgb_jpeg(path: Path) -> tuple[bytes, int, int, bool]:
    """Reads an image file, JPEG or PNG by its content, as an RGB JPEG without alpha channel.

    Returns the JPEG, its height and width, and whether it was re-encoded.
    """
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
            try:
                encoded = tf.io.encode_jpeg(
                    image, format="rgb", quality=100, chroma_downsampling=False
                )
            except tf.errors.OpError as error:  # JPEGs end at 65,500 pixels
                raise DataError(f"{path}: cannot become a JPEG: {first_line(error)}") from error
            content = bytes(encoded.numpy())
    return content, int(image.shape[0]), int(image.shape[1]), not keep
