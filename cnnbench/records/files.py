"""Writes output files, which are checked before a run starts, completely or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cnnbench.base.interrupts import delaying_interrupts
from cnnbench.base.text import enumeration
from cnnbench.base.urls import UrlPath, is_url, local_or_url_path
from cnnbench.errors import BenchmarkError, FlagError, PathError, informative_line

if TYPE_CHECKING:
    from cnnbench.base.charts import Chart


# The names of temporary files contain the host name, because another machine's locks may not be
# visible.
_UNFINISHED = f".cnnbench-{zlib.crc32(os.uname().nodename.encode()):08x}-"
# Messages about failed writes, as the keys of a dict, which keeps their order and removes
# duplicates.
_failures: dict[str, None] = {}
_SAVED_MODEL = ("variables", "assets", "assets.extra", "fingerprint.pb", "debug")


def resolve_links(flag: str, path: str) -> Path:
    """Resolves the symbolic links in the path of a flag. FlagError if they cannot be resolved."""
    if is_url(path):
        return UrlPath(path)
    with raising_flag_errors(flag, path, "used"):
        target = Path(os.path.realpath(path))
        if os.path.islink(target):
            raise FlagError(flag, path, "is a symbolic link that leads back to itself")
    return target


def check_and_resolve_output(flag: str, path: str, suffixes: Sequence[str] = ()) -> Path:
    """Resolves the symbolic links in the path of a result file, and checks that the file can be
    written.

    Checks that a new file can be created next to it, or that an existing file can be written;
    leaves no trace. FlagError otherwise. Allowed suffixes are in lower case; empty means any
    suffix.
    """
    if suffixes and Path(path).suffix.lower() not in suffixes:
        raise FlagError(flag, path, f"must end in {enumeration(suffixes)}")
    target = resolve_links(flag, path)
    with raising_flag_errors(flag, path, "written"):
        if not path or path.endswith(os.sep) or target.is_dir():
            raise FlagError(flag, path, "is a folder; name a file")
        if target.exists() and not target.is_file():
            raise FlagError(flag, path, "is not a regular file")
        if not target.parent.is_dir():
            raise FlagError(flag, path, f"there is no folder {target.parent}")
        if target.exists():
            os.close(os.open(target, os.O_WRONLY | os.O_APPEND))
        _prove_writable(target.parent)
    return target


STDOUT = 1
"""The descriptor of standard output."""

_DESCRIPTOR = re.compile(r"/dev/std(?P<name>out|err)|/(dev|proc/self)/fd/(?P<number>\d+)")


def stream_descriptor(path: str) -> int | None:
    """The number of the open file that a path such as /dev/stdout or /dev/fd/63 names, or None."""
    match = _DESCRIPTOR.fullmatch(path)
    if match is None:
        return None
    if match["name"]:
        return {"out": STDOUT, "err": 2}[match["name"]]
    return int(match["number"])


def is_stream(path: str) -> bool:
    """Whether a path names an open file, a named pipe or a character device such as /dev/null.
    Results are written into streams as they are; all other output files are replaced.
    """
    if stream_descriptor(path) is not None:
        return True
    with contextlib.suppress(OSError, ValueError):
        mode = os.stat(path).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
    return False


def _write_to_stream(path: str, content: bytes) -> None:
    descriptor = stream_descriptor(path)
    if descriptor is not None:
        sys.stdout.flush()
        write_all(descriptor, content)
        return
    with open(path, "wb", buffering=0) as file:
        write_all(file.fileno(), content)


def ensure_writable(flag: str, path: str) -> None:
    """Creates a folder if it does not exist. FlagError if no file can be written to it."""
    try:
        if not is_url(path):
            os.makedirs(path, exist_ok=True)
        _prove_writable(local_or_url_path(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise FlagError(flag, path, f"must be a directory to write to: {reason}") from None


def prepare_export(path: str) -> Path:
    """Returns the folder that --export_dir will create or replace, with resolved symbolic links.

    Creates parent folders. FlagError unless nothing exists at the path, or it is an empty folder,
    or a folder that contains only a SavedModel.
    """
    flag, marker = "export_dir", "saved_model.pb"
    target = resolve_links(flag, path)
    with raising_flag_errors(flag, path, "read"):
        if not path or (target.exists() and not target.is_dir()):
            raise FlagError(flag, path, "is not a folder")
        there = {entry.name for entry in target.iterdir()} if target.is_dir() else set()
        if there and not (target / marker).is_file():
            raise FlagError(flag, path, f"contains files, but no {marker}; name another folder")
        if other := min(there - {marker, *_SAVED_MODEL}, default=""):
            reason = f"contains {other}, which is not part of a SavedModel; name another folder"
            raise FlagError(flag, path, reason)
    try:
        # A URL is written in place: in an object store, renaming would copy every file.
        ensure_writable(flag, str(target if is_url(path) else target.parent))
    except FlagError as error:
        raise FlagError(flag, path, f"{target.parent} {error.reason}") from error
    return target


@delaying_interrupts()
def write_atomically(target: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces a file's content atomically and durably, and keeps the file's permissions.

    Symbolic links in the target must be resolved. Also removes temporary files that killed writers
    left in the folder. After an OSError, nothing has changed. Without `durable`, the file may be
    lost in a power failure until the caller syncs the disk.
    """
    # An object store shows a file only when it is complete, so no temporary file is needed.
    if isinstance(target, UrlPath):
        target.write_bytes(data)
        return
    remove_abandoned_files(target.parent)
    # The name has a fixed length, so it is valid even if the name of the target is long.
    temporary = target.with_name(f"{_UNFINISHED}{secrets.token_hex(6)}.tmp")
    descriptor = _create_locked(temporary)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
        write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)
        # Other writers remove unlocked temporary files, so this one stays locked until it is
        # renamed.
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(descriptor)
    if durable:
        sync_folder(target.parent)


