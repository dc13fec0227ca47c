"""Reads the two file formats of CIFAR-10: Python pickles, and binary records of fixed size (without
TensorFlow).

In the Python format, the files are ``data_batch_1`` .. ``data_batch_5`` and ``test_batch``. Each is
a pickled dict with ``data`` (uint8 [n, 3072], channels first) and ``labels``. In the binary format,
the names end with ``.bin``, and a record is one label byte and 3072 image bytes. See
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import pickletools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnnbench.base.interfaces import value_text
from cnnbench.base.urls import local_or_url_path
from cnnbench.data.folder import (
    Findings,
    ImageFacts,
    ImageTally,
    cache_by_file_version,
    converting_read_errors,
    read_data_file,
)
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
    """Finds the files of a subset ("train" or "validation"), in the order of the numbers in their
    names. FlagError if there are no files.

    Searches ``data_dir``, then its subfolders ``cifar-10-batches-py`` and ``cifar-10-batches-bin``.
    If a folder contains both formats, pickles are preferred.
    """
    root = local_or_url_path(data_dir)
    with converting_read_errors(data_dir):
        for folder in _FOLDERS:
            paths = _matching_files(root / folder, subset)
            if paths:
                return paths
    wanted = "data_batch_* or data_batch_*.bin" if subset == "train" else "test_batch[.bin]"
    raise FlagError(
        "data_dir",
        data_dir,
        f"contains no CIFAR-10 {subset} files ({wanted}), nor do its sub-folders",
    )


def _matching_files(folder: Path, subset: str) -> list[Path]:
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


_PUBLISHED_FILES = 5
_PUBLISHED_RECORDS = 10_000


def missing_files(files: Sequence[Path]) -> list[str]:
    """Returns the names of missing training files, as the numbers of the other files say.

    After the last number, files are missing only if the others have the sizes of the published
    ones, since other data sets may have fewer files.
    """
    matches = [match for path in files if (match := _NAMES["train"].fullmatch(path.name))]
    if not matches:
        return []
    numbers, form = {int(match[1]) for match in matches}, matches[0][2] or ""
    last = max(numbers)
    with contextlib.suppress(DataError):
        if last < _PUBLISHED_FILES and {*map(count_records, files)} == {_PUBLISHED_RECORDS}:
            last = _PUBLISHED_FILES
    return [f"data_batch_{n}{form}" for n in range(1, last + 1) if n not in numbers]


def read_cifar10_file(path: Path, num_classes: int) -> tuple[Images, Labels]:
    """Reads images, uint8 [n, 32, 32, 3], and labels, int32 [n]. DataError names the bad record."""
    flat, labels = _parse_file(path)
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        raise DataError(
            f"{path}: record {wrong[0]}: label {labels[wrong[0]]} is not in [0, {num_classes})"
        )
    images = flat.reshape(-1, CHANNELS, SIZE, SIZE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.astype(np.int32)


@cache_by_file_version
def count_records(path: Path) -> int:
    """Counts the images in a file of either format. Does not check the labels."""
    return len(_parse_file(path)[1])


def count_examples(files: Sequence[Path], subset: str) -> int:
    """Counts the images in the files of a subset; see `count_records`."""
    del subset
    return sum(count_records(path) for path in files)


def check_files(files: Sequence[Path], num_classes: int) -> Findings:
    """Reads every image. A file with a defect is reported as a whole. See `Dataset.check`."""
    missing = [files[0].parent / name for name in missing_files(files)]
    findings = Findings(defects=[f"{path}: this file is missing" for path in missing])
    tally = ImageTally()
    for path in files:
        try:
            _, labels = read_cifar10_file(path, num_classes)
        except DataError as error:
            findings.defects.append(str(error))
            continue
        findings.records += len(labels)
        for label in labels.tolist():
            tally.add(ImageFacts(label, SIZE, SIZE, _IMAGE_BYTES))
    findings.details = tally.lines()
    return findings


def _parse_file(path: Path) -> tuple[Images, Integers]:
    """Parses a file of either format. Returns images, uint8 [n, 3072] with channels first, and
    labels, int64 [n].
    """
    parse = _parse_binary if path.suffix == ".bin" else _parse_pickle
    flat, labels = parse(path, read_data_file(path))
    if not len(labels):
        raise DataError(f"{path}: contains no records")
    return flat, labels


def _parse_binary(path: Path, content: bytes) -> tuple[Images, Integers]:
    whole, rest = divmod(len(content), _RECORD_BYTES)
    if rest:
        raise DataError(f"{path}: record {whole}: truncated after {rest} of {_RECORD_BYTES} bytes")
    records = np.frombuffer(content, np.uint8).reshape(whole, _RECORD_BYTES)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _parse_pickle(path: Path, content: bytes) -> tuple[Images, Integers]:
    try:
        batch = unpickle_safely(content)
        data, labels = (
            resolve_placeholder(_batch_entry(path, batch, key)) for key in ("data", "labels")
        )
        if isinstance(labels, (list, tuple)):
            labels = [resolve_placeholder(label) for label in labels]
    except pickle.UnpicklingError as error:
        raise DataError(f"{path}: cannot be unpickled: {error}") from error
    fits = isinstance(data, np.ndarray) and data.dtype == np.uint8
    if not fits or data.shape[1:] != (_IMAGE_BYTES,):
        wanted = f"a uint8 tensor [records, {_IMAGE_BYTES}]"
        raise DataError(f"{path}: 'data' must be {wanted}, not {value_text(data)}")
    return data, _parse_labels(path, labels, len(data))


def _parse_labels(path: Path, labels: Any, count: int) -> Integers:
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    # NumPy must not convert nested lists, because a few bytes of pickle can describe a billion
    # labels.
    listed = isinstance(labels, (list, tuple))
    if not listed or not all(isinstance(label, (int, np.integer)) for label in labels):
        raise DataError(f"{path}: 'labels' is not a list of integers")
    if len(labels) != count:
        raise DataError(f"{path}: {count} images, but {len(labels)} labels")
    try:
        return np.asarray(labels, np.int64)
    except OverflowError as error:
        raise DataError(f"{path}: a label is not a 64-bit integer") from error


def _batch_entry(path: Path, batch: object, key: str) -> object:
    if isinstance(batch, Mapping):
        for spelling in (key.encode(), key):
            if spelling in batch:
                return batch[spelling]
    raise DataError(f"{path}: key {key!r} is missing")


class _PickledPlaceholder:
    """Stands for a class or function that a pickle contains, so that loading the pickle calls
    nothing. Stores the arguments of the call, and the state of the object.

    The placeholder replaces every class and function, so a pickle cannot call anything. NumPy
    receives no state from a pickle, because some states would crash it.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.arguments = arguments
        self.state: object = None

    def __call__(self, *arguments: Any) -> _PickledPlaceholder | bytes:
        # In pickle protocols 0 to 2, Python 3 writes bytes as a call of one of two functions. Only
        # these calls are evaluated.
        if self.name == "_codecs.encode" and isinstance(arguments[0], str):
            return arguments[0].encode("latin1")
        if self.name in ("__builtin__.bytes", "builtins.bytes"):
            return b""
        return _PickledPlaceholder(self.name, arguments)

    def __setstate__(self, state: object) -> None:
        self.state = state


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _PickledPlaceholder:
        return _PickledPlaceholder(f"{module}.{name}")


