"""The table of a results folder: what its files say, so that each is read once.

It is an SQLite file beside the records, never the only copy of anything: it may be deleted at any
time, and one that is damaged, locked, of another version or in a folder that cannot be written is
no obstacle. A row counts only if its seal shows that it is as this version wrote it, whatever else
happened to the file, so that writers need neither a journal nor a synchronised disk. Several
processes may read and write at once.

A file is known by size, time of content and time of change. Where these differ, and where the file
was so new when it was read that a second change could have left the same times, its digest decides.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sqlite3
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from cnnbench.judge.history.encoding import digest
from cnnbench.judge.metrics.registry import HISTORY

FILE = ".cnnbench-values.sqlite"
"""Name of the table in its folder."""

FEWEST = 500
"""Files read at a time from which a new table is made: reading fewer takes less than a second."""

_PATIENCE = 5.0
"""Seconds to wait for another process that writes."""

_RACY_NS = 2_000_000_000
"""Times of some file systems are this coarse."""

_AT_ONCE = 2000
"""Rows of a transaction; what an interrupted command has written before counts."""

_TABLES = """
CREATE TABLE IF NOT EXISTS files (
  path BLOB PRIMARY KEY, stamp TEXT, read_ns INTEGER, digest TEXT, text TEXT, seal TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (digest TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID;
"""


class FileRow(NamedTuple):
    """A file as it was read.

    Attributes:
      stamp: its size and times.
      read_ns: when it was read, in nanoseconds since the epoch.
      digest: digest of its content.
      text: what it says, see `cnnbench.judge.history.encoding`.
    """

    stamp: str
    read_ns: int
    digest: str
    text: str

    def is_current(self, found: os.stat_result) -> bool:
        """Whether a file has not changed since, by its size and times alone."""
        latest = max(found.st_mtime_ns, found.st_ctime_ns)
        return self.stamp == stamp_of(found) and latest < self.read_ns - _RACY_NS


def stamp_of(found: os.stat_result) -> str:
    """Size, time of content and time of change of a file."""
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


class ValueTable:
    """The table of a folder; empty where there is none that can be used."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.rows: dict[str, FileRow] = {}
        self.parts: dict[str, str] = {}
        self._is_damaged = False
        self._exists = os.path.lexists(self._path)
        if not self._is_file():
            return
        try:
            with self._opened("ro") as database:
                self.parts.update(database.execute("SELECT digest, text FROM parts"))
                for path, *cells, seal in database.execute(
                    "SELECT path, stamp, read_ns, digest, text, seal FROM files"
                ):
                    row = FileRow(*cells)
                    if seal == _seal(path, row):
                        self.rows[os.fsdecode(path)] = row
        except _UNUSABLE as error:
            self._is_damaged = _shows_damage(error)
            self.rows.clear()
            self.parts.clear()

    def write(
        self, rows: Mapping[str, FileRow], parts: Mapping[str, str], gone: Iterable[str]
    ) -> None:
        """Adds rows and parts and removes the rows of files that are gone, as far as possible."""
        gone = [*gone]
        if not (self._is_file() if self._exists else len(rows) >= FEWEST) or not (rows or gone):
            return None
        self._exists = True
        for _ in range(2):
            if self._is_damaged:
                # Others that have it open go on with a file without a name.
                with contextlib.suppress(OSError):
                    self._path.unlink()
                self._is_damaged = False
            try:
                return self._write(rows, parts, gone)
            except _UNUSABLE as error:
                self._is_damaged = _shows_damage(error)
                if not self._is_damaged:
                    return None
        return None

    def _is_file(self) -> bool:
        """Whether the table is a file of its own, not a link or a pipe."""
        with contextlib.suppress(OSError):
            return stat.S_ISREG(os.lstat(self._path).st_mode)
        return False

    def _write(
        self, rows: Mapping[str, FileRow], parts: Mapping[str, str], gone: Iterable[str]
    ) -> None:
        with self._opened("rwc") as database:
            database.executescript(_TABLES)
            with database:
                database.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?)", parts.items())
            sealed = (
                (name, *row, _seal(name, row))
                for name, row in ((os.fsencode(path), row) for path, row in rows.items())
            )
            with database:
                database.executemany("INSERT OR REPLACE INTO files VALUES (?,?,?,?,?,?)", sealed)
                names = ((os.fsencode(path),) for path in gone)
                database.executemany("DELETE FROM files WHERE path = ?", names)

    @contextlib.contextmanager
    def _opened(self, mode: str) -> Iterator[sqlite3.Connection]:
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        database = sqlite3.connect(address, timeout=_PATIENCE, uri=True)
        with contextlib.closing(database):
            # A journal or its remains, found by their names, could belong to another file.
            database.execute("PRAGMA journal_mode = MEMORY")
            database.execute("PRAGMA synchronous = OFF")
            yield database


_UNUSABLE = (sqlite3.Error, OSError, ValueError, TypeError, OverflowError)
"""What reading and writing of a damaged table raise."""


def _shows_damage(error: Exception) -> bool:
    """Whether a table has to be made anew; others are locked or cannot be read or written."""
    if isinstance(error, OSError):
        return False
    is_operational = isinstance(error, sqlite3.OperationalError)
    return not is_operational or any(word in str(error) for word in ("no such", "column"))


def _seal(path: bytes, row: FileRow) -> str:
    """Digest of a row and of this version, by which a row is known to be as it was written."""
    return digest(b"\0".join((_version(), path, *(str(cell).encode() for cell in row))))


_DECIDING = tuple(
    f"cnnbench.{name}"
    for name in ("base", "records", "flags", "variable_mgr", "judge.metrics", "judge.compare")
)
"""Packages with the code that decides what a file says."""


@functools.cache
def _version() -> bytes:
    """Digest of all code that decides what a file says, metrics of plug-ins included."""
    folders = [Path(place) for one in _DECIDING for place in import_module(one).__path__]
    files = {file for folder in folders for file in folder.rglob("*.py")}
    files |= {Path(__file__).with_name(name) for name in ("series.py", "encoding.py")}
    homes = {getattr(metric.value, "__module__", "") for metric in HISTORY.values()}
    modules = (sys.modules.get(home) for home in homes)
    files |= {Path(file) for one in modules if (file := getattr(one, "__file__", None))}
    found = hashlib.blake2b(repr([*HISTORY]).encode(), digest_size=16)
    for file in sorted(files):
        with contextlib.suppress(OSError):
            found.update(file.read_bytes())
    return found.digest()
