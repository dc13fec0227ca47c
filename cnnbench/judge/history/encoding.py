"""What files say about their measurements, as the table of a folder holds it.

A block of the table has a column of files in JSON and one of numbers for each metric, of which a
reader takes the one that it follows. Long texts that many processes share (flags, facts of the
environment, the measured code) are listed once in a block; decoded entries share them, too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from cnnbench.base.stats.slow_steps import SlowSteps
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.history.series import HistoryEntry
from cnnbench.judge.metrics.measurement import Origin
from cnnbench.judge.metrics.registry import HISTORY
from cnnbench.records import load
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import decode, encode
from cnnbench.records.load import SkippedFile
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

_RACY_NS = 2_000_000_000
"""Times of some file systems are this coarse."""

FILES = "files"
"""Name of the column of files; the others have the names of metrics."""


class EncodedEntry(NamedTuple):
    """An entry, without what all entries of its process share; the configuration is JSON."""

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
    found = load.read(path, data)
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
        # Of equal texts a process sends one.
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
