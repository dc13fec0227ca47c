"""Conversion of the published MovieLens ratings into files of pairs. No TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cnnbench.data import output
from cnnbench.data.folder import reason
from cnnbench.data.ratings_files import ITEMS, USERS, keys
from cnnbench.errors import DataError, FlagError, UsageError

SOURCES = ("ratings.dat", "ratings.csv")
_COLUMNS = ("user", "item", "rating", "time")


def make_ratings(
    source: Path, out: Path, negatives: int, min_ratings: int, seed: int
) -> tuple[int, int, int, int]:
    """Writes ``ratings-train.npz`` and ``ratings-validation.npz``; see `ratings_files`.

    Users and items are numbered from 0 in the order of their published numbers. The last rating of
    each user by time is held back; the value of a rating does not matter.

    Args:
      source: the file ``ratings.dat`` (user::item::rating::time) or ``ratings.csv`` (with a
        header), or the folder with one of them.
      negatives: number of different unrated items drawn for each user.
      min_ratings: users with fewer are left out.

    Returns:
      Numbers of users, items and ratings, and of the users that were left out.
    """
    table = _read(_find(source))
    found = table["user"].value_counts()
    kept = table[table["user"].isin(found.index[found >= min_ratings])]
    if kept.empty:
        raise UsageError(f"--min_ratings={min_ratings}: no user of {source} has so many")
    users, user_ids = _numbered(kept["user"], USERS, "users", source)
    items, item_ids = _numbered(kept["item"], ITEMS, "items", source)
    # The last of each user; among ratings of one second, the one that comes last in the file.
    order = np.lexsort((np.arange(len(users)), kept["time"].to_numpy(), users))
    users, items = users[order], items[order]
    users, items = _once(users, items)
    held_back = np.append(users[1:] != users[:-1], True)
    most = np.bincount(users).argmax()
    left = len(item_ids) - int((users == most).sum())
    if left < negatives:
        user, many = user_ids[most], len(item_ids)
        text = f"must be at most {left}: user {user} has not rated {left} of the {many} items"
        if not left:
            text = f"user {user} has rated all {many} items, so there is none to tell apart"
        raise FlagError("negatives", negatives, text)
    drawn = _negatives(users, items, len(item_ids), negatives, seed)
    train = {"users": users[~held_back], "items": items[~held_back]}
    validation = {"users": users[held_back], "items": items[held_back], "negatives": drawn}
    _write(out, {"train": train, "validation": validation})
    return len(user_ids), len(item_ids), len(users), len(found) - len(user_ids)


def _find(source: Path) -> Path:
    places = [source, *(source / name for name in SOURCES)]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise UsageError(f"{source}: is neither a file nor a folder with {' or '.join(SOURCES)}")
    return found


def _read(path: Path) -> Any:
    import pandas as pd

    with_header = path.suffix == ".csv"
    options: dict[str, Any] = {"skiprows": 1} if with_header else {"usecols": [0, 2, 4, 6]}
    separator = "," if with_header else ":"  # "::" is a colon with an empty column behind it
    try:
        table = pd.read_csv(path, sep=separator, header=None, dtype=str, **options)
    except OSError as error:
        raise UsageError(f"{path}: {reason(error)}") from error
    except (ValueError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: holds no ratings: {' '.join(str(error).split())}") from error
    if table.shape[1] != len(_COLUMNS):
        raise DataError(f"{path}: a rating has {len(_COLUMNS)} parts, not {table.shape[1]}")
    table.columns = list(_COLUMNS)
    for name in _COLUMNS:
        numbers = pd.to_numeric(table[name], errors="coerce")
        wrong = np.flatnonzero(numbers.isna())
        if len(wrong):
            line = int(wrong[0]) + 1 + with_header
            raise DataError(
                f"{path}: line {line}: {name} {table[name].iloc[wrong[0]]} is no number"
            )
        table[name] = numbers
    return table


def _numbered(column: Any, most: int, noun: str, source: Path) -> tuple[Any, Any]:
    ids, numbers = np.unique(column.to_numpy(), return_inverse=True)
    if len(ids) > most:
        raise UsageError(f"{source}: {len(ids)} {noun}, but MovieLens 20M has {most}")
    return numbers.astype(np.int64), ids


def _once(users: Any, items: Any) -> tuple[Any, Any]:
    """Pairs without duplicates in the same order; the last of equal ones stays."""
    pairs = keys(users, items)
    _, from_behind = np.unique(pairs[::-1], return_index=True)
    kept = np.sort(len(pairs) - 1 - from_behind)
    return users[kept], items[kept]


def _negatives(users: Any, items: Any, num_items: int, count: int, seed: int) -> Any:
    """For each user, from 0 without gaps, different unrated items, int32 [users, count]."""
    generator = np.random.default_rng(seed)
    ends = np.cumsum(np.bincount(users))[:-1]
    drawn = np.empty((len(ends) + 1, count), np.int32)
    for row, rated in zip(drawn, np.split(items, ends), strict=True):
        ranks = generator.choice(num_items - len(rated), count, replace=False)
        # Number of unrated items before each rated one.
        before = np.sort(rated) - np.arange(len(rated))
        row[:] = ranks + np.searchsorted(before, ranks, side="right")
    return drawn


def _write(out: Path, subsets: dict[str, dict[str, Any]]) -> None:
    names = [f"ratings-{subset}.npz" for subset in subsets]
    with output.unfinished_folder(out, names) as folder:
        for name, arrays in zip(names, subsets.values(), strict=True):
            with output.writing(folder / name):
                np.savez(folder / name, **{k: v.astype(np.int32) for k, v in arrays.items()})
        output.move([folder / name for name in names], out)
