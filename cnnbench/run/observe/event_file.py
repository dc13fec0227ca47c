"""Event files of TensorBoard.

An event file is a TFRecord file of `Event` messages. The dashboard's name and the shape of the
tensor determine whether a value is a scalar, histogram or image. `tf.summary` is not used, because
it cannot write the events that hide the values of an earlier run. Functions such as
`tf.summary.scalar` also need the package tensorboard, which TensorFlow no longer installs.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from cnnbench.base.urls import local_or_url_path
from cnnbench.records.files import collecting_write_errors
from cnnbench.run.observe.messages import message_class

_BUCKETS = 30
_MOST_IMAGES = 3
# Values of the enumeration DataClass in TensorBoard's protocol buffers: how to show a summary.
_SCALAR, _TENSOR, _BLOBS = 1, 2, 3
# Value of the enumeration SessionLog.SessionStatus in TensorFlow's protocol buffers.
_SESSION_START = 1


class EventFile:
    """Writes a TensorBoard event file, which is created with its first value."""

    def __init__(self, flag: str, folder: str) -> None:
        self._flag = flag
        self._folder = folder
        self._writer: Any = None
        self._start: int | None = None

    def hide_events_from(self, step: int) -> None:
        """Hides events of an earlier run from this step on, when the next value is written."""
        self._start = step if self._start is None else min(step, self._start)

    def scalar(self, tag: str, value: float | None, step: int) -> None:
        """Writes a number with a tag, which is the name of its chart; nothing for None."""
        if value is not None:
            self._write(tag, np.float32(value), step, "scalars", _SCALAR)

    def histogram(self, tag: str, values: npt.ArrayLike, step: int) -> None:
        """Writes a histogram of the finite values."""
        self._write(tag, histogram_buckets(values), step, "histograms", _TENSOR)

    def images(self, tag: str, images: npt.ArrayLike, step: int) -> None:
        """Writes the first images of a batch, [n, height, width, channels] with 1, 3 or 4 channels.

        Each image is scaled so that its smallest value is black and its largest value is white.
        """
        rows = np.asarray(images, np.float64)[:_MOST_IMAGES]
        height, width = rows.shape[1:3]
        content = [str(width).encode(), str(height).encode()]
        for row in rows:
            shown = np.nan_to_num(row)
            low, high = shown.min(), shown.max()
            scaled = np.round((shown - low) * (255.0 / max(high - low, 1e-12)))
            content.append(tf.io.encode_png(scaled.astype(np.uint8)).numpy())
        self._write(tag, content, step, "images", _BLOBS)

    def flush(self) -> None:
        """Writes buffered values to disk."""
        if self._writer is not None:
            with collecting_write_errors(self._flag, self._folder, tf.errors.OpError):
                self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        if self._writer is not None:
            with collecting_write_errors(self._flag, self._folder, tf.errors.OpError):
                self._writer.close()

    def _write(self, tag: str, value: Any, step: int, dashboard: str, data_class: int) -> None:
        tensor = tf.make_tensor_proto(value).SerializeToString()
        metadata = {"plugin": {"name": dashboard.encode()}, "data_class": data_class}
        summary = message_class("Summary")()
        summary.values.add(tag=tag.encode(), metadata=metadata).tensor.MergeFromString(tensor)
        with collecting_write_errors(self._flag, self._folder, tf.errors.OpError):
            if self._writer is None:
                local_or_url_path(self._folder).mkdir(parents=True, exist_ok=True)
                # TensorBoard reads the files of a folder in the order of their names, so a later
                # file gets a later name.
                host = f"{socket.gethostname()}.{os.getpid()}"
                name = f"events.out.tfevents.{time.time():017.6f}.{host}"
                self._writer = tf.io.TFRecordWriter(os.path.join(self._folder, name))
                self._write_event(file_version=b"brain.Event:2")
            if self._start is not None:
                self._write_event(step=min(self._start, step), session={"status": _SESSION_START})
                self._start = None
            self._write_event(step=step, summary=summary)

    def _write_event(self, **fields: Any) -> None:
        event = message_class("Event")(wall_time=time.time(), **fields)
        self._writer.write(event.SerializeToString())


def histogram_buckets(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Counts finite values in buckets: rows with left edge, right edge and count."""
    # No copy in double precision is made, because allocating memory for it takes time.
    flat = np.asarray(values).ravel()
    finite = np.isfinite(flat)
    if not finite.all():
        flat = flat[finite]
    if not flat.size:
        return np.zeros((0, 3))
    is_constant = flat.min() == flat.max()
    counts, edges = np.histogram(flat, 1 if is_constant else _BUCKETS)
    columns = (edges[:-1], edges[1:], counts)
    return np.stack([column.astype(np.float64) for column in columns], axis=1)
