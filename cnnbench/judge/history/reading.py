"""What a results folder holds: from its table, and from the files that the table does not know."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cnnbench.base.garbage import uncollected
from cnnbench.base.reading import read_file
from cnnbench.base.text.progress import Progress
from cnnbench.errors import PathError
from cnnbench.judge.history.encoding import Decoder, Encoded, Process, digest, encoded
from cnnbench.judge.history.series import HistoryEntry
from cnnbench.judge.history.table import FileRow, ValueTable, stamp_of
from cnnbench.machine.cpu import usable_cpus
from cnnbench.records.load import SkippedFile, files, load_records

_CHUNK = 100
"""Files that a process reads at once."""

_MANY = 10 * _CHUNK
"""Files from which several processes read them."""

_MOST_PROCESSES = 4

_ROWS = 2000
"""Rows after which the table is written, so that an interrupted command keeps them."""

_Said: TypeAlias = Process | SkippedFile | None
"""What a file says; None without measurements."""


@dataclass(frozen=True)
class Contents:
    """Runs and rows of all-reduces of a directory in order of their start, and other files."""

    entries: tuple[HistoryEntry, ...]
    skipped: tuple[SkippedFile, ...]


def contents(folder: Path, progress: Progress | None = None) -> Contents:
    """Reads the records of a directory and all below it, without hidden files and folders.

    Entries that started in the same second are in the order of their file names. What the files say
    is kept in a `ValueTable`. `progress` shows how many unknown files have been read.
    """
    with uncollected():  # the entries have no cycles; searching for these takes a seventh
        said = _said(folder, progress or Progress.silent())
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
    entries.sort(key=lambda entry: entry.started)
    return Contents(tuple(entries), tuple(skipped[path] for path in said if path in skipped))


class _Unknown(NamedTuple):
    """A file that has to be read: its path, stamp, digest in the table, and what that says."""

    path: str
    stamp: str
    row: FileRow | None
    said: _Said


def _said(folder: Path, progress: Progress) -> dict[str, _Said]:
    """What each file says, and each folder that cannot be read, by path and in order."""
    now = time.time_ns()
    table = ValueTable(folder)
    decoder = Decoder(table.parts)
    top = os.path.join(folder, "")
    rows = table.rows  # emptied, as entries take more memory than text
    said: dict[str, _Said] = {}
    unknown: list[_Unknown] = []
    for path in files([folder], hidden=False):
        if isinstance(path, SkippedFile):
            said[path.path] = path
            continue
        said[path], row, stamp = None, rows.pop(path.removeprefix(top), None), ""
        if row is not None:
            try:
                said[path] = decoder(path, row.text)
            except _UNDECODABLE:
                row = None
        with contextlib.suppress(OSError):
            about = os.stat(path)
            if row is not None and row.is_current(about):
                continue
            stamp = stamp_of(about)
        unknown.append(_Unknown(path, stamp, row, said[path]))
    progress.start("reading records", len(unknown))
    fresh: dict[str, FileRow] = {}
    parts: dict[str, str] = {}
    gone: dict[str, FileRow] = rows
    readings = _readings([(one.path, one.row.digest if one.row else "") for one in unknown])
    for number, (one, reading) in enumerate(zip(unknown, readings, strict=True), start=1):
        progress.update(number)
        if isinstance(reading, SkippedFile):
            said[one.path] = reading
            continue
        name, content = reading
        if content is not None:
            held = table.parts
            changed = {key: part for key, part in content.parts.items() if held.get(key) != part}
            parts.update(changed)
            table.parts.update(changed)
            said[one.path] = decoder(one.path, content.text)
        text = content.text if content is not None else one.row.text if one.row else ""
        fresh[one.path.removeprefix(top)] = FileRow(one.stamp, now, name, text)
        if len(fresh) >= _ROWS:
            table.write(fresh, parts, gone)
            fresh, parts, gone = {}, {}, {}
    table.write(fresh, parts, gone)
    progress.finish()
    return said


_UNDECODABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


_Reading: TypeAlias = tuple[str, Encoded | None] | SkippedFile
"""Digest of a file and what it says; None if the digest is the known one."""


def _read(path: str, known: str) -> _Reading:
    try:
        data = read_file(path)
    except PathError as error:
        return SkippedFile(path, error.reason)
    name = digest(data)
    return name, None if name == known else encoded(path, data)


def _readings(jobs: Sequence[tuple[str, str]]) -> Iterator[_Reading]:
    """What `_read` returns for each path and known digest; by several processes for many paths."""
    chunks = [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]
    number = min(_MOST_PROCESSES, len(usable_cpus())) if len(jobs) >= _MANY else 1
    with contextlib.ExitStack() as stack:
        receivers: list[Connection] = []
        context = get_context("fork")  # in which everything is loaded
        for place in range(number if number > 1 else 0):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(receiver, sender, chunks[place::number]), daemon=True
            )
            with contextlib.suppress(OSError):  # no more processes are allowed
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends this process
    receiver.close()
    sent: set[str] = set()
    with contextlib.suppress(OSError):
        for chunk in chunks:
            found = [_read(*job) for job in chunk]
            for place, one in enumerate(found):
                if isinstance(one, tuple) and one[1] is not None:
                    text, parts = one[1]
                    fresh = {key: part for key, part in parts.items() if key not in sent}
                    found[place] = one[0], Encoded(text, fresh)
                    sent.update(fresh)
            sender.send(found)
