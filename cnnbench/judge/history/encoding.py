"""What a file says about its measurements, as the text that the table of a folder holds.

The text is JSON: null for a file without measurements, a skipped file, or the entries of a process.
Large parts that many processes share (flags, facts of the environment, the measured code) stand
apart and are named by their digests; entries that are decoded share them, too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

from cnnbench.base.stats.slow_steps import SlowSteps
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.history.series import HistoryEntry
from cnnbench.judge.metrics.measurement import Origin
from cnnbench.records import load
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import decode, encode, started
from cnnbench.records.load import SkippedFile
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject


class Encoded(NamedTuple):
    """The text of a file and its parts by their digests."""

    text: str
    parts: Mapping[str, str]


class Process(NamedTuple):
    """The measurements of one process."""

    run_id: str
    entries: list[HistoryEntry]


def digest(data: bytes) -> str:
    """A digest of the content of a file, or of a part."""
    return blake2b(data, digest_size=16).hexdigest()


def encoded(path: str, data: bytes) -> Encoded:
    """What a file with this content says."""
    found = load.read(path, data)
    if isinstance(found, SkippedFile):
        return Encoded(json.dumps({"reason": found.reason, "defect": found.defect}), {})
    if not isinstance(found, (RunRecord, AllReduceRecord)):
        return Encoded("null", {})
    parts: dict[str, str] = {}

    def named(text: str) -> str:
        name = digest(text.encode())
        parts[name] = text
        return name

    entries = HistoryEntry.all_of(found)
    first = entries[0] if entries else None
    process = {
        "run_id": found.run_id,
        "started": found.started_at,
        "pair": first and first.pair,
        "facts": first and named(json.dumps(first.facts)),
        "source": first
        and named(json.dumps([encode(first.origin), encode(first.subject), first.labels])),
        "rows": [
            {
                "configuration": _named(one.configuration, parts),
                "status": one.status,
                "error": one.error,
                "values": one.values,
                "slow": one.slow and dataclasses.astuple(one.slow),
            }
            for one in entries
        ],
    }
    return Encoded(json.dumps(process), parts)


_CONFIGURATIONS: dict[int, tuple[Configuration, str, str]] = {}
"""Texts and names of configurations by identity: equal ones are one object."""


def _named(one: Configuration, parts: dict[str, str]) -> str:
    """The name of the text of a configuration, which is added to the parts."""
    if id(one) not in _CONFIGURATIONS:
        text = json.dumps({**vars(one), "given": sorted(one.given)})
        _CONFIGURATIONS[id(one)] = one, text, digest(text.encode())
    _, text, name = _CONFIGURATIONS[id(one)]
    parts[name] = text
    return name


class Decoder:
    """Decodes texts whose parts it gets by their digests; parts are decoded once.

    ValueError, TypeError, LookupError, AttributeError or RecursionError for what `encoded` has not
    made.
    """

    def __init__(self, parts: Mapping[str, str]) -> None:
        self._parts = parts
        self._facts = cache(self._part)
        self._source = cache(self._read_source)
        self._configuration = cache(self._read_configuration)

    def __call__(self, path: str, text: str) -> Process | SkippedFile | None:
        """What a file says: None without measurements."""
        found = json.loads(text)
        if found is None:
            return None
        if "reason" in found:
            return SkippedFile(path, found["reason"], found["defect"])
        if not found["rows"]:
            return Process(found["run_id"], [])
        origin, subject, labels = self._source(found["source"])
        facts, start = self._facts(found["facts"]), started(found["started"])
        pair = found["pair"] and tuple(found["pair"])
        entries = [
            HistoryEntry(
                run_id=found["run_id"],
                started=start,
                status=row["status"],
                error=row["error"],
                configuration=self._configuration(row["configuration"]),
                labels=labels,
                facts=facts,
                values=row["values"],
                origin=origin,
                subject=subject,
                pair=pair,
                slow=_slow(row["slow"]),
            )
            for row in found["rows"]
        ]
        return Process(found["run_id"], entries)

    def _part(self, name: str) -> Any:
        text = self._parts[name]
        if digest(text.encode()) != name:
            raise ValueError(f"part {name} is not as it was written")
        return json.loads(text)

    def _read_source(self, name: str) -> tuple[Origin, Subject | None, Mapping[str, str]]:
        origin, subject, labels = self._part(name)
        return decode(Origin, origin), subject and decode(Subject, subject), labels

    def _read_configuration(self, name: str) -> Configuration:
        found = self._part(name)
        return Configuration(**{**found, "given": frozenset(found["given"])})


def _slow(found: list[Any] | None) -> SlowSteps | None:
    if found is None:
        return None
    steps, indices, extra, cost = found
    return SlowSteps(steps, tuple(indices), extra, cost)
