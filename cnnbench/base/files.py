"""Files: reading them with limits, locks, and files behind URLs.

TensorFlow is imported when a method of `UrlPath` accesses a file, and never for local paths.

The system releases a lock when its process ends. So the temporary folder of a killed process is
recognised by its own kind of lock file, unlocked, and removed by the next process that makes one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from datetime import datetime, timezone
from pathlib import Path, PosixPath
from typing import Any, ClassVar, NoReturn, TypeVar

from cnnbench.errors import FlagError, PathError, first_line

# URLs in place of paths: ``file://`` is a local path, other schemes are TensorFlow's file systems.

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


# Reading of files and JSON documents that users name, with limits of size and time.

_MIB = 1 << 20


def read_file(path: str | os.PathLike[str], most: int = 1024, flag: str = "") -> bytes:
    """The content of a file, of at most `most` MiB, or of a pipe with a writer, as ``<(command)``.

    Raises:
      PathError: it cannot be read, is a device, a pipe without a writer, or too large; FlagError if
        `flag` is given, whose value the path is.
    """
    try:
        # Opening a pipe would wait for a writer otherwise.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:
            mode = os.fstat(descriptor).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise ValueError("is a device, not a file")
            os.set_blocking(descriptor, True)
            parts, size = [], 0
            while part := file.read(_MIB):
                parts.append(part)
                size += len(part)
                if size > most * _MIB:
                    raise ValueError(f"has more than {most} MiB")
        if stat.S_ISFIFO(mode) and not parts:
            raise ValueError("is a pipe that nobody writes to")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        _refuse(path, f"cannot be read: {reason}", flag)
    return b"".join(parts)


def read_text(path: str | os.PathLike[str], flag: str = "") -> str:
    """The text of a file in UTF-8, with or without a byte order mark; see `read_file`."""
    try:
        return read_file(path, 16, flag).decode("utf-8-sig")
    except UnicodeDecodeError:
        _refuse(path, "cannot be read: it is no text in UTF-8", flag)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON value in a file; PathError if there is none. See `parse_json`."""
    return json_of(path, read_file(path))


def json_of(path: str | os.PathLike[str], data: bytes) -> Any:
    """The JSON value in the content of a file; see `read_json`."""
    try:
        return parse_json(data)
    except ValueError as error:
        _refuse(path, str(error))


