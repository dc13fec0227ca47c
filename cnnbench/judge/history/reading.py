"""What a results folder holds: from its table, and from the files that the table does not know."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cnnbench.base.interrupts import uninterrupted
from cnnbench.base.reading import read_file
from cnnbench.base.text.progress import Progress
from cnnbench.errors import PathError
from cnnbench.judge.history.encoding import (
    SAME,
    Decoder,
    Encoded,
    FileRow,
    Process,
    Said,
    digest,
    encoded,
    stamp_of,
)
from cnnbench.judge.history.series import HistoryEntry
from cnnbench.judge.history.table import AT_ONCE, ValueTable
from cnnbench.judge.metrics.registry import HISTORY
from cnnbench.machine.cpu import usable_cpus
from cnnbench.records.load import SkippedFile, files, load_records

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

    Entries that started in the same second are in the order of their file names. What the files say
    is kept in a `ValueTable`, from which only values of some metrics are read. `progress` shows how
    many unknown files have been read.
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
    entries.sort(key=lambda entry: entry.started)
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
        context = get_context("fork")  # in which everything is loaded
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
