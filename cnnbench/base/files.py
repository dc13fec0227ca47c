"""Functions for files: reading with a size limit, folder locks, temporary folders, and URLs as
paths.

TensorFlow is imported only when a method of `UrlPath` accesses a file. Local paths do not need it.

The operating system releases the locks of a process when the process ends. A temporary folder
contains a lock file of a separate kind. If this file is not locked, the process that created the
folder was killed, and the next process that creates a temporary folder removes it.
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
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from datetime import datetime, timezone
from pathlib import Path, PosixPath
from typing import Any, ClassVar, NoReturn, TypeVar

from cnnbench.errors import FlagError, PathError, first_line

# URLs with the scheme file: are local paths. TensorFlow's file systems access all other URLs.

_URL = re.compile(r"[A-Za-z][\w.+-]*:/")
_FILE = re.compile(r"file:(//(localhost)?)?(?=/(?!/))")
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

    # Caches the paths that `iterdir` has returned, to avoid a request to the object store per file.
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
        # `stat` is called for its error message: `listdir` reports every error as a missing folder.
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
            raise OSError(errno.EIO, first_line(error), str(self)) from error


# Functions that read files and JSON documents whose paths users give.

_MIB = 1 << 20
# Every integer of this many digits is in the range of doubles.
_MOST_DIGITS = 300


def read_file(path: str | os.PathLike[str], max_mib: int = 1024, flag: str = "") -> bytes:
    """Reads a file, or a pipe such as ``<(command)``, of at most `max_mib` MiB.

    Raises:
      PathError: the file cannot be read, is a device or a pipe without a writer, or is too large.
        If `flag` is given, a FlagError for this flag is raised instead.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
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
                if size > max_mib * _MIB:
                    raise ValueError(f"has more than {max_mib} MiB")
        if stat.S_ISFIFO(mode) and not parts:
            raise ValueError("is a pipe without a writer")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        _raise_path_error(path, f"cannot be read: {reason}", flag)
    return b"".join(parts)


def read_text(path: str | os.PathLike[str], flag: str = "") -> str:
    """Reads a UTF-8 text file of at most 16 MiB, and removes a byte order mark; see `read_file`."""
    try:
        return read_file(path, 16, flag).decode("utf-8-sig")
    except UnicodeDecodeError:
        _raise_path_error(path, "cannot be read: it is not UTF-8 text", flag)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Reads a JSON file; PathError if the file cannot be read or is not valid JSON. See
    `parse_json`.
    """
    return json_from_content(path, read_file(path))


def json_from_content(path: str | os.PathLike[str], data: bytes) -> Any:
    """Parses `data`, the content of the file `path`, as JSON; PathError if `data` is not valid
    JSON.
    """
    try:
        return parse_json(data)
    except ValueError as error:
        _raise_path_error(path, str(error))


@contextlib.contextmanager
def converting_parse_errors(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Context manager that converts a ValueError or RecursionError from the parsing of a file to a
    PathError.

    `kind` names the document in the message, with an article.
    """
    try:
        yield
    except PathError:
        raise
    except RecursionError:
        _raise_path_error(path, f"not {kind}: nested too deeply")
    except ValueError as error:
        _raise_path_error(path, f"not {kind}: {error}")


def parse_json(text: str | bytes, *, any_number: bool = False) -> Any:
    """Parses a JSON document more strictly than `json.loads`.

    ValueError if the text is not JSON, is nested too deeply, or contains what only Python accepts:
    duplicate keys, NaN, Infinity, or numbers outside the range of doubles. With `any_number`, such
    numbers are accepted. Integers of more than 300 digits are then infinite floats.
    """
    try:
        return json.loads(
            text,
            parse_int=_long_integer if any_number else None,
            parse_float=None if any_number else _finite_float,
            parse_constant=None if any_number else _refuse_constant,
            object_pairs_hook=_unique_dict,
        )
    except json.JSONDecodeError as error:
        stripped = error.doc.strip()
        if not stripped:
            raise ValueError("empty") from None
        if stripped.startswith("{") and not stripped.endswith("}"):
            raise ValueError(f"cut off after {len(error.doc)} characters") from None
        where = f"(line {error.lineno}, column {error.colno})"
        raise ValueError(f"not JSON: {error.msg} {where}") from None
    except UnicodeDecodeError:
        raise ValueError("not JSON: not text in UTF-8") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def _raise_path_error(path: str | os.PathLike[str], reason: str, flag: str = "") -> NoReturn:
    name = os.fspath(path)
    raise FlagError(flag, name, reason) if flag else PathError(name, reason)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name}")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"not JSON: {text[:20]} is too large for a double")
    return number


