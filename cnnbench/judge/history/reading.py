"""Reading results for a history, and the table that remembers them.

A block of the table has a column of files in JSON and one of numbers for each metric, of which a
reader takes the one that it follows. Long texts that many processes share (flags, facts of the
environment, the measured code) are listed once in a block; decoded entries share them, too.

It is an SQLite file beside the records, never the only copy of anything: it may be deleted at any
time, and one that is damaged, locked, of another version or in a folder that cannot be written is
no obstacle. It holds blocks of files in columns, see `cnnbench.judge.history.reading`. A column
counts only if its seal shows that it is as this version wrote it, whatever else happened to the
file, so that writers need neither a journal nor a synchronised disk. Several processes may read and
write at once: of two blocks with the same file one counts, and the next writer removes it from the
other.

A file is known by size, time of content and time of change. Where these differ, and where the file
was so new when it was read that a second change could have left the same times, its digest decides.
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
import time
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import blake2b
from importlib import import_module
from itertools import chain, groupby, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cnnbench.base.files import read_file
from cnnbench.base.interrupts import uninterrupted
from cnnbench.base.slow_steps import SlowSteps
from cnnbench.base.terminal import Progress, print_notice
from cnnbench.errors import PathError
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.history.series import HistoryEntry
from cnnbench.judge.metrics.measurement import Origin
from cnnbench.machine.cpu import usable_cpus
from cnnbench.records import result_files
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import decode, encode
from cnnbench.records.metric import HISTORY
from cnnbench.records.result_files import SkippedFile, files, load_records
from cnnbench.records.run import RunRecord, Subject

# What files say about their measurements, as the table of a folder holds it.

_RACY_NS = 2_000_000_000
"""Times of some file systems are this coarse."""

FILES = "files"
"""Name of the column of files; the others have the names of metrics."""


class EncodedEntry(NamedTuple):
    """An entry without values that its whole process shares; the configuration is JSON."""

    configuration: str
    status: str
    error: str
    slow: tuple[Any, ...] | None
    values: Mapping[str, float]


class EncodedProcess(NamedTuple):
    """The measurements of one process; facts and source are JSON."""

    run_id: str
    started: str
    pair: tuple[int, int] | None
    facts: str
    source: str
    entries: Sequence[EncodedEntry]


Encoded: TypeAlias = EncodedProcess | tuple[str, bool] | None
"""What a file says: reason and defect of a skipped file; None without measurements."""

SAME: Encoded = ("", False)
"""What the table has of the file already."""


class FileRow(NamedTuple):
    """A file as it was read.

    Attributes:
      path: its path in the folder.
      stamp: its size and times.
      read_ns: when it was read, in nanoseconds since the epoch.
      digest: digest of its content.
      said: what it says, encoded or decoded.
    """

    path: str
    stamp: str
    read_ns: int
    digest: str
    said: Any

    def is_current(self, found: os.stat_result) -> bool:
        """Whether a file has not changed since, by its size and times alone."""
        latest = max(found.st_mtime_ns, found.st_ctime_ns)
        return self.stamp == stamp_of(found) and latest < self.read_ns - _RACY_NS


def stamp_of(found: os.stat_result) -> str:
    """Size, time of content and time of change of a file."""
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


class Process(NamedTuple):
    """The measurements of one process."""

    run_id: str
    entries: list[HistoryEntry]


Said: TypeAlias = Process | SkippedFile | None
"""What a file says, decoded; None without measurements."""


def digest(data: bytes) -> str:
    """A digest of the content of a file, or of a column."""
    return blake2b(data, digest_size=16).hexdigest()


def encoded(path: str, data: bytes) -> Encoded:
    """What a file with this content says."""
    found = result_files.read(path, data)
    if isinstance(found, SkippedFile):
        return found.reason, found.defect
    if not isinstance(found, (RunRecord, AllReduceRecord)):
        return None
    entries = HistoryEntry.all_of(found)
    if not entries:
        return EncodedProcess(found.run_id, "", None, "", "", ())
    first = entries[0]
    source = [encode(first.origin), encode(first.subject), first.labels]
    return EncodedProcess(
        found.run_id,
        first.started.isoformat(),
        first.pair,
        # A process sends equal texts only once.
        sys.intern(json.dumps(first.facts)),
        sys.intern(json.dumps(source)),
        [
            EncodedEntry(
                _text_of(one.configuration),
                one.status,
                one.error,
                None if one.slow is None else dataclasses.astuple(one.slow),
                one.values,
            )
            for one in entries
        ],
    )


_CONFIGURATIONS: dict[int, tuple[Configuration, str]] = {}
"""Texts of configurations by identity: equal ones are one object."""


def _text_of(one: Configuration) -> str:
    if id(one) not in _CONFIGURATIONS:
        text = json.dumps({**vars(one), "given": sorted(one.given)})
        _CONFIGURATIONS[id(one)] = one, text
    return _CONFIGURATIONS[id(one)][1]


def packed(rows: Iterable[FileRow]) -> dict[str, bytes]:
    """The columns of a block."""
    texts: dict[str, int] = {}
    values = {name: array("d") for name in HISTORY}

    def place(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def listed(said: Encoded) -> Sequence[Any] | None:
        if not isinstance(said, EncodedProcess):
            return said
        entries = []
        for configuration, *about, measured in said.entries:
            entries.append((place(configuration), *about))
            for name, column in values.items():
                column.append(measured.get(name, math.nan))
        return (*said[:3], place(said.facts), place(said.source), entries)

    files = [(*row[:-1], listed(row.said)) for row in rows]
    text = json.dumps([[*texts], files]).encode()
    return {FILES: text, **{name: column.tobytes() for name, column in values.items()}}


def unpacked(columns: Mapping[str, bytes]) -> Iterator[FileRow]:
    """The files of a block, with the values of the metrics whose columns there are."""
    texts, files = json.loads(columns[FILES])
    names = [name for name in columns if name != FILES]
    values = zip(*(array("d", columns[name]) for name in names), strict=True)
    for path, stamp, read_ns, name, said in files:
        if said is not None and len(said) > 2:
            run_id, started, pair, facts, source, entries = said
            listed = []
            for (configuration, status, error, slow), row in zip(entries, values, strict=False):
                measured = {n: v for n, v in zip(names, row, strict=True) if v == v}
                listed.append(EncodedEntry(texts[configuration], status, error, slow, measured))
            said = EncodedProcess(run_id, started, pair, texts[facts], texts[source], listed)
        yield FileRow(path, stamp, read_ns, name, said)


class Decoder:
    """Decodes what files say; long texts are decoded once."""

    def __init__(self) -> None:
        self._facts = cache(json.loads)
        self._source = cache(_source)
        self._configuration = cache(_configuration)

    def __call__(self, path: str, said: Encoded) -> Said:
        """What a file says: None without measurements."""
        if said is None:
            return None
        if not isinstance(said, EncodedProcess):
            return SkippedFile(path, *said)
        if not said.entries:
            return Process(said.run_id, [])
        origin, subject, labels = self._source(said.source)
        facts, started = self._facts(said.facts), datetime.fromisoformat(said.started)
        entries = [
            HistoryEntry(
                run_id=said.run_id,
                started=started,
                status=one.status,
                error=one.error,
                configuration=self._configuration(one.configuration),
                labels=labels,
                facts=facts,
                values=one.values,
                origin=origin,
                subject=subject,
                pair=said.pair and (said.pair[0], said.pair[1]),
                slow=_slow(one.slow),
            )
            for one in said.entries
        ]
        return Process(said.run_id, entries)


def _source(text: str) -> tuple[Origin, Subject | None, Mapping[str, str]]:
    origin, subject, labels = json.loads(text)
    return decode(Origin, origin), subject and decode(Subject, subject), labels


def _configuration(text: str) -> Configuration:
    found = json.loads(text)
    return Configuration(**{**found, "given": frozenset(found["given"])})


def _slow(found: Sequence[Any] | None) -> SlowSteps | None:
    if found is None:
        return None
    steps, indices, extra, cost = found
    return SlowSteps(steps, tuple(indices), extra, cost)


# The table of a results folder: what its files say, so that each is read once.

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
        # damaged blocks, and blocks with a file that another block contains
        self._useless: set[str] = set()
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
        """Adds files and removes files that no longer exist, as far as possible.

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
        """Whether the table is a regular file."""
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
    """Blocks, each with its undamaged columns."""
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
    """Digest of all code that interprets files, including metrics of plug-ins."""
    folders = [Path(place) for one in _DECIDING for place in import_module(one).__path__]
    files = {file for folder in folders for file in folder.rglob("*.py")}
    files |= {Path(__file__).with_name(name) for name in ("series.py", "reading.py")}
    homes = {getattr(metric.value, "__module__", "") for metric in HISTORY.values()}
    modules = (sys.modules.get(home) for home in homes)
    files |= {Path(file) for one in modules if (file := getattr(one, "__file__", None))}
    found = hashlib.blake2b(repr([sys.byteorder, *HISTORY]).encode(), digest_size=16)
    for file in sorted(files):
        with contextlib.suppress(OSError):
            found.update(file.read_bytes())
    return found.digest()


