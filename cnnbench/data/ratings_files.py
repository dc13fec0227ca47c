"""Files of `cnnbench data make-ratings`, as arrays. No TensorFlow.

``ratings-train.npz`` holds ``users`` and ``items``, integers [n]: each pair a rating given.
``ratings-validation.npz`` holds ``users`` and ``items`` [m], the last item that each user rated,
and ``negatives`` [m, k], items that the user never rated: the candidates of an evaluation (He et
al., Neural Collaborative Filtering, 2017). Users and items are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cnnbench.base.urls import place
from cnnbench.data.findings import Findings
from cnnbench.data.folder import once_per_content, readable
from cnnbench.errors import DataError, FlagError

USERS = 138_493
ITEMS = 26_744
"""Items of MovieLens 20M; a smaller set uses the first numbers only."""

NEGATIVES_PER_POSITIVE = 4
"""Unrated items that training draws for each rating."""

_ARRAYS = {"train": ("users", "items"), "validation": ("users", "items", "negatives")}

Integers = npt.NDArray[np.int64]


def find_files(data_dir: str, subset: str) -> list[Path]:
    """The file of a subset; FlagError if there is none."""
    path = place(data_dir) / f"ratings-{subset}.npz"
    with readable(data_dir):
        found = path.is_file()
    if not found:
        raise FlagError("data_dir", data_dir, f"holds no {path.name}")
    return [path]


def load(path: Path) -> dict[str, Integers]:
    """The arrays of a file; DataError names file and record."""
    arrays = _read(path)
    for name, values in arrays.items():
        below = USERS if name == "users" else ITEMS
        wrong = np.argwhere((values < 0) | (values >= below))
        if len(wrong):
            value = values[tuple(wrong[0])]
            noun = name.removesuffix("s")
            raise DataError(f"{path}: record {wrong[0][0]}: {noun} {value} is not in [0, {below})")
    return arrays


def _read(path: Path) -> dict[str, Integers]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
    except Exception as error:  # zipfile, zlib and NumPy raise many types
        raise DataError(f"{path}: is no file of arrays: {' '.join(str(error).split())}") from error
    names = _ARRAYS[path.stem.partition("-")[2]]
    for name in names:
        if name not in arrays:
            raise DataError(f"{path}: array {name} is missing")
        dimensions = 2 if name == "negatives" else 1
        values = arrays[name]
        if values.dtype.kind not in "iu" or values.ndim != dimensions:
            raise DataError(
                f"{path}: array {name} must hold integers in {dimensions} dimensions, but holds "
                f"{values.dtype} {values.shape}"
            )
        if len(values) != len(arrays["users"]):
            raise DataError(
                f"{path}: {len(arrays['users'])} users, but {len(values)} rows of {name}"
            )
    if not len(arrays["users"]):
        raise DataError(f"{path}: holds no records")
    return {name: arrays[name].astype(np.int64) for name in names}


def count_examples(files: Sequence[Path], subset: str) -> int:
    """Examples in the file of a subset.

    `1 + NEGATIVES_PER_POSITIVE` for a training rating; the last item and its candidates for a user.
    """
    del subset
    return _count(files[0])


@once_per_content
def _count(path: Path) -> int:
    arrays = _read(path)
    if "negatives" in arrays:
        return len(arrays["users"]) + int(arrays["negatives"].size)
    return len(arrays["users"]) * (1 + NEGATIVES_PER_POSITIVE)


def check_files(files: Sequence[Path], num_classes: int) -> Findings:
    """Checks every record, without regard to `num_classes`; see `Dataset.check`."""
    del num_classes
    found = Findings()
    (path,) = files
    try:
        arrays = load(path)
    except DataError as error:
        found.defects.append(str(error))
        return found
    rated = np.sort(keys(arrays["users"], arrays["items"]))
    twice = np.flatnonzero(rated[1:] == rated[:-1])
    if len(twice):
        user, item = divmod(int(rated[twice[0]]), ITEMS)
        found.defects.append(f"{path}: user {user} and item {item} are there twice")
    if "negatives" in arrays:
        found.defects += _wrong_candidates(path, arrays)
    found.records = len(arrays["users"])
    found.details = _details(arrays)
    return found


def _wrong_candidates(path: Path, arrays: Mapping[str, Integers]) -> list[str]:
    users, items, negatives = arrays["users"], arrays["items"], arrays["negatives"]
    defects = [
        f"{path}: record {row}: item {items[row]} is among its own negatives"
        for row in np.flatnonzero((negatives == items[:, None]).any(axis=1))
    ]
    beside = path.with_name("ratings-train.npz")
    if not beside.is_file():
        return defects
    try:
        train = load(beside)
    except DataError:
        return defects  # reported by the check of that file
    rated = np.sort(keys(train["users"], train["items"]))
    for name, candidates in (("item", items[:, None]), ("negative", negatives)):
        pairs = keys(users[:, None], candidates)
        known = rated[np.minimum(np.searchsorted(rated, pairs), len(rated) - 1)] == pairs
        defects += [
            f"{path}: record {row}: {name} {candidates[row][known[row]][0]} of user {users[row]} "
            "is in the training file too"
            for row in np.flatnonzero(known.any(axis=1))
        ]
    return defects


def _details(arrays: Mapping[str, Integers]) -> list[str]:
    users, items = (np.unique(arrays[name]) for name in ("users", "items"))
    lines = [
        f"users: {len(users)} different up to {users[-1]}",
        f"items: {len(items)} different up to {items[-1]}",
    ]
    if "negatives" in arrays:
        lines.append(f"negatives: {arrays['negatives'].shape[1]} for each user")
    return lines


def keys(users: Any, items: Any) -> Any:
    """A number for each pair of user and item, equal for equal pairs only."""
    return users * ITEMS + items
