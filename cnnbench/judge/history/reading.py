"""Reads the records in a results directory for a history: unchanged files from a table (`cache`),
and all other files from disk.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

from cnnbench.base.files import read_file
from cnnbench.base.interrupts import delaying_interrupts
from cnnbench.base.stats import group_by
from cnnbench.base.terminal import ProgressLine
from cnnbench.errors import PathError
from cnnbench.judge.history.cache import (
    AT_ONCE,
    SAME,
    CachedFile,
    Content,
    MeasurementCache,
    Process,
    content_digest,
    file_stamp,
)
from cnnbench.judge.history.series import HistoryEntry
from cnnbench.machine.cpu import usable_cpu_numbers
from cnnbench.records import load
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.load import SkippedFile, find_files, load_records
from cnnbench.records.metric import HISTORY
from cnnbench.records.run import RunRecord

CHUNK = 100
"""Number of files that a child process reads before it returns the results."""

MANY = 10 * CHUNK
"""From this number of files on, several processes read files."""

_MOST_PROCESSES = 4


@dataclass(frozen=True)
class Contents:
    """The measurements in a results directory (runs and all-reduce rows, sorted by start time), and
    the files that were skipped.
    """

    entries: tuple[HistoryEntry, ...]
    skipped: tuple[SkippedFile, ...]


def contents(
    folder: Path, progress: ProgressLine | None = None, metrics: Collection[str] = HISTORY
) -> Contents:
    """Reads all records in a results directory and its subdirectories. Hidden files and
    subdirectories are ignored.

    Measurements that started in the same second are sorted by pair, then by run_id, not by file
    name. The contents of files are cached in a `MeasurementCache`, from which only the values of
    the given metrics are read. `progress` shows how many of the files that are not in the table
    have been read.
    """
    found = _content_by_path(folder, metrics, progress or ProgressLine.silent())
    skipped = {path: content for path, content in found.items() if isinstance(content, SkippedFile)}
    processes = [(path, content) for path, content in found.items() if isinstance(content, Process)]
    entries: list[HistoryEntry] = []
    for copies in group_by(processes, lambda pair: pair[1].run_id).values():
        if len(copies) == 1:
            entries += copies[0][1].entries
            continue
        loaded = load_records([path for path, _ in copies])
        skipped.update((file.path, file) for file in loaded.skipped)
        entries += [entry for record in loaded.all_records for entry in HistoryEntry.all_of(record)]
    entries.sort(
        key=lambda entry: (entry.started, entry.pair[1] if entry.pair else 0, entry.run_id)
    )
    return Contents(tuple(entries), tuple(skipped[path] for path in found if path in skipped))


def _content_by_path(
    folder: Path, metrics: Collection[str], progress: ProgressLine
) -> dict[str, Content]:
    """Maps the path of each file to its decoded content, and the path of each unreadable folder to
    a `SkippedFile` with the error. Paths are sorted.
    """
    now = time.time_ns()
    table = MeasurementCache(folder, metrics)
    top = os.path.join(folder, "")
    content_by_path: dict[str, Content] = {}
    unknown: list[tuple[str, str, str]] = []  # Path, stamp and known digest of a file.
    for path in find_files([folder], hidden=False):
        if isinstance(path, SkippedFile):
            content_by_path[path.path] = path
            continue
        known, stamp = table.known.pop(path.removeprefix(top), None), ""
        content_by_path[path] = known and known.content
        with contextlib.suppress(OSError):
            about = os.stat(path)
            if known is not None and known.is_current(about):
                continue
            stamp = file_stamp(about)
        unknown.append((path, stamp, known.digest if known else ""))
    table.write((), deleted=table.known)
    progress.start("reading records", len(unknown))
    fresh: list[CachedFile] = []
    readings = _read_all([(path, digest) for path, _, digest in unknown])
    pairs = zip(unknown, readings, strict=True)
    for number, ((path, stamp, _), reading) in enumerate(pairs, start=1):
        progress.update(number)
        if isinstance(reading, SkippedFile):
            content_by_path[path] = reading
            continue
        name, content = reading
        if content != SAME:
            content_by_path[path] = content
        fresh.append(CachedFile(path.removeprefix(top), stamp, now, name, content))
        if len(fresh) >= AT_ONCE:
            table.write(fresh)
            fresh = []
    table.write(fresh)
    progress.finish()
    return content_by_path


def read_content(path: str, data: bytes) -> Content:
    """Parses the content of a result file."""
    loaded = load.read_result(path, data)
    if isinstance(loaded, (RunRecord, AllReduceRecord)):
        return Process(loaded.run_id, HistoryEntry.all_of(loaded))
    return loaded if isinstance(loaded, SkippedFile) else None


_Reading: TypeAlias = tuple[str, Content] | SkippedFile
"""Digest and content of a file. The content is `SAME` if the digest has not changed."""


def _read(path: str, known: str) -> _Reading:
    try:
        data = read_file(path)
    except PathError as error:
        return SkippedFile(path, error.reason)
    name = content_digest(data)
    return name, SAME if name == known else read_content(path, data)


def _read_all(jobs: Sequence[tuple[str, str]]) -> Iterator[_Reading]:
    """Yields the result of `_read` for each job, which is a path and the digest in the
    table.

    If there are many files, several processes read them.
    """
    chunks = [jobs[start : start + CHUNK] for start in range(0, len(jobs), CHUNK)]
    number = min(_MOST_PROCESSES, len(usable_cpu_numbers())) if len(jobs) >= MANY else 1
    with contextlib.ExitStack() as stack:
        receivers: list[Connection] = []
        context = get_context("fork")  # In a fork, all modules are loaded.
        for place in range(number if number > 1 else 0):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_run_reader,
                args=(receiver, sender, chunks[place::number]),
                daemon=True,
            )
            # Delayed interrupts: until the child has its own handlers, a signal to the process
            # group does not kill it. OSError: the limit on the number of processes is reached.
            with contextlib.suppress(OSError), delaying_interrupts():
                process.start()
                stack.callback(process.join)
                stack.callback(process.kill)
            sender.close()
            receivers.append(stack.enter_context(contextlib.closing(receiver)))
        for place, chunk in enumerate(chunks):
            try:
                readings = receivers[place % number].recv() if receivers else None
            except (EOFError, OSError):  # The reader was killed.
                readings = None
            yield from readings or (_read(*job) for job in chunk)


def _run_reader(
    receiver: Connection, sender: Connection, chunks: Sequence[Sequence[tuple[str, str]]]
) -> None:
    """The main function of a reader process: reads files and sends their contents, until all are
    sent or the parent process has ended.
    """
    receiver.close()
    with contextlib.suppress(OSError):
        for chunk in chunks:
            sender.send([_read(*job) for job in chunk])