# What a results folder holds: from its table, and from the files that the table does not know.

_CHUNK = 100
"""Files that a process reads at once."""

_MANY = 10 * _CHUNK
"""Files from which several processes read them."""

_MOST_PROCESSES = 4


@dataclass(frozen=True)
class Contents:
    """Runs and rows of all-reduces of a directory in order of their start, and other files."""

    entries: tuple[HistoryEntry, ...]
    skipped: tuple[SkippedFile, ...]


def contents(
    folder: Path, progress: Progress | None = None, metrics: Collection[str] = HISTORY
) -> Contents:
    """Reads the records of a directory and all below it, without hidden files and folders.

    Entries that started in the same second are in the order of their pairs, else of their run_id,
    whatever the names of their files. What the files say is kept in a `ValueTable`, from which only
    values of some metrics are read. `progress` shows how many unknown files have been read.
    """
    said = _said(folder, metrics, progress or Progress.silent())
    paths: dict[str, list[str]] = {}
    for path, found in said.items():
        if isinstance(found, Process):
            paths.setdefault(found.run_id, []).append(path)
    entries: list[HistoryEntry] = []
    skipped = {path: one for path, one in said.items() if isinstance(one, SkippedFile)}
    for first, *others in paths.values():
        process = said[first]
        if others:
            loaded = load_records([first, *others])
            skipped.update((one.path, one) for one in loaded.skipped)
            entries += [one for record in loaded.everything for one in HistoryEntry.all_of(record)]
        elif isinstance(process, Process):
            entries += process.entries
    entries.sort(key=lambda one: (one.started, one.pair[1] if one.pair else 0, one.run_id))
    return Contents(tuple(entries), tuple(skipped[path] for path in said if path in skipped))