def _long_integer(text: str) -> float:
    return int(text) if len(text) <= _MOST_DIGITS else float(text)


def _unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) < len(pairs):
        numbers = Counter(name for name, _ in pairs)
        twice = next(name for name, number in numbers.items() if number > 1)
        raise ValueError(f"not JSON: duplicate key {twice[:40]!r}")
    return by_key


# Classes and functions that lock folders, so that only one process writes to a folder at a time.

FILE = ".cnnbench-lock"
"""Name of the lock file in a folder. The process that writes to the folder locks it."""

LOGS = ".cnnbench-lock-of-logs"
"""Name of the lock file for logs.

A folder of logs may also contain the checkpoints of another writer.
"""

SCRATCH = ".cnnbench-temporary"
"""Name of the lock file in temporary folders. A folder without it is never removed.

`ab` also starts earlier commits in such a folder. Some of them refuse to write to a folder that
contains the file `.cnnbench-scratch`, which was the name of this file.
"""

SCRATCH_OF_PARENT = "CNNBENCH_SCRATCH"
"""Environment variable with the temporary folder in which a child writes for its parent."""

SCRATCH_NAME = re.compile(r"(cnnbench-[a-z]+|unfinished)-[a-z0-9_]{8}")
"""Pattern of the names of temporary folders."""

