"""Results directories of commands that start processes: folder, durable files, journal."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.records.codec import TIME
from cnnbench.records.files import sync_folder, write_all, write_whole
from cnnbench.runtime.lock import FolderLock


def unusable(folder: str | Path, error: OSError) -> FlagError:
    """The refusal of a results directory.

    Args:
      folder: value of --results.
      error: why it cannot be used.
    """
    return FlagError("results", str(folder), f"cannot be used: {error.strerror}")


def hold(folder: str | Path) -> FolderLock:
    """Keeps a results directory for one command.

    Args:
      folder: value of --results; is there.

    Raises:
      FlagError: another process holds it, or it cannot be used.
    """
    try:
        return FolderLock(folder)
    except OSError as error:
        raise unusable(folder, error) from None


def write_durably(target: Path, data: bytes, via: Path | None = None) -> None:
    """Writes a file whole or not at all; survives a kill and a power cut.

    Args:
      target: the file.
      data: its content.
      via: where the content is put together, on the same file system; beside target if None.

    Raises:
      BenchmarkError: it cannot be written.
    """
    try:
        write_whole(via or target, data)
        if via is not None:
            os.replace(via, target)
            sync_folder(target.parent)
    except OSError as error:
        raise cannot_write(target, error) from error


def cannot_write(path: Path, error: OSError) -> BenchmarkError:
    """The error of a results directory that takes no more.

    Args:
      path: the file that could not be written.
      error: such as a full disk.
    """
    return BenchmarkError(f"{path}: cannot be written: {error.strerror or error}")


@dataclass(frozen=True, kw_only=True)
class JournalEvent:
    """A line of a journal; what else is known of the event are further keys.

    Attributes:
      event: what happened.
      time: when, ISO 8601, UTC.
    """

    more_keys: ClassVar[bool] = True

    event: str
    time: str = field(metadata=TIME)


class Journal:
    """Events, one JSON object per line, oldest first; append-only.

    A kill can tear the last line only; such a line is skipped when reading, and never joined
    with the next one when writing.

    Args:
      path: the file; made with the first event.
      timespec: precision of the times, see `datetime.isoformat`.
    """

    def __init__(self, path: Path, timespec: str = "seconds") -> None:
        self._path = path
        self._timespec = timespec

    def read(self) -> Iterator[dict[str, Any]]:
        """The events so far; none if there is no file."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return
        for line in data.splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event

    def add(self, event: str, **facts: Any) -> None:
        """Appends an event, with the time.

        Raises:
          BenchmarkError: such as a full disk.
        """
        now = datetime.now(timezone.utc).isoformat(timespec=self._timespec)
        known = vars(JournalEvent(event=event, time=now))
        line = json.dumps({**known, **facts}, default=str) + "\n"
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                size = os.lseek(descriptor, 0, os.SEEK_END)
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = "\n" + line
                write_all(descriptor, line.encode("ascii"))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise cannot_write(self._path, error) from error
