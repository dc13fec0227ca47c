"""The journal of a campaign: the file ``events.jsonl``, to which events are appended.

An event is a JSON object in a line. If a process is killed while it writes, only the last line is
incomplete: readers leave it out, and the next event replaces it. A line that cannot be read, or a
value of another type, is an error of the user. Nothing protects the events against deliberate
changes, but the event that says that a process has ended names its record with a digest. So a
record that is missing, or that was exchanged, is found before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

from cnnbench.base.files import parse_json, read_file
from cnnbench.errors import BenchmarkError, PathError
from cnnbench.records import load
from cnnbench.records.codec import TIME, json_document
from cnnbench.records.files import write_all

JOURNAL = load.JOURNAL
"""File name of the journal in a results folder."""

SESSION, PROCESS, LOST, NOTE = "session", "process", "lost", "note"
ANALYSED, END = "analysed", "end"
"""Kinds of events in a journal; see `JournalEvent`."""

STARTED = "started"
"""Name of the note about processes that start; its key `names` contains their names."""

RESTORE = "restore the file, or name another folder"
_START = b'{"event": "'
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("event", "time", "campaign", "note", "name", "status", "problem"), str),
    **dict.fromkeys(("suite", "stamp", "key", "record", "sha256"), str),
    **dict.fromkeys(("repeat", "pairs"), int),
    **dict.fromkeys(("seconds", "spent"), (int, float)),
    "names": list,
    "criteria": dict,
}
"""Types of the values that commands read, by key."""


@json_document("a line of events.jsonl, which campaigns such as cnnbench ab write", name="journal")
@dataclass(frozen=True, kw_only=True)
class JournalEvent:
    """An event in a campaign's journal: one line. Additional keys depend on the kind of event.

    Attributes:
      event: session (a session begins; settings.json contains what it measures), process (a
        process has ended; contains the path and the SHA-256 digest of its record), lost (processes
        of a batch were killed from outside), note (values that cannot be computed from records,
        under the name in key note), analysed (the pairs so far were judged, without a clear
        verdict) or end (a session has reached a result).
      time: time of the event, ISO 8601, UTC.
    """

    more_keys: ClassVar[bool] = True

    event: str
    time: str = field(metadata=TIME)


class Journal:
    """The file with the events of a campaign, oldest first.

    `check` raises an error if the folder of the file must not be written to.
    """

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._check = check

    def read(self, *events: str) -> Iterator[dict[str, Any]]:
        """Yields the events in the file, of all kinds or only of the kinds in `events`.

        Raises PathError, with the number of the line, if an event cannot be read.
        """
        data = b""
        with contextlib.suppress(PathError):
            data = read_file(self.path)
        *lines, _ = data.split(b"\n")
        for number, line in enumerate(lines, start=1):
            event = _parse_event(line)
            if event is None:
                raise PathError(str(self.path), f"line {number} is damaged; {RESTORE}")
            if not events or event["event"] in events:
                yield event

    def add(self, event: str, **facts: Any) -> None:
        """Appends an event to the file. Adds the current time."""
        self._check()
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        known = vars(JournalEvent(event=event, time=now))
        line = json.dumps({**known, **facts}, default=str).encode("ascii") + b"\n"
        with raising_write_errors(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                # A killed process may have written a part of its last event.
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)
                write_all(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _parse_event(line: bytes) -> dict[str, Any] | None:
    """The event in a line; None if the line contains none, or a value of another type."""
    try:
        event = parse_json(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or "event" not in event:
        return None
    typed = all(isinstance(event[key], _TYPES[key]) for key in _TYPES.keys() & event)
    return event if typed else None


def is_journal_without_events(path: Path) -> bool:
    """Whether a file is the beginning of a journal whose first event is not complete, because the
    process was killed or the disk was full.
    """
    if path.name != JOURNAL or path.is_symlink() or not path.is_file():
        return False
    data = path.read_bytes()
    return b"\n" not in data and data[: len(_START)] == _START[: len(data)]


def digest(data: bytes) -> str:
    """The SHA-256 digest of a record, as events contain it."""
    return hashlib.sha256(data).hexdigest()


def last_process_events(events: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The last event about each process that has ended, by its name. Processes that have started
    again since then, or whose batch is measured again, are left out.
    """
    ended: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == PROCESS:
            ended[str(event.get("name"))] = event
        elif event.get("note") == STARTED or (event["event"] == LOST and event.get("again")):
            for name in event.get("names", ()):
                ended.pop(name, None)
    return ended


def check_records(folder: Path, events: Iterable[Mapping[str, Any]], pending: str) -> None:
    """Raises PathError if a record that an event in `events` names is missing in the folder, or is
    another record.

    `pending` is the path of a record whose batch has not ended; see `CampaignKind`.
    """
    for name, event in last_process_events(events).items():
        if "record" in event:
            path = folder / event["record"]
            if not any(is_record_of(event, one) for one in (folder / pending.format(name), path)):
                what = "was exchanged or changed" if path.exists() else "is missing"
                reason = f"the record of {name} {what}; {RESTORE}"
                raise PathError(str(path), reason)


def is_record_of(event: Mapping[str, Any], path: Path) -> bool:
    """Whether a file contains the record that an event about the end of a process names."""
    try:
        return digest(read_file(path)) == event.get("sha256")
    except PathError:
        return False


@contextlib.contextmanager
def raising_write_errors(path: Path) -> Iterator[None]:
    """Context manager: converts write errors, such as a full disk, to BenchmarkError."""
    try:
        yield
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror or error}"
        raise BenchmarkError(message) from error
