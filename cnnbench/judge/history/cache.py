"""Caches the measurements in a results directory in an SQLite table.

The table consists of blocks, each of which contains many files. A block has one column that
describes the files in JSON, and a column of numbers for each metric. A reader reads only the
columns of the metrics that it needs. Long texts that many processes share (flags, properties of the
environment, the measured code) are stored once in a block, and also shared by decoded entries.

The table is an SQLite file in the directory of the records. It is only a cache and may be deleted
at any time. If the table is damaged, locked, from a different version, or cannot be written, the
records are read instead. Each column has a seal (a digest), which shows that this version of
cnnbench wrote the column and that it has not changed. Therefore writers need neither a journal nor
fsync. Several processes may read and write at the same time. If two blocks contain the same file,
one of the blocks is used, and the next writer removes the file from the other block.

A file is identified by its size, modification time and change time. If they differ, or if the file
was so new when it was read that a later change could have the same times, the digest of its content
is compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import sqlite3
import stat
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from cnnbench.base.slow_steps import SlowSteps
from cnnbench.base.terminal import print_notice
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.history.series import HistoryEntry
from cnnbench.judge.metrics.origin import Origin
from cnnbench.records.codec import decode, encode
from cnnbench.records.load import SkippedFile
from cnnbench.records.metric import HISTORY
from cnnbench.records.subject import Subject

_RACY_NS = 2_000_000_000
"""Resolution of file times in some file systems, in nanoseconds."""

FILES = "files"
"""Name of the column that describes the files of a block. All other columns are named by metrics.
"""


class Process(NamedTuple):
    """The measurements of one process, which are all from the same file."""

    run_id: str
    entries: list[HistoryEntry]


Content: TypeAlias = Process | SkippedFile | None
"""The content of a file; None if the file contains no measurements."""

SAME: Content = SkippedFile("", "")
"""Marker for a file whose content is equal to the content in the table."""


class CachedFile(NamedTuple):
    """One file of the results directory, as a row of the cache table.

    Attributes:
      path: path of the file in the folder.
      stamp: size and times of the file, see `file_stamp`.
      read_ns: time at which the file was read, in nanoseconds since the epoch.
      digest: digest of the content.
    """

    path: str
    stamp: str
    read_ns: int
    digest: str
    content: Content

    def is_current(self, status: os.stat_result) -> bool:
        """Whether size and times show that the file has not changed since it was read."""
        latest = max(status.st_mtime_ns, status.st_ctime_ns)
        return self.stamp == file_stamp(status) and latest < self.read_ns - _RACY_NS


def file_stamp(status: os.stat_result) -> str:
    """Returns text with the size and times of a file, which changes when the file changes."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def content_digest(data: bytes) -> str:
    """Returns a digest of bytes, such as the content of a file, as hexadecimal text."""
    return blake2b(data, digest_size=16).hexdigest()


def encode_block(rows: Sequence[CachedFile]) -> dict[str, bytes]:
    """Serializes files as a block of the table: the data of each column, by name."""
    texts: dict[str, int] = {}
    places: dict[Hashable, int] = {}
    values = {name: array("d") for name in HISTORY}

    def place(key: Hashable, *shared: object) -> int:
        """Returns the place in `texts` of objects that many entries have in common."""
        if key not in places:
            text = json.dumps(shared, default=_json_value)
            places[key] = texts.setdefault(text, len(texts))
        return places[key]

    def encoded(content: Content) -> Sequence[Any] | None:
        if isinstance(content, SkippedFile):
            return content.reason, content.defect
        if content is None or not content.entries:
            return content and (content.run_id,)
        first = content.entries[0]
        entries: list[Sequence[Any]] = []
        for entry in content.entries:
            slow = None if entry.slow is None else dataclasses.astuple(entry.slow)
            flags = place(id(entry.configuration), entry.configuration)
            entries.append((flags, entry.status, entry.error, slow))
            for name, column in values.items():
                column.append(entry.values.get(name, math.nan))
        key = (first.origin, repr(first.subject), *first.labels.items())
        source = place(key, first.origin, first.subject, first.labels)
        facts, started = place(id(first.facts), first.facts), first.started.isoformat()
        return content.run_id, started, first.pair, facts, source, entries

    files = [(*row[:-1], encoded(row.content)) for row in rows]
    text = json.dumps([[*texts], files]).encode()
    return {FILES: text, **{name: column.tobytes() for name, column in values.items()}}


def _json_value(value: Any) -> Any:
    is_configuration = isinstance(value, Configuration)
    return {**vars(value), "given": sorted(value.given)} if is_configuration else encode(value)


