"""URLs as paths. TensorFlow's file systems access all URLs except those of local files.

TensorFlow is imported only when a method of `UrlPath` accesses a file. Local paths do not need it.
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

from cnnbench.errors import FlagError, PathError, informative_line

_URL = re.compile(r"[A-Za-z][\w.+-]*:/")


_FILE = re.compile(r"^file:(//(localhost)?)?(?=/(?!/))")


_OF_TENSORFLOW = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9.]*://[^/]")


_P = TypeVar("_P", bound="UrlPath")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL. ``gs:/folder`` is a URL, too; ``./gs:/folder`` is a local path."""
    return _URL.match(os.fspath(path)) is not None


def strip_file_scheme(text: str) -> str:
    """Replaces ``file:///folder`` by ``/folder`` in comma-separated paths. A ``%20`` is not
    decoded.
    """
    return ",".join(_FILE.sub("", path, count=1) for path in text.split(","))


def path_fault(text: str, urls_allowed: bool) -> str:
    """Returns why one of several comma-separated paths is invalid, as text for an error message.
    Returns "" if all paths are valid.

    `urls_allowed`: whether URLs such as ``gs://bucket/folder`` are valid.
    """
    if text == "-":
        return "must be a path, not standard input or output; ./- is a file of that name"
    urls = filter(is_url, text.split(","))
    if all(urls_allowed and _OF_TENSORFLOW.match(url) for url in urls):
        return ""
    if urls_allowed:
        return "must be a path, file:///PATH or a URL such as gs://bucket/folder"
    return "must be a local path or file:///PATH; copy files from or to a URL, as with gsutil cp"


def local_path(text: str, flag: str = "") -> str:
    """Converts a ``file://`` URL to a local path; a local path is returned unchanged.

    Other URLs raise FlagError, or PathError if `flag` is empty.
    """
    path = strip_file_scheme(text)
    if reason := path_fault(path, urls_allowed=False):
        raise FlagError(flag, path, reason) if flag else PathError(path, reason)
    return path


def local_or_url_path(path: str | os.PathLike[str]) -> Path:
    """Converts a path to a `UrlPath` if it is a URL, otherwise to a `Path`."""
    return UrlPath(path) if is_url(path) else Path(path)


class UrlPath(PosixPath):
    """A path that is a URL, such as ``gs://bucket/folder``. Its methods raise OSError, as the
    methods of local paths do.

    Use only the methods below, and inherited methods that call them: `exists`, `is_dir`,
    `read_bytes` and the like. Other inherited methods would access the local file system.
    """

    # Paths that `iterdir` has returned, so that no request per file is sent to the object store.
    _listed: ClassVar[set[str]] = set()

    def __str__(self) -> str:
        """The URL as text, with the second slash after the scheme, which `PosixPath` removes."""
        return super().__str__().replace(":/", "://", 1)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns whether the URL is a file or a folder, its size, and its modification time."""
        with self._file_system() as gfile:
            status = gfile.stat(str(self))
        kind = stat.S_IFDIR if status.is_directory else stat.S_IFREG
        facts = (kind, 0, 0, 0, 0, 0, status.length, 0, 0, 0)
        return os.stat_result(facts, {"st_mtime_ns": status.mtime_nsec})

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the URL is a file. Paths that `iterdir` has returned are assumed to be files,
        which saves a request.

        The result is therefore also True for a folder that `iterdir` has returned.
        """
        return str(self) in self._listed or super().is_file()

    def iterdir(self: _P) -> Generator[_P, None, None]:
        """Yields the files and folders that a folder contains."""
        # `stat` is called only for its error message, because `listdir` reports every error as a
        # missing folder.
        self.stat()
        with self._file_system() as gfile:
            entries = [self / name for name in gfile.listdir(str(self))]
        self._listed.update(map(str, entries))
        yield from entries

    def mkdir(self, mode: int = 0o777, parents: bool = True, exist_ok: bool = True) -> None:
        """Creates a folder and its parents."""
        with self._file_system() as gfile:
            gfile.makedirs(str(self))

    @contextlib.contextmanager
    def open(self, *_: object, **__: object) -> Iterator[Any]:  # type: ignore[override]
        """Opens a file for reading bytes, as a context manager."""
        with self._file_system() as gfile, gfile.GFile(str(self), "rb") as file:
            yield file

    def write_bytes(self, data: Any) -> int:
        """Writes a file, or replaces its content. If writing fails, an object store such as gs://
        keeps the old content.
        """
        with self._file_system() as gfile, gfile.GFile(str(self), "wb") as file:
            file.write(data)
        return len(data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes a file. A missing file is not an error."""
        self._listed.discard(str(self))
        with contextlib.suppress(FileNotFoundError), self._file_system() as gfile:
            gfile.remove(str(self))

    @contextlib.contextmanager
    def _file_system(self) -> Iterator[Any]:
        """Context manager that yields ``tf.io.gfile`` and converts TensorFlow errors in its block
        to OSError.
        """
        import tensorflow as tf

        try:
            yield tf.io.gfile
        except tf.errors.NotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from error
        except tf.errors.OpError as error:
            raise OSError(errno.EIO, informative_line(error), str(self)) from error
