"""URLs in place of paths: ``file://`` is a local path, other schemes are TensorFlow's file systems.

TensorFlow is imported when a method of `UrlPath` accesses a file, and never for local paths.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Generator, Iterator
from pathlib import Path, PosixPath
from typing import Any, ClassVar, TypeVar

from cnnbench.errors import FlagError, PathError, first_line

_URL = re.compile(r"[A-Za-z][\w.+-]*:/")
_FILE = re.compile(r"file:(//(localhost)?)?(?=/(?!/))")
_OF_TENSORFLOW = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9.]*://[^/]")

_P = TypeVar("_P", bound="UrlPath")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL, as ``gs:/folder`` is too; ``./gs:/folder`` is a local path."""
    return _URL.match(os.fspath(path)) is not None


def without_file_scheme(text: str) -> str:
    """Comma-separated paths with ``/folder`` for ``file:///folder``; ``%`` is no escape."""
    return ",".join(_FILE.sub("", path, count=1) for path in text.split(","))


def fault(text: str, allowed: bool) -> str:
    """The reason why one of comma-separated paths is refused, or ""; `allowed`: URLs may be."""
    if text == "-":
        return "must be a path, not standard input or output; ./- is a file of that name"
    urls = filter(is_url, text.split(","))
    if all(allowed and _OF_TENSORFLOW.match(url) for url in urls):
        return ""
    if allowed:
        return "must be a path, file:///PATH or a URL such as gs://bucket/folder"
    return "must be a local path or file:///PATH; copy files from or to a URL, as with gsutil cp"


def local(text: str, flag: str = "") -> str:
    """A path, possibly given as a ``file://`` URL; PathError, or FlagError, for another URL."""
    path = without_file_scheme(text)
    if reason := fault(path, allowed=False):
        raise FlagError(flag, path, reason) if flag else PathError(path, reason)
    return path


def place(path: str | os.PathLike[str]) -> Path:
    """A path of the local file system or, for a URL, of one of TensorFlow's."""
    return UrlPath(path) if is_url(path) else Path(path)


class UrlPath(PosixPath):
    """A URL such as ``gs://bucket/folder``; its methods raise OSError, as those of local paths.

    Only the methods below access its file system, and inherited ones that call them, such as
    `exists`, `is_dir` and `read_bytes`.
    """

    # Files in listings. An object store would take a request for each of a data set.
    _listed: ClassVar[set[str]] = set()

    def __str__(self) -> str:
        """The URL, of whose two slashes a path drops one."""
        return super().__str__().replace(":/", "://", 1)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Kind, size and time of change."""
        with self._file_system() as gfile:
            found = gfile.stat(str(self))
        kind = stat.S_IFDIR if found.is_directory else stat.S_IFREG
        facts = (kind, 0, 0, 0, 0, 0, found.length, 0, 0, 0)
        return os.stat_result(facts, {"st_mtime_ns": found.mtime_nsec})

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether there is a file; also True for a folder that a listing had."""
        return str(self) in self._listed or super().is_file()

    def iterdir(self: _P) -> Generator[_P, None, None]:
        """The entries of a folder."""
        self.stat()  # after a failed request `listdir` would tell of no folder
        with self._file_system() as gfile:
            entries = [self / name for name in gfile.listdir(str(self))]
        self._listed.update(map(str, entries))
        yield from entries

    def mkdir(self, mode: int = 0o777, parents: bool = True, exist_ok: bool = True) -> None:
        """Makes a folder and those above it."""
        with self._file_system() as gfile:
            gfile.makedirs(str(self))

    @contextlib.contextmanager
    def open(self, *_: object, **__: object) -> Iterator[Any]:  # type: ignore[override]
        """A block that reads a file of bytes."""
        with self._file_system() as gfile, gfile.GFile(str(self), "rb") as file:
            yield file

    def write_bytes(self, data: Any) -> int:
        """Replaces a file; an object store then has all of it or the old one."""
        with self._file_system() as gfile, gfile.GFile(str(self), "wb") as file:
            file.write(data)
        return len(data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes a file, if there is one."""
        self._listed.discard(str(self))
        with contextlib.suppress(FileNotFoundError), self._file_system() as gfile:
            gfile.remove(str(self))

    @contextlib.contextmanager
    def _file_system(self) -> Iterator[Any]:
        """``tf.io.gfile``, for a block whose errors become OSError."""
        import tensorflow as tf

        try:
            yield tf.io.gfile
        except tf.errors.NotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from error
        except tf.errors.OpError as error:
            raise OSError(errno.EIO, first_line(error), str(self)) from error