def decode_block(columns: Mapping[str, bytes], top: str) -> Iterator[CachedFile]:
    """Yields the files of a block, deserialized from its columns. Their measurements contain only
    the metrics whose columns are given. `top` precedes the paths of skipped files.
    """
    texts, files = json.loads(columns[FILES])
    names = [name for name in columns if name != FILES]
    values = zip(*(array("d", columns[name]) for name in names), strict=True)

    def decoded(path: str, content: Sequence[Any] | None) -> Content:
        if content is None:
            return None
        if len(content) == 1:
            return Process(content[0], [])
        if len(content) == 2:
            return SkippedFile(f"{top}{path}", *content)
        run_id, start, pair, facts, source, entries = content
        origin, subject, labels = _decode_source(texts[source])
        started, pair = datetime.fromisoformat(start), pair and (pair[0], pair[1])
        shared = _decode_facts(texts[facts])
        return Process(
            run_id,
            [
                HistoryEntry(
                    run_id=run_id,
                    started=started,
                    status=status,
                    error=error,
                    configuration=_decode_configuration(texts[configuration]),
                    labels=labels,
                    facts=shared,
                    values={n: v for n, v in zip(names, row, strict=True) if v == v},
                    origin=origin,
                    subject=subject,
                    pair=pair,
                    slow=slow and SlowSteps(slow[0], tuple(slow[1]), *slow[2:]),
                )
                for (configuration, status, error, slow), row in zip(entries, values, strict=False)
            ],
        )

    for path, stamp, read_ns, digest, content in files:
        yield CachedFile(path, stamp, read_ns, digest, decoded(path, content))


# A long text can occur many times, so it is parsed only once.


@lru_cache(maxsize=4096)
def _decode_configuration(text: str) -> Configuration:
    (decoded,) = json.loads(text)
    return Configuration(**{**decoded, "given": frozenset(decoded["given"])})


@lru_cache(maxsize=4096)
def _decode_facts(text: str) -> Mapping[str, str]:
    (facts,) = json.loads(text)
    return cast("Mapping[str, str]", facts)


@lru_cache(maxsize=4096)
def _decode_source(text: str) -> tuple[Origin, Subject | None, Mapping[str, str]]:
    origin, subject, labels = json.loads(text)
    return decode(Origin, origin), subject and decode(Subject, subject), labels


FILE = ".cnnbench-values.sqlite"
"""File name of the table in the results directory."""

FEWEST = 500
"""Minimum number of files for which a new table is created. Reading fewer files takes less than a
second.
"""

AT_ONCE = 2000
"""Number of files in a block. If cnnbench is interrupted, complete blocks remain in the table."""

_PATIENCE = 1.0
"""Maximum number of seconds to wait while another process writes to the table."""

_COLUMNS = """
CREATE TABLE IF NOT EXISTS columns (
  block TEXT, name TEXT, data BLOB, seal TEXT, PRIMARY KEY (block, name)
) WITHOUT ROWID
"""


class MeasurementCache:
    """The table that caches the measurements of a results directory. A missing or unusable table is
    treated as an empty table.

    Attributes:
      known: files by path in the folder, with the values of the selected metrics.
    """

    def __init__(self, folder: Path, metrics: Collection[str]) -> None:
        self._path, self._top = folder / FILE, os.path.join(folder, "")
        self.known: dict[str, CachedFile] = {}
        self._blocks: dict[str, str] = {}  # Maps the path of a file to the name of its block.
        # Names of blocks that the next write replaces: damaged blocks, and blocks that share a file
        # with another one.
        self._useless: set[str] = set()
        self._is_damaged = self._is_locked = False
        self._exists = os.path.lexists(self._path)
        if not self._is_file():
            return
        try:
            with self._open_database("ro") as database:
                wanted = FILES, *metrics
                where = f"name IN ({', '.join('?' * len(wanted))})"
                for block, columns in _undamaged_blocks(database, where, *wanted):
                    if len(columns) < len(wanted):
                        self._useless.add(block)
                        continue
                    for row in decode_block(columns, self._top):
                        if self._blocks.setdefault(row.path, block) == block:
                            self.known[row.path] = row
                        else:
                            self._useless.add(block)
        except _UNUSABLE as error:
            self._is_damaged = _shows_damage(error)
            self._is_locked = "is locked" in str(error)
            if self._is_locked:
                print_notice(f"{self._path} is locked by another program; all files are read anew")
            for cache in (self.known, self._blocks, self._useless):
                cache.clear()

    def write(self, rows: Collection[CachedFile], deleted: Collection[str] = ()) -> None:
        """Adds files to the table, and removes files that no longer exist in the directory. Errors
        are ignored.

        For a file whose content is `SAME`, only `stamp` and `read_ns` are replaced.
        """
        if not (self._is_file() if self._exists else len(rows) >= FEWEST):
            return None
        if self._is_locked or not (rows or deleted or self._useless):
            return None
        self._exists = True
        for _ in range(2):
            if self._is_damaged:
                # The file is deleted instead of changed: processes that have opened it can still
                # use it.
                with contextlib.suppress(OSError):
                    self._path.unlink()
                self._is_damaged = False
            try:
                return self._write(rows, deleted)
            except _UNUSABLE as error:
                self._is_damaged = _shows_damage(error)
                if not self._is_damaged:
                    return None
        return None

    def _is_file(self) -> bool:
        """Whether the table exists and is a regular file."""
        with contextlib.suppress(OSError):
            return stat.S_ISREG(os.lstat(self._path).st_mode)
        return False

    def _write(self, rows: Collection[CachedFile], deleted: Collection[str]) -> None:
        fresh = {row.path: row for row in rows}
        replaced = fresh.keys() | deleted
        blocks = self._useless | {self._blocks[path] for path in replaced if path in self._blocks}
        if rows:  # If blocks are at most half full, they are merged.
            sizes = Counter(self._blocks.values())
            blocks |= {block for block, size in sizes.items() if 2 * size <= AT_ONCE}
        places = dict.fromkeys(replaced, "")

        def kept_rows() -> Iterator[CachedFile]:
            for old in self._remove_blocks(database, blocks):
                if old.path not in replaced:
                    yield old
                elif old.path in fresh and fresh[old.path].content == SAME:
                    yield fresh[old.path]._replace(content=old.content)

        with self._open_database("rwc") as database:
            database.execute(_COLUMNS)
            database.execute("BEGIN IMMEDIATE")
            with database:
                left = chain(kept_rows(), (row for row in rows if row.content != SAME))
                while part := [*islice(left, AT_ONCE)]:
                    places |= dict.fromkeys(
                        (row.path for row in part), _insert_block(database, part)
                    )
        self._blocks |= places
        self._useless.clear()

    def _remove_blocks(
        self, database: sqlite3.Connection, blocks: Iterable[str]
    ) -> Iterator[CachedFile]:
        """Removes blocks from the table, and yields the files that they contained."""
        for block in blocks:
            for _, columns in [*_undamaged_blocks(database, "block = ?", block)]:
                if len(columns) > len(HISTORY):
                    rows = decode_block(columns, self._top)
                    yield from (row for row in rows if self._blocks.get(row.path) == block)
            database.execute("DELETE FROM columns WHERE block = ?", (block,))

    @contextlib.contextmanager
    def _open_database(self, mode: str) -> Iterator[sqlite3.Connection]:
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        database = sqlite3.connect(address, timeout=_PATIENCE, uri=True)
        with contextlib.closing(database):
            # A journal file that is left after a crash could be applied to another table, so it is
            # removed.
            database.execute("PRAGMA journal_mode = MEMORY")
            database.execute("PRAGMA synchronous = OFF")
            yield database