@contextlib.contextmanager
def collecting_write_errors(flag: str, path: str, *others: type[Exception]) -> Iterator[None]:
    """Context manager for writing an output file. If writing fails, the command continues.

    `report_failed_writes` reports the failure. `others` are library errors that also mean a
    failure.
    """
    try:
        with raising_flag_errors(flag, path, "written"):
            yield
    except (BenchmarkError, FlagError) as error:
        _failures.setdefault(str(error))
    except others as error:
        _failures.setdefault(f"--{flag}={path}: cannot be written: {informative_line(error)}")


def report_failed_writes(warn: Callable[[str, str], None] | None = None) -> None:
    """Reports output files that could not be written since the last call of this function: calls
    `warn` if it is given, otherwise raises BenchmarkError.

    The arguments of `warn` are a line of text and the name of the warning.
    """
    text = "; ".join(_failures)
    _failures.clear()
    if text:
        if warn is None:
            raise BenchmarkError(text)
        warn(text, "outputs")


def write_text(flag: str, path: str, text: str) -> None:
    """Writes text to a result file in UTF-8; see `write_bytes`. Bytes of file names that are not
    UTF-8 become escape sequences.
    """
    write_bytes(flag, path, text.encode("utf-8", "backslashreplace"))


def write_bytes(flag: str, path: str, content: bytes) -> None:
    """Writes the result file of a command. If writing fails, the command continues.

    Streams (`is_stream`) get the content as it is.
    """
    with collecting_write_errors(flag, path):
        if is_stream(path):
            _write_to_stream(path, content)
        else:
            write_atomically(check_and_resolve_output(flag, path), content)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all bytes to a file descriptor, with one system call if possible. If writing fails,
    some bytes may have been written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Flushes a folder to the disk, so that new and renamed entries survive a power failure."""
    # Not every file system supports this.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _create_locked(path: Path) -> int:
    """Creates a file and locks it until its descriptor is closed, so that `remove_abandoned_files`
    does not remove the file.
    """
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        # If the file system does not support locks, `remove_abandoned_files` cannot lock and
        # removes nothing.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        # Another process has removed the file before it was locked, so it is created again.
        os.close(descriptor)


def remove_abandoned_files(folder: Path) -> None:
    """Removes temporary files of processes on this machine that were killed while writing. No
    process has a lock on such a file.
    """
    for path in folder.glob(f"{_UNFINISHED}*.tmp"):
        with contextlib.suppress(OSError):
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The path may already belong to a new file of another writer, which must not be
                # removed.
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    path.unlink()


def _prove_writable(folder: Path) -> None:
    if isinstance(folder, UrlPath):
        folder.mkdir()
        probe = folder / f".cnnbench-{secrets.token_hex(6)}.tmp"
        probe.write_bytes(b"\n")
        probe.unlink()
        return
    with delaying_interrupts(), tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        # On a full disk, creating a file succeeds but writing fails, so something is written.
        file.write(b"\n")


@contextlib.contextmanager
def raising_flag_errors(flag: str, path: str, verb: str) -> Iterator[None]:
    """Context manager that turns OSError and ValueError into a FlagError, which says that the path
    of the flag cannot be used, read or written (`verb`).
    """
    try:
        yield
    except FlagError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FlagError(flag, path, f"cannot be {verb}: {reason}") from error


IS_INPUT = "is an input file of this command; choose another file name"
"""Why an output file is refused if the command reads it."""


PICTURES = (".svg", ".png", ".pdf")
"""Suffixes of the files into which charts can be drawn."""


class OutputFile(NamedTuple):
    """An output file that a flag names. The path is None or "" if the flag is not given.

    Attributes:
      suffixes: allowed suffixes, in lower case; empty means any suffix.
    """

    flag: str
    path: str | None
    suffixes: Sequence[str] = ()


def check_outputs(outputs: Iterable[OutputFile], inputs: Iterable[str | None] = ()) -> None:
    """Checks that every output file can be written.

    FlagError if a path cannot become a regular file, or is another output or an input. `inputs` are
    the files, folders and patterns that the command reads; None and "" are ignored.
    """
    read = list(filter(None, inputs))
    wanted = []
    for flag, path, suffixes in outputs:
        if not path:
            continue
        wanted.append((flag, path))
        # If the flag has only one format, a stream needs no suffix that names the format.
        if is_stream(path) and len(suffixes) <= 1:
            if not os.access(path, os.W_OK):
                raise FlagError(flag, path, "cannot be written")
            continue
        target = check_and_resolve_output(flag, path, suffixes)
        if any(are_same_file(path, other) for other in read) or _is_result_in(target, read):
            raise FlagError(flag, path, IS_INPUT)
    refuse_shared_outputs(wanted)


def _is_result_in(target: Path, paths: Iterable[str]) -> bool:
    """Whether a file exists, and `load_records` reads a result from it in one of the folders or
    patterns. Documents of other kinds are not read, such as an earlier output of `compare`.
    """
    if not target.is_file():
        return False
    # Imported late, because most commands read no results.
    from cnnbench.records.load import SkippedFile, find_files, read_result

    for path in paths:
        if os.path.isdir(path) and target.suffix != ".json":
            continue
        with contextlib.suppress(PathError):
            if any(are_same_file(str(target), str(file)) for file in find_files([path])):
                found = read_result(str(target))
                return not isinstance(found, SkippedFile) or found.defect
    return False


def write_plot(path: str, charts: Sequence[Chart], title: str) -> None:
    """Draws charts, one below the other, into the file that --plot names."""
    # Imported late, because most commands draw no charts.
    from cnnbench.base.charts.draw import render_chart_file

    write_bytes("plot", path, render_chart_file(charts, Path(path).suffix.lower()[1:], title))


def refuse_shared_outputs(files: Iterable[tuple[str, str]]) -> None:
    """Raises FlagError if two flags name the same output file. `files` are pairs of a flag and its
    path.
    """
    seen: list[tuple[str, str]] = []
    for flag, path in files:
        for other, taken in seen:
            if other != flag and are_same_file(path, taken):
                raise FlagError(flag, path, f"is also the path of --{other}; name another path")
        resolve_links(flag, path)
        seen.append((flag, path))


def are_same_file(path: str, other: str) -> bool:
    """Whether two paths name the same file, directly or through links."""
    # If a file does not exist, `samefile` fails, so the resolved paths are compared below.
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(path, other)
    with contextlib.suppress(OSError, ValueError):
        return os.path.realpath(path) == os.path.realpath(other)
    return False