@contextlib.contextmanager
def document(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turns a ValueError, or too deep nesting, of a document read in the block into PathError.

    `kind` names the document, with its article.
    """
    try:
        yield
    except PathError:
        raise
    except RecursionError:
        _refuse(path, f"not {kind}: nested too deeply")
    except ValueError as error:
        _refuse(path, f"not {kind}: {error}")


def parse_json(text: str | bytes) -> Any:
    """The JSON value in a text.

    ValueError if it is not JSON, is nested too deeply or has what only Python accepts: repeated
    keys, NaN and Infinity, numbers beyond all doubles.
    """
    try:
        return json.loads(
            text, parse_constant=_constant, parse_float=_finite, object_pairs_hook=_unique
        )
    except json.JSONDecodeError as error:
        found = error.doc.strip()
        if not found:
            raise ValueError("empty") from None
        if found.startswith("{") and not found.endswith("}"):
            raise ValueError(f"cut off after {len(error.doc)} characters") from None
        where = f"(line {error.lineno}, column {error.colno})"
        raise ValueError(f"not JSON: {error.msg} {where}") from None
    except UnicodeDecodeError:
        raise ValueError("not JSON: not text in UTF-8") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def _refuse(path: str | os.PathLike[str], reason: str, flag: str = "") -> NoReturn:
    name = os.fspath(path)
    raise FlagError(flag, name, reason) if flag else PathError(name, reason)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"not JSON: {text[:20]} is beyond all doubles")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"not JSON: the key {twice[:40]!r} is there twice")
    return found


# Locks that give a folder one writer, and temporary folders.

FILE = ".cnnbench-lock"
"""The file in a folder that its writer locks."""

LOGS = ".cnnbench-lock-of-logs"
"""The same for logs, which may be beside the files of another writer, such as checkpoints."""

SCRATCH = ".cnnbench-scratch"
"""The same for temporary folders. Only these have it: a folder without it is never removed."""

SCRATCH_OF_PARENT = "CNNBENCH_SCRATCH"
"""Variable with the temporary folder in which a process writes for its parent, which lives."""

SCRATCH_NAME = re.compile(r"(cnnbench-[a-z]+|unfinished)-[a-z0-9_]{8}")
"""Names of temporary folders."""

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems that have no locks."""

_POLL_SECONDS = 0.05


class FolderLock:
    """Excludes other writers of cnnbench from a folder; readers are not affected.

    An flock on a file that names the folder and the holder: process number, host and time. The file
    is removed on release. A killed process leaves it unlocked, and the next writer takes it over;
    a temporary folder becomes an ordinary one by its first writer, see `claim`. NFS passes such
    locks between machines, and drops those of a lost machine when its lease ends; other network
    file systems may keep them to one machine or have none.

    Attributes:
      left_by: holder on another machine that the file names: it was killed there, or still writes
        because locks do not reach it; "" for none.

    Args:
      patience: seconds to wait for a holder that may be about to end.

    Raises:
      BlockingIOError: another process holds it; the message names that one.
      OSError: it cannot be locked; `errno` is one of `NO_LOCKS` where no file there can.
    """

    def __init__(self, folder: str | Path, patience: float = 0.0, file: str = FILE) -> None:
        if is_url(folder):
            raise OSError(errno.EOPNOTSUPP, "URLs have no locks")
        if file != SCRATCH:
            claim(folder)
        self._path = Path(folder) / file
        self._descriptor = self._locked(time.monotonic() + patience)
        host = socket.gethostname()
        left, where, _ = _holder(self._descriptor)
        self.left_by = left if where != host else ""
        now = datetime.now(timezone.utc)
        about = {"pid": os.getpid(), "host": host, "since": f"{now:%Y-%m-%d %H:%M:%S} UTC"}
        about["folder"] = self._path.parent.name
        with contextlib.suppress(OSError):  # such as a full disk; the lock holds anyway
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(about).encode("ascii"), 0)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Releases the lock."""
        with contextlib.suppress(OSError):  # another folder may have taken the path
            if os.path.samestat(os.fstat(self._descriptor), os.stat(self._path)):
                self._path.unlink()  # still locked; the next writer creates a new file
        os.close(self._descriptor)

    def _locked(self, deadline: float) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                with contextlib.suppress(OSError):  # for all who can write to the folder
                    os.fchmod(descriptor, stat.S_IMODE(self._path.parent.stat().st_mode) & 0o666)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    return descriptor
            except FileNotFoundError:
                pass  # removed by its holder between the opening and the lock
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    reason = self._refusal(descriptor)
                    os.close(descriptor)
                    raise BlockingIOError(error.errno, reason) from None
                time.sleep(_POLL_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _refusal(self, descriptor: int) -> str:
        holder, host, _ = _holder(descriptor)
        reason = "another process is writing there"
        if not holder:
            return reason
        if host != socket.gethostname():
            holder += f"; if that machine is down, remove {self._path}"
        return f"{reason}: {holder}"


def hold(
    flag: str,
    folder: str,
    warn: Callable[[str], None],
    patience: float = 0.0,
    file: str = FILE,
) -> contextlib.AbstractContextManager[object]:
    """Locks the folder of a flag for this process, as far as its file system supports locks.

    `warn` gets a line about locks that may not reach all writers; `patience` and `file` are those
    of `FolderLock`. FlagError if another process holds the lock or the folder cannot be used.
    """
    try:
        lock = FolderLock(folder, patience, file)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise FlagError(flag, folder, error.strerror or str(error)) from None
        why = f"cannot be locked ({error.strerror}); let no other process write there"
        warn(f"--{flag}={folder}: {why}")
        return contextlib.nullcontext()
    if lock.left_by:
        why = f"was not released by {lock.left_by}; if that still runs, end one of the two"
        warn(f"--{flag}={folder}: {why}")
    return lock


def claim(path: str | Path) -> None:
    """Makes temporary folders of killed processes that contain a path ordinary ones, which stay.

    BlockingIOError if the process of one lives and will remove it; see `SCRATCH_OF_PARENT`.
    """
    ours = os.environ.get(SCRATCH_OF_PARENT)
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        if os.path.lexists(folder / SCRATCH) and str(folder) != ours:
            FolderLock(folder, file=SCRATCH).release()


def _holder(descriptor: int) -> tuple[str, str, str]:
    """Description and host of the process that a lock file names, and its folder; empty if none."""
    try:
        about = json.loads(os.pread(descriptor, 4096, 0))
        holder = f"pid {about['pid']} on {about['host']} since {about['since']}"
        return holder, str(about["host"]), str(about.get("folder"))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "", "", ""


class Scratch:
    """A new temporary folder, `path`, removed when its context is left unless `kept` is set.

    OSError if it cannot be made. The folder also contains the file of its lock.

    Args:
      prefix: the beginning of its name, see `SCRATCH_NAME`.
      parent: the folder for it; by default that of temporary files.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock: FolderLock | None = None
        with contextlib.suppress(OSError):  # no locks on this file system
            self._lock = FolderLock(self.path, file=SCRATCH)
        self.kept = False

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()


def remove_abandoned(parent: Path) -> None:
    """Removes temporary folders of this user whose processes were killed on this machine.

    Such a folder has a name that `Scratch` gives, and a file `SCRATCH` that names it and this
    machine and is not locked; a copy, a link, or a folder that was kept or claimed has not.
    """
    for folder in parent.iterdir():
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            about = folder.lstat()
            own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
            if not (own and SCRATCH_NAME.fullmatch(folder.name)):
                continue
            # Not made here, unlike that of a FolderLock; empty if it was made and not yet locked.
            file = os.open(folder / SCRATCH, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            made = _holder(file)[1:] == (socket.gethostname(), folder.name)
            if made and os.fstat(file).st_nlink:
                shutil.rmtree(folder, ignore_errors=True)