_UNUSABLE = (sqlite3.Error, OSError, ValueError, TypeError, LookupError, OverflowError)
"""Exceptions that may occur when a damaged table is read or written."""


def _shows_damage(error: Exception) -> bool:
    """Whether an exception means that the table is damaged, and not locked or unreadable."""
    if isinstance(error, OSError):
        return False
    is_operational = isinstance(error, sqlite3.OperationalError)
    return not is_operational or any(word in str(error) for word in ("no such", "column"))


def _undamaged_blocks(
    database: sqlite3.Connection, where: str, *values: str
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yields the name of each selected block, and its undamaged columns by name."""
    rows = database.execute(
        f"SELECT block, name, data, seal FROM columns WHERE {where} ORDER BY block", values
    )
    for block, columns in groupby(rows, key=itemgetter(0)):
        yield (
            block,
            {
                name: data
                for _, name, data, seal in columns
                if seal == _column_digest(block, name, data)
            },
        )


def _insert_block(database: sqlite3.Connection, rows: Sequence[CachedFile]) -> str:
    """Writes files as a new block. Returns its name, which is a digest of its content."""
    columns = encode_block(rows)
    block = content_digest(columns[FILES])
    database.executemany(
        "INSERT OR REPLACE INTO columns VALUES (?, ?, ?, ?)",
        ((block, name, data, _column_digest(block, name, data)) for name, data in columns.items()),
    )
    return block


def _column_digest(block: str, name: str, data: bytes) -> str:
    """Returns a digest of the data of a cached column and of the code of cnnbench. If the stored
    digest differs, the column must not be used.
    """
    return content_digest(b"\0".join((code_digest(), block.encode(), name.encode(), data)))


_DECIDING = tuple(
    f"cnnbench.{name}"
    for name in ("base", "records", "flags", "variable_mgr", "judge.metrics", "judge.compare")
)
"""Packages whose code determines which values are read from a file."""


@functools.cache
def code_digest() -> bytes:
    """Returns a digest of all source code that determines which values are read from files,
    including the metrics of plug-ins.
    """
    folders = [Path(place) for module in _DECIDING for place in import_module(module).__path__]
    files = {file for folder in folders for file in folder.rglob("*.py")}
    files |= {Path(__file__).with_name(name) for name in ("series.py", "cache.py", "reading.py")}
    homes = {getattr(metric.value, "__module__", "") for metric in HISTORY.values()}
    modules = (sys.modules.get(home) for home in homes)
    files |= {Path(file) for module in modules if (file := getattr(module, "__file__", None))}
    digest = hashlib.blake2b(repr([sys.byteorder, *HISTORY]).encode(), digest_size=16)
    for file in sorted(files):
        with contextlib.suppress(OSError):
            digest.update(file.read_bytes())
    return digest.digest()