def unpickle_safely(data: bytes) -> Any:
    """Reads dicts, lists, strings, bytes and numbers from an untrusted pickle.

    Nothing in the file is called. Arrays become placeholders, which `resolve_placeholder` converts.

    Reads every protocol, including Python 2 (strings become bytes) and old NumPy versions.
    UnpicklingError for damaged data.
    """
    try:
        # A pickle can number its stored objects. The numbers are checked first, because Python
        # allocates memory up to the largest one. `genops` cannot decode some strings of Python 2;
        # the check ends there.
        with contextlib.suppress(UnicodeDecodeError):
            for opcode, argument, _ in pickletools.genops(data):
                puts = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
                if puts and isinstance(argument, int) and not 0 <= argument <= len(data):
                    raise pickle.UnpicklingError(f"the memo index {argument} is invalid")
        return _RestrictedUnpickler(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        # A damaged pickle can raise errors of many classes (EOFError, IndexError, MemoryError,
        # ...).
        raise pickle.UnpicklingError(str(error) or type(error).__name__) from error


def resolve_placeholder(value: object) -> Any:
    """Converts the placeholder of an integer array or scalar to a NumPy array; returns other values
    unchanged.

    UnpicklingError for placeholders of anything else, such as functions.
    """
    if not isinstance(value, _PickledPlaceholder):
        return value
    # Old pickles name the module numpy.core, which is numpy._core in NumPy 2.
    match value.name.removeprefix("numpy.").lstrip("_"), value.arguments, value.state:
        case "core.multiarray._reconstruct", _, (_, tuple(shape), dtype, fortran, bytes(content)):
            order = "F" if fortran else "C"
        case "core.numeric._frombuffer", (content, dtype, tuple(shape), order), None:
            content = bytes(content)
        case "core.multiarray.scalar", (dtype, bytes(content)), None:
            shape, order = (), "C"
        case _:
            raise pickle.UnpicklingError(f"{value.name[:60]!r} is not an array of integers")
    kind = _parse_dtype(dtype)
    # The sizes in the shape are Python integers, so their product cannot overflow, as it could in
    # NumPy.
    natural = all(isinstance(side, int) and side >= 0 for side in shape)
    if not natural or math.prod(shape) * kind.itemsize != len(content):
        raise pickle.UnpicklingError(f"an array of shape {shape} has {len(content)} bytes")
    return np.frombuffer(content, kind).reshape(shape, order="F" if order == "F" else "C").copy()


def _parse_dtype(value: object) -> np.dtype[Any]:
    match value:
        case _PickledPlaceholder(name="numpy.dtype", arguments=(name, *_), state=(_, order, *_)):
            name, order = (_decode_text(value) for value in (name, order))
            if re.fullmatch(r"[iu][1248]", name) and order in ("<", ">", "|", "="):
                return np.dtype(order + name)
            raise pickle.UnpicklingError(
                f"arrays of type {order[:1] + name[:20]!r} are not supported"
            )
    raise pickle.UnpicklingError("an array has no dtype")


def _decode_text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
