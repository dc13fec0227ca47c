"""Event files that `tensorboard --logdir` shows.

`tf.summary.write` takes any tensor; the dashboard's name and the tensor's form make it a scalar,
histogram or image. `tf.summary.scalar` and its like need the package tensorboard, which TensorFlow
no longer installs.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from cnnbench.errors import BenchmarkError, first_line
from cnnbench.run.observe.protobuf import field_of

_BUCKETS = 30
_MOST_IMAGES = 3
# Numbers of fields of SummaryMetadata and its PluginData, and values of DataClass.
_PLUGIN, _PLUGIN_NAME, _DATA_CLASS = 1, 1, 4
_SCALAR, _TENSOR, _BLOBS = 1, 2, 3


class EventFile:
    """An event file, created in a folder when the first value is written."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writer: tf.summary.SummaryWriter | None = None

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Writes a number."""
        self._write(tag, tf.constant(value, tf.float32), step, "scalars", _SCALAR)

    def histogram(self, tag: str, values: npt.ArrayLike, step: int) -> None:
        """Writes a histogram of the finite values."""
        self._write(tag, tf.constant(buckets(values)), step, "histograms", _TENSOR)

    def images(self, tag: str, images: npt.ArrayLike, step: int) -> None:
        """Writes the first images of a batch, [n, height, width, channels] of 1, 3 or 4 channels.

        Each is scaled so that its least value is black and its greatest white.
        """
        rows = np.asarray(images, np.float64)[:_MOST_IMAGES]
        height, width = rows.shape[1:3]
        content = [str(width), str(height)]
        for row in rows:
            shown = np.nan_to_num(row)
            low, high = shown.min(), shown.max()
            scaled = np.round((shown - low) * (255.0 / max(high - low, 1e-12)))
            content.append(tf.io.encode_png(scaled.astype(np.uint8)).numpy())
        self._write(tag, tf.constant(content), step, "images", _BLOBS)

    def flush(self) -> None:
        """Writes buffered values to disk."""
        if self._writer is not None:
            try:
                self._writer.flush()
            except (tf.errors.OpError, OSError) as error:
                raise BenchmarkError(
                    f"no summaries could be written to {self._folder}: {first_line(error)}"
                ) from error

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, tag: str, value: Any, step: int, dashboard: str, data_class: int) -> None:
        if self._writer is None:
            os.makedirs(self._folder, exist_ok=True)
            self._writer = tf.summary.create_file_writer(self._folder)
        plugin = field_of(_PLUGIN_NAME, dashboard.encode())
        metadata = field_of(_PLUGIN, plugin) + field_of(_DATA_CLASS, data_class)
        with self._writer.as_default():
            tf.summary.write(tag, value, step=step, metadata=metadata)


def buckets(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The histogram of finite values: rows of left edge, right edge and count."""
    # Without copies in double precision, for which the system would have to map memory.
    flat = np.asarray(values).ravel()
    finite = np.isfinite(flat)
    if not finite.all():
        flat = flat[finite]
    if not flat.size:
        return np.zeros((0, 3))
    one = flat.min() == flat.max()
    counts, edges = np.histogram(flat, 1 if one else _BUCKETS)
    columns = (edges[:-1], edges[1:], counts)
    return np.stack([column.astype(np.float64) for column in columns], axis=1)
