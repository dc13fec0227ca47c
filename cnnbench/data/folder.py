"""Folders and files of data sets: error messages and cached counts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from cnnbench.base.lock import SCRATCH
from cnnbench.base.reading import read_file
from cnnbench.base.urls import UrlPath, place
from cnnbench.errors import DataError, FlagError, PathError

UNFINISHED = "unfinished-"
"""Prefix of the folder that holds the files until the whole data set is written."""

SUBSET_FOLDERS = {"train": ("train",), "validation": ("validation", "val")}
"""Folders that may hold the files of a subset, in the order of their precedence."""

# Number of files; ImageNet has 1152.
_REMEMBERED = 4096


def reason(error: OSError) -> str:
    """The system's error message, without number and path."""
    return error.strerror or str(error) or type(error).__name__


def unfinished_in(folder: Path) -> str:
    """Name of a folder inside with files of a data set that was not finished; "" for none."""
    made = (path for path in folder.iterdir() if path.name.startswith(UNFINISHED))
    held = (path.name for path in made if (path / SCRATCH).is_file() and len([*path.iterdir()]) > 1)
    return min(held, default="")


def content_of(path: Path) -> bytes:
    """The content of a file of examples; DataError if it cannot be read."""
    try:
        return path.read_bytes() if isinstance(path, UrlPath) else read_file(path)
    except PathError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from error


@contextlib.contextmanager
def readable(data_dir: str) -> Iterator[None]:
    """A block that reads a directory; FlagError if it is missing, or for an OSError inside."""
    try:
        if not place(data_dir).is_dir():
            raise FlagError("data_dir", data_dir, "there is no such directory")
        yield
    except OSError as error:
        where = "" if error.filename in (None, data_dir) else f"{error.filename}: "
        problem = f"cannot be read: {where}{reason(error)}"
        raise FlagError("data_dir", data_dir, problem) from error


def once_per_content(count: Callable[[Path], int]) -> Callable[[Path], int]:
    """Caches ``count`` in this process until the file changes: a run counts examples twice."""

    @functools.lru_cache(_REMEMBERED)
    def remembered(path: Path, *version: int) -> int:
        del version
        return count(path)

    @functools.wraps(count)
    def look(path: Path) -> int:
        try:
            status = path.stat()
        except OSError:
            return count(path)  # raises the error for the file
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return remembered(path, *version)

    return look
