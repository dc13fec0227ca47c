"""Result files: checked before a run, written completely or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cnnbench.errors import BenchmarkError, FlagError


def real_path(flag: str, path: str) -> Path:
    """A path with symbolic links resolved; raises a FlagError where that is impossible."""
    try:
        target = Path(os.path.realpath(path))
        if os.path.islink(target):
            raise FlagError(flag, path, "is a symbolic link that leads back to itself")
    except (OSError, ValueError) as error:
        if isinstance(error, FlagError):
            raise
        raise FlagError(flag, path, f"cannot be used: {_reason(error)}") from error
    return target


def resolve_output(flag: str, path: str, suffixes: Sequence[str] = ()) -> Path:
    """The file that a result will be written to, with symbolic links resolved.

    Checks, without a trace, that a new file can be created beside it and that an existing one can
    be written; else raises a FlagError. Allowed suffixes are in lower case; any if empty.
    """
    if suffixes and Path(path).suffix.lower() not in suffixes:
        raise FlagError(flag, path, f"must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}")
    target = real_path(flag, path)
    try:
        if not path or path.endswith(os.sep) or target.is_dir():
            raise FlagError(flag, path, "is a folder; name a file")
        if target.exists() and not target.is_file():
            raise FlagError(flag, path, "is not a regular file")
        if not target.parent.is_dir():
            raise FlagError(flag, path, f"there is no folder {target.parent}")
        if target.exists():
            os.close(os.open(target, os.O_WRONLY | os.O_APPEND))
        probe = _temporary_beside(target)
        _prove(probe)
    except (OSError, ValueError) as error:
        if isinstance(error, FlagError):
            raise
        raise FlagError(flag, path, f"cannot be written: {_reason(error)}") from error
    return target


def prove_folder(flag: str, path: str) -> None:
    """Makes a folder; raises a FlagError if no files can be written in it."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            file.write(b"\n")  # on a full disk files can be created but not written
    except OSError as error:
        reason = error.strerror or str(error)
        raise FlagError(flag, path, f"must be a directory to write to: {reason}") from None


SAVED_MODEL = "saved_model.pb"
"""The file that marks a folder as a SavedModel."""


def resolve_folder(flag: str, path: str, marker: str) -> Path:
    """The folder that a result will create or replace, with symbolic links resolved.

    Creates parent folders. FlagError if something else is there: a folder that has files must
    contain `marker`, a file of every result of this kind.
    """
    target = real_path(flag, path)
    try:
        if not path or (target.exists() and not target.is_dir()):
            raise FlagError(flag, path, "is not a folder")
        if target.is_dir() and any(target.iterdir()) and not (target / marker).is_file():
            raise FlagError(flag, path, f"holds files, but no {marker}; name another folder")
    except OSError as error:
        raise FlagError(flag, path, f"cannot be read: {_reason(error)}") from error
    try:
        prove_folder(flag, str(target.parent))
    except FlagError as error:
        raise FlagError(flag, path, f"{target.parent} {error.reason}") from error
    return target


def write_whole(target: Path, data: bytes) -> None:
    """Replaces a file's content atomically and durably, and keeps the file's permissions.

    The target has symbolic links resolved. Also removes temporary files that killed writers left in
    the folder. After an OSError nothing is changed.
    """
    remove_abandoned(target.parent)
    temporary = _temporary_beside(target)
    try:
        descriptor = _locked(temporary)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def write_text(flag: str, path: str, text: str) -> None:
    """`write_bytes` of text in UTF-8; undecodable bytes of names appear as escapes."""
    write_bytes(flag, path, text.encode("utf-8", "backslashreplace"))


def write_bytes(flag: str, path: str, content: bytes) -> None:
    """Writes the result file of a command; after a BenchmarkError nothing is changed."""
    target = resolve_output(flag, path)
    try:
        write_whole(target, content)
    except OSError as error:
        raise BenchmarkError(f"{path}: cannot be written: {error.strerror}") from error


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all bytes, with one system call where possible; a failure may leave a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Flushes a folder, so that new and renamed entries survive a power failure."""
    with contextlib.suppress(OSError):  # not supported by every file system
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _locked(path: Path) -> int:
    """A new file, locked as long as its descriptor is open; see `remove_abandoned`."""
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(OSError):  # no locks on this file system, so nothing is removed
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # removed by another process between its creation and its lock


def remove_abandoned(folder: Path) -> None:
    """Removes temporary files whose writers are dead and so hold no lock."""
    for path in folder.glob(".cnnbench-*.tmp"):
        with contextlib.suppress(OSError):
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _prove(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, b"\n")
    finally:
        os.close(descriptor)
        path.unlink()


def _temporary_beside(target: Path) -> Path:
    # Of fixed length, so that a name the file system just allows has a neighbour.
    return target.with_name(f".cnnbench-{os.getpid()}-{secrets.token_hex(6)}.tmp")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
