"""Images written in the two file forms of CIFAR-10."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np


def write_cifar10(directory, images, labels, *, subset="train", form="python", files=5):
    """Writes images as data_batch_* or test_batch files.

    Args:
      directory: created if missing.
      images: uint8 [n, 32, 32, 3].
      labels: integers [n] in [0, 255].
      subset: "train" or "validation" (one file).
      form: "python" or "binary".
      files: over how many files training images are spread; at most n.

    Returns:
      The paths written.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    names = ["test_batch"]
    if subset == "train":
        names = [f"data_batch_{i + 1}" for i in range(min(files, len(images)))]
    flat = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    written = []
    for name, rows, values in zip(
        names, np.array_split(flat, len(names)), np.array_split(labels, len(names)), strict=True
    ):
        path = directory / (name if form == "python" else f"{name}.bin")
        path.write_bytes(_pickled(name, rows, values) if form == "python" else _bytes(rows, values))
        written.append(path)
    return written


def _pickled(name, rows, labels):
    batch = {
        b"batch_label": name.encode(),
        b"labels": [int(label) for label in labels],
        b"data": np.ascontiguousarray(rows),
        b"filenames": [f"{name}_{i}.png".encode() for i in range(len(rows))],
    }
    return pickle.dumps(batch, protocol=2)


def _bytes(rows, labels):
    return np.concatenate([labels.astype(np.uint8)[:, None], rows], axis=1).tobytes()