class _Unknown(NamedTuple):
    """A file that has to be read: its path, its stamp, and what the table knows."""

    path: str
    stamp: str
    known: FileRow | None


def _said(folder: Path, metrics: Collection[str], progress: Progress) -> dict[str, Said]:
    """What each file says, and each folder that cannot be read, by path and in order."""
    now = time.time_ns()
    decoder = Decoder()
    table = ValueTable(folder, metrics, decoder)
    top = os.path.join(folder, "")
    said: dict[str, Said] = {}
    unknown: list[_Unknown] = []
    for path in files([folder], hidden=False):
        if isinstance(path, SkippedFile):
            said[path.path] = path
            continue
        known, stamp = table.known.pop(path.removeprefix(top), None), ""
        said[path] = known and known.said
        with contextlib.suppress(OSError):
            about = os.stat(path)
            if known is not None and known.is_current(about):
                continue
            stamp = stamp_of(about)
        unknown.append(_Unknown(path, stamp, known))
    table.write((), gone=table.known)
    progress.start("reading records", len(unknown))
    fresh: list[FileRow] = []
    readings = _readings([(one.path, one.known.digest if one.known else "") for one in unknown])
    for number, (one, reading) in enumerate(zip(unknown, readings, strict=True), start=1):
        progress.update(number)
        if isinstance(reading, SkippedFile):
            said[one.path] = reading
            continue
        name, content = reading
        if content != SAME:
            said[one.path] = decoder(one.path, content)
        fresh.append(FileRow(one.path.removeprefix(top), one.stamp, now, name, content))
        if len(fresh) >= AT_ONCE:
            table.write(fresh)
            fresh = []
    table.write(fresh)
    progress.finish()
    return said


_Reading: TypeAlias = tuple[str, Encoded] | SkippedFile
"""Digest of a file and what it says; `SAME` if the digest is the known one."""


def _read(path: str, known: str) -> _Reading:
    try:
        data = read_file(path)
    except PathError as error:
        return SkippedFile(path, error.reason)
    name = digest(data)
    return name, SAME if name == known else encoded(path, data)


def _readings(jobs: Sequence[tuple[str, str]]) -> Iterator[_Reading]:
    """What `_read` returns for each path and known digest; by several processes for many paths."""
    chunks = [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]
    number = min(_MOST_PROCESSES, len(usable_cpus())) if len(jobs) >= _MANY else 1
    with contextlib.ExitStack() as stack:
        receivers: list[Connection] = []
        context = get_context("fork")  # forked children have all modules loaded
        for place in range(number if number > 1 else 0):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(receiver, sender, chunks[place::number]), daemon=True
            )
            # A process begins with the handlers of this one, so signals to a group do not end it.
            with contextlib.suppress(OSError), uninterrupted():  # no more processes are allowed
                process.start()
                stack.callback(process.join)
                stack.callback(process.kill)
            sender.close()
            receivers.append(stack.enter_context(contextlib.closing(receiver)))
        for place, chunk in enumerate(chunks):
            try:
                found = receivers[place % number].recv() if receivers else None
            except (EOFError, OSError):  # the process was killed
                found = None
            yield from found or (_read(*job) for job in chunk)


def _work(
    receiver: Connection, sender: Connection, chunks: Sequence[Sequence[tuple[str, str]]]
) -> None:
    """Reads every chunk and sends the results, until nobody receives them."""
    receiver.close()
    with contextlib.suppress(OSError):
        for chunk in chunks:
            sender.send([_read(*job) for job in chunk])
