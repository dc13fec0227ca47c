"""The index of a results directory: what its records say, so that each is read once.

The records are the truth. The index is an SQLite file beside them that may be deleted at any
time; one that is broken, or of another version, is made anew, as is one of which a row is not
as it was written. A file is read again if its size or time of change differ and its content
does too, and if it changed so shortly before it was read that a second change could have left
the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cnnbench.history.entry import Entry, from_json, to_json
from cnnbench.history.metrics import METRICS
from cnnbench.records.load import Skipped, fault, json_files, load_records
from cnnbench.records.timestamps import started
from cnnbench.text.sort import natural_key
from cnnbench.version import __version__

NAME = ".history.sqlite"
"""Of the index, in the directory it is about."""

_VERSION = 3
_PATIENCE = 10.0
"""Seconds to wait for another process that uses the index."""

_RACY_NS = 2_000_000_000
"""Time stamps of some file systems are this coarse."""

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (version TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (
  path BLOB PRIMARY KEY, size INTEGER NOT NULL, changed_ns INTEGER NOT NULL,
  read_ns INTEGER NOT NULL, digest TEXT NOT NULL,
  entry TEXT, reason TEXT, defect INTEGER NOT NULL, seal TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS configurations (
  key TEXT PRIMARY KEY, flags TEXT NOT NULL, seal TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class Contents:
    """What a directory holds.

    Attributes:
      entries: runs and rows of all-reduces, each once, in order of their start.
      skipped: files that gave none.
      read: how many files were read just now; the others were known.
      kept: whether the index could be written; without it the next time reads all again.
    """

    entries: tuple[Entry, ...]
    skipped: tuple[Skipped, ...]
    read: int
    kept: bool


def contents(folder: Path, rebuild: bool = False) -> Contents:
    """The runs of a directory, all below it included, and brings its index up to date.

    Args:
      folder: the directory.
      rebuild: reads all files whatever the index says.
    """
    for anew in (True,) if rebuild else (False, True):
        database, kept = _open(folder, anew)
        with contextlib.closing(database):
            try:
                return _contents(database, folder, kept)
            except sqlite3.OperationalError:
                break  # another process keeps it locked
            except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, AttributeError):
                continue  # damaged
    # The records are still there.
    with contextlib.closing(_fresh(":memory:")) as instead:
        return _contents(instead, folder, kept=False)


def _open(folder: Path, rebuild: bool) -> tuple[sqlite3.Connection, bool]:
    """The index, and whether it is a file."""
    path = folder / NAME
    for attempt in range(2):
        if rebuild or attempt:
            with contextlib.suppress(OSError):
                path.unlink()
        try:
            database = _fresh(str(path))
            found = [row[0] for row in database.execute("SELECT version FROM meta")]
            if found == [_fingerprint()]:
                return database, True
            database.close()
        except sqlite3.OperationalError:
            break  # not writable, or locked for long
        except sqlite3.DatabaseError:
            continue
    return _fresh(":memory:"), False


def _fresh(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_PATIENCE)
    try:
        database.executescript(_TABLES)
        if database.execute("SELECT count(*) FROM meta").fetchone() == (0,):
            database.execute("INSERT INTO meta VALUES (?)", (_fingerprint(),))
            database.commit()
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database


def _fingerprint() -> str:
    """Another one where entries would be made otherwise."""
    from cnnbench.flags import FLAGS
    from cnnbench.flags.groups.allreduce import ALLREDUCE_FLAGS

    defaults = [(spec.name, str(spec.default)) for spec in (*FLAGS, *ALLREDUCE_FLAGS)]
    text = json.dumps([_VERSION, __version__, sorted(METRICS), defaults])
    return hashlib.sha256(text.encode()).hexdigest()


def _seal(*cells: object) -> str:
    """By which a row is known to be as it was written, and its cells to belong together."""
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def _check_seal(*cells: object, seal: str) -> None:
    if _seal(*cells) != seal:
        raise ValueError("a row is not as it was written")


def _refresh(
    database: sqlite3.Connection, folder: Path, files: Sequence[tuple[str, os.stat_result]]
) -> int:
    """Brings the index up to date; how many files had to be read."""
    known = {
        path: (size, changed, read, digest)
        for path, size, changed, read, digest in database.execute(
            "SELECT path, size, changed_ns, read_ns, digest FROM files"
        )
    }
    seen: set[bytes] = set()
    count = 0
    with database:
        for path, found in files:
            name = os.fsencode(os.path.relpath(path, folder))
            seen.add(name)
            before = known.get(name)
            stamp = (found.st_size, found.st_mtime_ns)
            if before is not None and before[:2] == stamp and before[1] < before[2] - _RACY_NS:
                continue
            now = time.time_ns()
            digest = _digest(path)
            if before is not None and digest and before[3] == digest:
                database.execute(
                    "UPDATE files SET size = ?, changed_ns = ?, read_ns = ? WHERE path = ?",
                    (*stamp, now, name),
                )
                continue
            count += 1
            entries, reason, defect = _read(path)
            text = None if entries is None else to_json(entries)
            database.executemany(
                "INSERT OR REPLACE INTO configurations VALUES (?, ?, ?)",
                [_configuration(entry) for entry in entries or ()],
            )
            row = (digest, text, reason, int(defect))
            database.execute(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (name, *stamp, now, *row, _seal(name.hex(), *row)),
            )
        gone = [(name,) for name in known if name not in seen]
        database.executemany("DELETE FROM files WHERE path = ?", gone)
    return count


def _configuration(entry: Entry) -> tuple[str, str, str]:
    flags = json.dumps(dict(entry.flags))
    return entry.key, flags, _seal(entry.key, flags)


def _read(path: str) -> tuple[list[Entry] | None, str | None, bool]:
    """The entries of a file, or the reason why there are none and whether that is a fault."""
    loaded = load_records([path])
    for record in loaded.everything:
        return Entry.all_of(record), None, False
    one = loaded.skipped[0]
    # What a record says may be no text in Unicode.
    return None, one.reason.encode("utf-8", "backslashreplace").decode(), one.defect


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _files(folder: Path) -> tuple[list[tuple[str, os.stat_result]], list[Skipped]]:
    """The files that may hold a record; what sweeps and the like keep for themselves does not."""
    paths, skipped = json_files(str(folder), hidden=False)
    found = []
    for path in paths:
        try:
            found.append((path, os.stat(path)))
        except OSError as error:
            skipped.append(Skipped(path, fault(error)))
    return found, skipped


def _contents(database: sqlite3.Connection, folder: Path, kept: bool) -> Contents:
    files, skipped = _files(folder)
    read = _refresh(database, folder, files)
    flags = {}
    for key, text, seal in database.execute("SELECT key, flags, seal FROM configurations"):
        _check_seal(key, text, seal=seal)
        flags[key] = json.loads(text)
    rows = []
    for name, *row, seal in database.execute(
        "SELECT path, digest, entry, reason, defect, seal FROM files"
    ):
        _check_seal(name.hex(), *row, seal=seal)
        rows.append((os.fsdecode(name), *row[1:]))
    rows.sort(key=lambda row: natural_key(row[0]))
    found: dict[str, list[Entry]] = {}
    for path, text, reason, defect in rows:
        where = os.path.join(folder, path)
        if text is None:
            skipped.append(Skipped(where, reason, bool(defect)))
            continue
        entries = from_json(text, flags)
        run_id = entries[0].run_id if entries else ""
        if run_id in found:
            skipped.append(Skipped(where, f"a second copy of run {run_id}", defect=False))
        elif entries:
            found[run_id] = entries
    listed = [entry for entries in found.values() for entry in entries]
    # Of one second in the order of their files, which one who numbers them knows.
    ordered = sorted(listed, key=start)
    return Contents(tuple(ordered), tuple(skipped), read, kept)


def start(entry: Entry) -> float:
    """Seconds since the epoch."""
    return started(entry.started_at).timestamp()