CHECKOUT = "cnnbench-checkout-"
"""Beginning of the names of temporary folders that contain a git worktree."""

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Error numbers of file systems that do not support locks."""

_POLL_SECONDS = 0.05


class FolderLock:
    """Keeps other cnnbench processes from writing to a folder. Readers are not affected.

    The lock is an flock on a file that contains the folder's name and the holder: PID, host and
    time. Releasing the lock removes the file. If the holder is killed, the file remains without a
    lock, and the next writer locks it. The first other process that writes to an abandoned
    temporary folder turns it into an ordinary folder, see `keep_temporary_folders`.

    On NFS, locks apply to all machines; the locks of a crashed machine are dropped when its lease
    ends. On other network file systems, locks may apply to one machine only, or may not be
    supported.

    Attributes:
      left_by: the earlier holder, if the lock file names a process on another machine; otherwise
        "". This process was killed, or it still writes because locks do not apply to both machines.

    Args:
      wait_seconds: seconds to wait for a holder that may be about to end.

    Raises:
      BlockingIOError: another process holds the lock; the message names this process.
      OSError: the lock file cannot be locked. If the file system does not support locks, `errno` is
        one of `NO_LOCKS`.
    """

    def __init__(self, folder: str | Path, wait_seconds: float = 0.0, file: str = FILE) -> None:
        if is_url(folder):
            raise OSError(errno.EOPNOTSUPP, "URLs have no locks")
        if file != SCRATCH:
            keep_temporary_folders(folder)
        self._path = Path(folder) / file
        self._descriptor = self._open_locked(time.monotonic() + wait_seconds)
        host = socket.gethostname()
        left, where, _ = _read_lock_file(self._descriptor)
        self.left_by = left if where != host else ""
        now = datetime.now(timezone.utc)
        about = {"pid": os.getpid(), "host": host, "since": f"{now:%Y-%m-%d %H:%M:%S} UTC"}
        about["folder"] = self._path.parent.name
        # The lock is also valid if the content of its file cannot be written, as on a full disk.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(about).encode("ascii"), 0)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Releases the lock."""
        # The folder may have been moved, and a new folder created in its place.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), os.stat(self._path)):
                # The file is removed while it is locked, so the next writer creates a new file.
                self._path.unlink()
        os.close(self._descriptor)

    def _open_locked(self, deadline: float) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                # Everyone who can write to the folder must be able to lock the file.
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, stat.S_IMODE(self._path.parent.stat().st_mode) & 0o666)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    return descriptor
            except FileNotFoundError:
                # The previous holder removed the lock file after this process had opened it.
                pass
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    reason = self._refusal_text(descriptor)
                    os.close(descriptor)
                    raise BlockingIOError(error.errno, reason) from None
                time.sleep(_POLL_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _refusal_text(self, descriptor: int) -> str:
        holder, host, _ = _read_lock_file(descriptor)
        reason = "another process is writing there"
        if not holder:
            return reason
        if host != socket.gethostname():
            holder += f"; if that machine is down, remove {self._path}"
        return f"{reason}: {holder}"


def lock_folder(
    flag: str,
    folder: str,
    warn: Callable[[str], None],
    wait_seconds: float = 0.0,
    file: str = FILE,
) -> contextlib.AbstractContextManager[object]:
    """Locks a folder, the value of a flag, if the file system supports locks.

    `warn` is called with a line of text if the lock may not exclude all writers. `wait_seconds` and
    `file` are passed to `FolderLock`. FlagError if another process holds the lock or the folder
    cannot be used.
    """
    try:
        lock = FolderLock(folder, wait_seconds, file)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise FlagError(flag, folder, error.strerror or str(error)) from None
        why = f"cannot be locked ({error.strerror}); let no other process write there"
        warn(f"--{flag}={folder}: {why}")
        return contextlib.nullcontext()
    if lock.left_by:
        why = (
            f"was not released by {lock.left_by}; if that still runs, end one of the two processes"
        )
        warn(f"--{flag}={folder}: {why}")
    return lock


def keep_temporary_folders(path: str | Path) -> None:
    """Converts abandoned temporary folders to ordinary folders, which are never removed
    automatically: all such folders that are parents of `path`, or `path` itself.

    BlockingIOError if the process that created the folder is still running, because it will remove
    the folder. The folder in `SCRATCH_OF_PARENT` is left unchanged, and so is a `CHECKOUT` in use,
    because programs may write to the worktree in which they are measured.
    """
    ours = os.environ.get(SCRATCH_OF_PARENT)
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        if os.path.lexists(folder / SCRATCH) and str(folder) != ours:
            try:
                FolderLock(folder, file=SCRATCH).release()
            except BlockingIOError:
                if not folder.name.startswith(CHECKOUT):
                    raise


def _read_lock_file(descriptor: int) -> tuple[str, str, str]:
    """Reads a lock file. Returns a text that describes the process that holds the lock (PID, host
    and time), the host, and the name of the locked folder.

    All three are "" if the content of the lock file is not valid.
    """
    try:
        about = json.loads(os.pread(descriptor, 4096, 0))
        holder = f"pid {about['pid']} on {about['host']} since {about['since']}"
        return holder, str(about["host"]), str(about.get("folder"))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "", "", ""


class TemporaryFolder:
    """Context manager that creates a temporary folder, `path`, and removes it at the end.

    The folder remains if `kept` is set.

    The folder also contains a lock file. Raises OSError if the folder cannot be created.

    Args:
      prefix: the beginning of the folder's name, see `SCRATCH_NAME`.
      parent: where to create the folder; by default, the system's folder for temporary files.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock: FolderLock | None = None
        # If the file system does not support locks, the temporary folder is not locked.
        with contextlib.suppress(OSError):
            self._lock = FolderLock(self.path, file=SCRATCH)
        self.kept = False

    def __enter__(self) -> TemporaryFolder:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()


def remove_abandoned(parent: Path) -> None:
    """Removes temporary folders in `parent` that killed processes of this user on this machine have
    left behind.
    """
    for folder in parent.iterdir():
        remove_if_abandoned(folder)


def remove_if_abandoned(folder: Path) -> None:
    """Removes a temporary folder that a killed process of this user on this machine has left.

    The folder is removed if its name matches `SCRATCH_NAME` and it contains an unlocked file
    `SCRATCH` with the names of the folder and of this machine. Copies, links, and folders that were
    kept or claimed do not fulfil these conditions.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        about = folder.lstat()
        own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
        if not (own and SCRATCH_NAME.fullmatch(folder.name)):
            return
        # FolderLock is not used here, because it would create a missing lock file.
        # An empty lock file is ignored: its creator may be about to lock and write it.
        file = os.open(folder / SCRATCH, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        stack.callback(os.close, file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made = _read_lock_file(file)[1:] == (socket.gethostname(), folder.name)
        if made and os.fstat(file).st_nlink:
            shutil.rmtree(folder, ignore_errors=True)
