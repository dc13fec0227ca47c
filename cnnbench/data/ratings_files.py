"""Files of MovieLens ratings: reads and checks them, and creates them from published files.

``ratings-train.npz`` contains ``users`` and ``items``, integers [n]. Each pair is a rating.
``ratings-validation.npz`` contains ``users`` and ``items`` [m] with the last item that each user
rated, and ``negatives`` [m, k] with items that the user never rated. The unrated items are the
candidates in an evaluation (He et al., Neural Collaborative Filtering, 2017). Numbers of users and
items start at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cnnbench.base.urls import local_or_url_path
from cnnbench.data import folder as output
from cnnbench.data.folder import (
    Findings,
    cache_by_file_version,
    converting_read_errors,
    os_error_text,
)
from cnnbench.errors import DataError, FlagError, UsageError

# Reading the files of `cnnbench data make-ratings` as arrays (without TensorFlow)

USERS = 138_493
ITEMS = 26_744
"""Number of items in MovieLens 20M. A smaller set uses only the first item numbers."""

NEGATIVES_PER_POSITIVE = 4
"""Number of unrated items that are drawn for each rating in training."""

_ARRAYS = {"train": ("users", "items"), "validation": ("users", "items", "negatives")}

Integers = npt.NDArray[np.int64]


def find_files(data_dir: str, subset: str) -> list[Path]:
    """Finds the file of a subset. FlagError if it does not exist."""
    path = local_or_url_path(data_dir) / f"ratings-{subset}.npz"
    with converting_read_errors(data_dir):
        exists = path.is_file()
    if not exists:
        raise FlagError("data_dir", data_dir, f"contains no {path.name}")
    return [path]


def load_ratings(path: Path) -> dict[str, Integers]:
    """Reads the arrays in a file. DataError names the file and the defective record."""
    arrays = _read_arrays(path)
    for name, values in arrays.items():
        below = USERS if name == "users" else ITEMS
        wrong = np.argwhere((values < 0) | (values >= below))
        if len(wrong):
            value = values[tuple(wrong[0])]
            noun = name.removesuffix("s")
            raise DataError(f"{path}: record {wrong[0][0]}: {noun} {value} is not in [0, {below})")
    return arrays


def _read_arrays(path: Path) -> dict[str, Integers]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
    # zipfile, zlib and NumPy raise errors of many classes for a defective file.
    except Exception as error:
        raise DataError(
            f"{path}: is not a NumPy file (.npz): {' '.join(str(error).split())}"
        ) from error
    names = _ARRAYS[path.stem.partition("-")[2]]
    for name in names:
        if name not in arrays:
            raise DataError(f"{path}: array {name} is missing")
        dimensions = 2 if name == "negatives" else 1
        values = arrays[name]
        if values.dtype.kind not in "iu" or values.ndim != dimensions:
            raise DataError(
                f"{path}: array {name} must contain integers in {dimensions} dimensions, "
                f"but contains {values.dtype} {values.shape}"
            )
        if len(values) != len(arrays["users"]):
            raise DataError(
                f"{path}: {len(arrays['users'])} users, but {len(values)} rows of {name}"
            )
    if not len(arrays["users"]):
        raise DataError(f"{path}: contains no records")
    return {name: arrays[name].astype(np.int64) for name in names}


def count_examples(files: Sequence[Path], subset: str) -> int:
    """Counts the examples in the file of a subset.

    There are `1 + NEGATIVES_PER_POSITIVE` examples for each training rating. In validation, there
    are one example for the last item of each user, and one for each of its candidates.
    """
    del subset
    return _count_examples(files[0])


@cache_by_file_version
def _count_examples(path: Path) -> int:
    arrays = _read_arrays(path)
    if "negatives" in arrays:
        return len(arrays["users"]) + int(arrays["negatives"].size)
    return len(arrays["users"]) * (1 + NEGATIVES_PER_POSITIVE)


def check_files(files: Sequence[Path], num_classes: int) -> Findings:
    """Checks every record in the file of a subset; see `Dataset.check`. Ignores `num_classes`."""
    del num_classes
    findings = Findings()
    (path,) = files
    try:
        arrays = load_ratings(path)
    except DataError as error:
        findings.defects.append(str(error))
        return findings
    rated = np.sort(pair_keys(arrays["users"], arrays["items"]))
    twice = np.flatnonzero(rated[1:] == rated[:-1])
    if len(twice):
        user, item = divmod(int(rated[twice[0]]), ITEMS)
        findings.defects.append(f"{path}: duplicate pair of user {user} and item {item}")
    if "negatives" in arrays:
        findings.defects += _negative_defects(path, arrays)
    findings.records = len(arrays["users"])
    findings.details = _statistics(arrays)
    return findings


def _negative_defects(path: Path, arrays: Mapping[str, Integers]) -> list[str]:
    users, items, negatives = arrays["users"], arrays["items"], arrays["negatives"]
    defects = [
        f"{path}: record {row}: item {items[row]} is also one of its unrated items (negatives)"
        for row in np.flatnonzero((negatives == items[:, None]).any(axis=1))
    ]
    beside = path.with_name("ratings-train.npz")
    if not beside.is_file():
        return defects
    try:
        train = load_ratings(beside)
    except DataError:
        # The training file is checked separately, which reports this error.
        return defects
    rated = np.sort(pair_keys(train["users"], train["items"]))
    for name, candidates in (("item", items[:, None]), ("negative", negatives)):
        pairs = pair_keys(users[:, None], candidates)
        known = rated[np.minimum(np.searchsorted(rated, pairs), len(rated) - 1)] == pairs
        defects += [
            f"{path}: record {row}: {name} {candidates[row][known[row]][0]} of user {users[row]} "
            "is in the training file too"
            for row in np.flatnonzero(known.any(axis=1))
        ]
    return defects


def _statistics(arrays: Mapping[str, Integers]) -> list[str]:
    users, items = (np.unique(arrays[name]) for name in ("users", "items"))
    lines = [
        f"users: {len(users)} different up to {users[-1]}",
        f"items: {len(items)} different up to {items[-1]}",
    ]
    if "negatives" in arrays:
        lines.append(f"negatives: {arrays['negatives'].shape[1]} for each user")
    return lines


def pair_keys(users: Any, items: Any) -> Any:
    """Computes a unique number for each pair of a user and an item."""
    return users * ITEMS + items


# Conversion of published MovieLens ratings into files of pairs (without TensorFlow)

SOURCES = ("ratings.dat", "ratings.csv")
_COLUMNS = ("user", "item", "rating", "time")


class RatingsCounts(NamedTuple):
    """Numbers of users, items and ratings in the files, and of users that were left out."""

    users: int
    items: int
    ratings: int
    left_out: int


def write_ratings_files(
    source: Path, out: Path, negatives: int, min_ratings: int, seed: int
) -> RatingsCounts:
    """Converts published ratings to the files ``ratings-train.npz`` and ``ratings-validation.npz``.

    Users and items get numbers from 0, in the order of their published numbers. The latest rating
    of each user is used for validation. The value of a rating is ignored.

    Args:
      source: the file ``ratings.dat`` (user::item::rating::time) or ``ratings.csv`` (with a
        header), or the folder with one of them.
      negatives: number of different unrated items that are drawn for each user.
      min_ratings: users with fewer ratings are left out.
    """
    table = _read_table(_find_source(source))
    ratings_of_user = table["user"].value_counts()
    kept = table[table["user"].isin(ratings_of_user.index[ratings_of_user >= min_ratings])]
    if kept.empty:
        raise UsageError(f"--min_ratings={min_ratings}: no user in {source} has that many ratings")
    users, user_ids = _renumber_ids(kept["user"], USERS, "users", source)
    items, item_ids = _renumber_ids(kept["item"], ITEMS, "items", source)
    # Sorts by user, then by time, so that each user's last rating is the latest one.
    order = np.lexsort((np.arange(len(users)), kept["time"].to_numpy(), users))
    users, items = users[order], items[order]
    users, items = _unique_pairs(users, items)
    held_back = np.append(users[1:] != users[:-1], True)
    most = np.bincount(users).argmax()
    left = len(item_ids) - int((users == most).sum())
    if left < negatives:
        user, many = user_ids[most], len(item_ids)
        text = f"must be at most {left}: user {user} has not rated {left} of the {many} items"
        if not left:
            text = f"user {user} has rated all {many} items, so no unrated item can be drawn"
        raise FlagError("negatives", negatives, text)
    drawn = _draw_negatives(users, items, len(item_ids), negatives, seed)
    train = {"users": users[~held_back], "items": items[~held_back]}
    validation = {"users": users[held_back], "items": items[held_back], "negatives": drawn}
    _write_arrays(out, {"train": train, "validation": validation})
    left_out = len(ratings_of_user) - len(user_ids)
    return RatingsCounts(len(user_ids), len(item_ids), len(users), left_out)


def _find_source(source: Path) -> Path:
    places = [source, *(source / name for name in SOURCES)]
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        raise UsageError(f"{source}: is neither a file nor a folder with {' or '.join(SOURCES)}")
    return path


def _read_table(path: Path) -> Any:
    import pandas as pd

    with_header = path.suffix == ".csv"
    options: dict[str, Any] = {"skiprows": 1} if with_header else {"usecols": [0, 2, 4, 6]}
    # The CSV parser allows only one character as separator, so "::" is read as two separators with
    # an empty column between them.
    separator = "," if with_header else ":"
    try:
        table = pd.read_csv(path, sep=separator, header=None, dtype=str, **options)
    except OSError as error:
        raise UsageError(f"{path}: {os_error_text(error)}") from error
    except (ValueError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: contains no ratings: {' '.join(str(error).split())}") from error
    if table.shape[1] != len(_COLUMNS):
        raise DataError(
            f"{path}: each line must have {len(_COLUMNS)} columns, not {table.shape[1]}"
        )
    table.columns = list(_COLUMNS)
    for name in _COLUMNS:
        numbers = pd.to_numeric(table[name], errors="coerce")
        wrong = np.flatnonzero(numbers.isna())
        if len(wrong):
            line = int(wrong[0]) + 1 + with_header
            raise DataError(
                f"{path}: line {line}: {name} {table[name].iloc[wrong[0]]} is not a number"
            )
        table[name] = numbers
    return table


def _renumber_ids(column: Any, most: int, noun: str, source: Path) -> tuple[Any, Any]:
    ids, numbers = np.unique(column.to_numpy(), return_inverse=True)
    if len(ids) > most:
        raise UsageError(
            f"{source}: {len(ids)} {noun}, but at most {most} are possible (as in MovieLens 20M)"
        )
    return numbers.astype(np.int64), ids


def _unique_pairs(users: Any, items: Any) -> tuple[Any, Any]:
    """Keeps the last of equal pairs of user and item. The order does not change."""
    pairs = pair_keys(users, items)
    _, from_behind = np.unique(pairs[::-1], return_index=True)
    kept = np.sort(len(pairs) - 1 - from_behind)
    return users[kept], items[kept]


def _draw_negatives(users: Any, items: Any, num_items: int, count: int, seed: int) -> Any:
    """Draws different unrated items for the users 0, 1, 2, ...: int32 [users, count]."""
    generator = np.random.default_rng(seed)
    ends = np.cumsum(np.bincount(users))[:-1]
    drawn = np.empty((len(ends) + 1, count), np.int32)
    for row, rated in zip(drawn, np.split(items, ends), strict=True):
        ranks = generator.choice(num_items - len(rated), count, replace=False)
        # For each rated item, `before` contains the number of unrated items with a smaller number.
        before = np.sort(rated) - np.arange(len(rated))
        row[:] = ranks + np.searchsorted(before, ranks, side="right")
    return drawn


def _write_arrays(out: Path, subsets: dict[str, dict[str, Any]]) -> None:
    names = [f"ratings-{subset}.npz" for subset in subsets]
    with output.temporary_output_folder(out, names) as folder:
        for name, arrays in zip(names, subsets.values(), strict=True):
            with output.converting_write_errors(folder / name):
                np.savez(folder / name, **{k: v.astype(np.int32) for k, v in arrays.items()})
        output.move_all_or_none([folder / name for name in names], out)
