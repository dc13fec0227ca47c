"""The table of a results folder: what its files say, so that each is read once.

It is an SQLite file beside the records, never the only copy of anything: it may be deleted at any
time, and one that is damaged, locked, of another version or in a folder that cannot be written is
no obstacle. It holds blocks of files in columns, see `cnnbench.judge.history.encoding`. A column
counts only if its seal shows that it is as this version wrote it, whatever else happened to the
file, so that writers need neither a journal nor a synchronised disk. Several processes may read and
write at once: of two blocks with the same file one counts, and the next writer removes it from the
other.

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
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path

from cnnbench.base.text.terminal import print_notice
from cnnbench.judge.history.encoding import FILES, SAME, Decoder, FileRow, digest, packed, unpacked
from cnnbench.judge.metrics.registry import HISTORY

FILE = ".cnnbench-values.sqlite"
"""Name of the table in its folder."""

FEWEST = 500
"""Files read at a time from which a new table is made: reading fewer takes less than a second."""

AT_ONCE = 2000
"""Files of a block; what an interrupted command has written before counts."""

_PATIENCE = 1.0
"""Seconds to wait for another process that writes."""

_COLUMNS = """
CREATE TABLE IF NOT EXISTS columns (
  block TEXT, name TEXT, data BLOB, seal TEXT, PRIMARY KEY (block, name)
) WITHOUT ROWID
"""


class ValueTable:
    """The table of a folder; empty where there is none that can be used.

    Attributes:
      known: the files by path in the folder, decoded, with values of some metrics.
    """

    def __init__(self, folder: Path, metrics: Collection[str], decoder: Decoder) -> None:
        self._path, top = folder / FILE, os.path.join(folder, "")
        self.known: dict[str, FileRow] = {}
        self._blocks: dict[str, str] = {}  # of each file
        self._useless: set[str] = set()  # blocks that are damaged or hold a file of another one
        self._is_damaged = self._is_locked = False
        self._exists = os.path.lexists(self._path)
        if not self._is_file():
            return
        try:
            with self._opened("ro") as database:
                wanted = FILES, *metrics
                where = f"name IN ({', '.join('?' * len(wanted))})"
                for block, columns in _sound(database, where, *wanted):
                    if len(columns) < len(wanted):
                        self._useless.add(block)
                        continue
                    for row in unpacked(columns):
                        if self._blocks.setdefault(row.path, block) != block:
                            self._useless.add(block)
                            continue
                        decoded = decoder(f"{top}{row.path}", row.said)
                        self.known[row.path] = row._replace(said=decoded)
        except _UNUSABLE as error:
            self._is_damaged = _shows_damage(error)
            self._is_locked = "is locked" in str(error)
            if self._is_locked:
                print_notice(f"{self._path} is locked by another program; all files are read anew")
            for found in (self.known, self._blocks, self._useless):
                found.clear()

    def write(self, rows: Collection[FileRow], gone: Collection[str] = ()) -> None:
        """Adds files and removes those that are gone, as far as possible.

        Of a file that says `SAME`, only stamp and time are replaced.
        """
        if not (self._is_file() if self._exists else len(rows) >= FEWEST):
            return None
        if self._is_locked or not (rows or gone or self._useless):
            return None
        self._exists = True
        for _ in range(2):
            if self._is_damaged:
                # Others that have it open go on with a file without a name.
                with contextlib.suppress(OSError):
                    self._path.unlink()
                self._is_damaged = False
            try:
                return self._write(rows, gone)
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

    def _write(self, rows: Collection[FileRow], gone: Collection[str]) -> None:
        fresh = {row.path: row for row in rows}
        replaced = fresh.keys() | gone
        blocks = self._useless | {self._blocks[one] for one in replaced if one in self._blocks}
        if rows:  # small blocks are joined
            sizes = Counter(self._blocks.values())
            blocks |= {block for block, size in sizes.items() if 2 * size <= AT_ONCE}
        places = dict.fromkeys(replaced, "")

        def kept() -> Iterator[FileRow]:
            for old in self._take(database, blocks):
                if old.path not in replaced:
                    yield old
                elif old.path in fresh and fresh[old.path].said == SAME:
                    yield fresh[old.path]._replace(said=old.said)

        with self._opened("rwc") as database:
            database.execute(_COLUMNS)
            database.execute("BEGIN IMMEDIATE")
            with database:
                left = chain(kept(), (row for row in rows if row.said != SAME))
                while part := [*islice(left, AT_ONCE)]:
                    places |= dict.fromkeys((row.path for row in part), _insert(database, part))
        self._blocks |= places
        self._useless.clear()

    def _take(self, database: sqlite3.Connection, blocks: Iterable[str]) -> Iterator[FileRow]:
        """Removes blocks and returns their files, one block after the other."""
        for block in blocks:
            for _, columns in [*_sound(database, "block = ?", block)]:
                if len(columns) > len(HISTORY):
                    rows = unpacked(columns)
                    yield from (row for row in rows if self._blocks.get(row.path) == block)
            database.execute("DELETE FROM columns WHERE block = ?", (block,))

    @contextlib.contextmanager
    def _opened(self, mode: str) -> Iterator[sqlite3.Connection]:
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        database = sqlite3.connect(address, timeout=_PATIENCE, uri=True)
        with contextlib.closing(database):
            # A journal or its remains, found by their names, could belong to another file.
            database.execute("PRAGMA journal_mode = MEMORY")
            database.execute("PRAGMA synchronous = OFF")
            yield database


_UNUSABLE = (sqlite3.Error, OSError, ValueError, TypeError, LookupError, OverflowError)
"""What reading and writing of a damaged table raise."""


def _shows_damage(error: Exception) -> bool:
    """Whether a table has to be made anew; others are locked or cannot be read or written."""
    if isinstance(error, OSError):
        return False
    is_operational = isinstance(error, sqlite3.OperationalError)
    return not is_operational or any(word in str(error) for word in ("no such", "column"))


def _sound(
    database: sqlite3.Connection, where: str, *values: str
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Blocks with those of their columns that are as they were written."""
    rows = database.execute(
        f"SELECT block, name, data, seal FROM columns WHERE {where} ORDER BY block", values
    )
    for block, columns in groupby(rows, key=itemgetter(0)):
        yield (
            block,
            {name: data for _, name, data, seal in columns if seal == _seal(block, name, data)},
        )


def _insert(database: sqlite3.Connection, rows: Sequence[FileRow]) -> str:
    """Adds a block; returns its name, a digest."""
    columns = packed(rows)
    block = digest(columns[FILES])
    database.executemany(
        "INSERT OR REPLACE INTO columns VALUES (?, ?, ?, ?)",
        ((block, name, data, _seal(block, name, data)) for name, data in columns.items()),
    )
    return block


def _seal(block: str, name: str, data: bytes) -> str:
    """Digest of a column and of this version, by which it is known to be as it was written."""
    return digest(b"\0".join((_version(), block.encode(), name.encode(), data)))


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
    found = hashlib.blake2b(repr([sys.byteorder, *HISTORY]).encode(), digest_size=16)
    for file in sorted(files):
        with contextlib.suppress(OSError):
            found.update(file.read_bytes())
    return found.digest()
