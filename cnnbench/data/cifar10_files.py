"""The two file formats of CIFAR-10: Python pickles and fixed-size binary records.

Python: ``data_batch_1`` .. ``data_batch_5`` and ``test_batch``, each a pickled dict with ``data``
(uint8 [n, 3072], channels first) and ``labels``. Binary: the same names with ``.bin``, each record
one label byte and 3072 image bytes. See https://www.cs.toronto.edu/~kriz/cifar.html. No TensorFlow
here.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnnbench.base.annotations import shown
from cnnbench.data import safe_pickle
from cnnbench.data.findings import Findings, ImageFacts, ImageTally
from cnnbench.data.folder import content_of, once_per_content, readable
from cnnbench.errors import DataError, FlagError

SIZE = 32
CHANNELS = 3
_IMAGE_BYTES = SIZE * SIZE * CHANNELS
_RECORD_BYTES = 1 + _IMAGE_BYTES

_FOLDERS = ("", "cifar-10-batches-py", "cifar-10-batches-bin")
_NAMES = {
    "train": re.compile(r"data_batch_(\d+)(\.bin)?"),
    "validation": re.compile(r"test_batch()(\.bin)?"),
}

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]


def find_files(data_dir: str, subset: str) -> list[Path]:
    """Files of a subset, in order of their numbers, from the first folder that has any.

    Searches ``data_dir``, then its ``cifar-10-batches-py`` and ``cifar-10-batches-bin``; pickles
    are preferred where a folder holds both formats.
    """
    root = Path(data_dir)
    with readable(data_dir):
        for folder in _FOLDERS:
            found = _matches(root / folder, subset)
            if found:
                return found
    wanted = "data_batch_* or data_batch_*.bin" if subset == "train" else "test_batch[.bin]"
    raise FlagError(
        "data_dir", data_dir, f"holds no CIFAR-10 {subset} files ({wanted}), nor do its sub-folders"
    )


def _matches(folder: Path, subset: str) -> list[Path]:
    if not folder.is_dir():
        return []
    numbered = [
        (match[2] or "", int(match[1] or 0), path)
        for path in folder.iterdir()
        if (match := _NAMES[subset].fullmatch(path.name)) and path.is_file()
    ]
    forms = {form for form, _, _ in numbered}
    chosen = "" if "" in forms else ".bin"
    return [path for form, _, path in sorted(numbered) if form == chosen]


def read_file(path: Path, num_classes: int) -> tuple[Images, Labels]:
    """Images, uint8 [n, 32, 32, 3], and labels, int32 [n]; DataError names file and record."""
    flat, labels = _parse(path)
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        raise DataError(
            f"{path}: record {wrong[0]}: label {labels[wrong[0]]} is not in [0, {num_classes})"
        )
    images = flat.reshape(-1, CHANNELS, SIZE, SIZE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.astype(np.int32)


@once_per_content
def count_records(path: Path) -> int:
    """Number of images in one file of either format, without reading labels."""
    return len(_parse(path)[1])


def count_examples(files: Sequence[Path], subset: str) -> int:
    """Number of images in the files of a subset; see `count_records`."""
    del subset
    return sum(count_records(path) for path in files)


def check_files(files: Sequence[Path], num_classes: int) -> Findings:
    """Reads every image; a defect counts for its whole file. See `Dataset.check`."""
    found, tally = Findings(), ImageTally()
    for path in files:
        try:
            _, labels = read_file(path, num_classes)
        except DataError as error:
            found.defects.append(str(error))
            continue
        found.records += len(labels)
        for label in labels.tolist():
            tally.add(ImageFacts(label, SIZE, SIZE, _IMAGE_BYTES))
    found.details = tally.lines()
    return found


def _parse(path: Path) -> tuple[Images, Integers]:
    """Flat images with channels first (uint8 [n, 3072]) and labels (int64 [n])."""
    parse = _parse_binary if path.suffix == ".bin" else _parse_python
    flat, labels = parse(path, content_of(path))
    if not len(labels):
        raise DataError(f"{path}: holds no records")
    return flat, labels


def _parse_binary(path: Path, content: bytes) -> tuple[Images, Integers]:
    whole, rest = divmod(len(content), _RECORD_BYTES)
    if rest:
        raise DataError(
            f"{path}: record {whole}: truncated, {rest} of {_RECORD_BYTES} bytes are there"
        )
    records = np.frombuffer(content, np.uint8).reshape(whole, _RECORD_BYTES)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _parse_python(path: Path, content: bytes) -> tuple[Images, Integers]:
    try:
        batch = safe_pickle.loads(content)
        data, labels = (
            safe_pickle.integers(_entry(path, batch, key)) for key in ("data", "labels")
        )
        if isinstance(labels, (list, tuple)):
            labels = [safe_pickle.integers(label) for label in labels]
    except pickle.UnpicklingError as error:
        raise DataError(f"{path}: cannot be unpickled: {error}") from error
    fits = isinstance(data, np.ndarray) and data.dtype == np.uint8
    if not fits or data.shape[1:] != (_IMAGE_BYTES,):
        wanted = f"a uint8 tensor [records, {_IMAGE_BYTES}]"
        raise DataError(f"{path}: 'data' must be {wanted}, not {shown(data)}")
    return data, _labels(path, labels, len(data))


def _labels(path: Path, labels: Any, count: int) -> Integers:
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    # Nested lists would be spread out by NumPy: a few bytes can stand for a billion labels.
    listed = isinstance(labels, (list, tuple))
    if not listed or not all(isinstance(label, (int, np.integer)) for label in labels):
        raise DataError(f"{path}: 'labels' is not a list of integers")
    if len(labels) != count:
        raise DataError(f"{path}: {count} images, but {len(labels)} labels")
    try:
        return np.asarray(labels, np.int64)
    except OverflowError as error:
        raise DataError(f"{path}: a label is not a 64-bit integer") from error


def _entry(path: Path, batch: object, key: str) -> object:
    if isinstance(batch, Mapping):
        for spelling in (key.encode(), key):
            if spelling in batch:
                return batch[spelling]
    raise DataError(f"{path}: key {key!r} is missing")
