"""The journal of a campaign: torn and unreadable events, and the records that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cnnbench.campaigns.processes.journal import (
    JOURNAL,
    Journal,
    check_records,
    digest,
    last_process_events,
)
from cnnbench.errors import PathError

PENDING = "logs/{}.pending"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / JOURNAL)
    for number in range(3):
        journal.add("look", pairs=number)
    return journal


def pairs(journal: Journal) -> list[int]:
    return [event["pairs"] for event in journal.read()]


def test_events_are_read_in_their_order_with_their_time(journal: Journal) -> None:
    journal.add("end", pairs=9, speed=1.5)
    assert pairs(journal) == [0, 1, 2, 9]
    (end,) = journal.read("end")
    assert (end["event"], end["speed"]) == ("end", 1.5)
    assert end["time"].endswith("+00:00")
    assert [*Journal(journal.path.parent / "none.jsonl").read()] == []


@pytest.mark.parametrize("torn", [1, 9, 40])
def test_a_torn_last_line_is_dropped_and_the_journal_goes_on(journal: Journal, torn: int) -> None:
    journal.path.write_bytes(journal.path.read_bytes()[:-torn])
    later = Journal(journal.path)
    assert pairs(later) == [0, 1]
    later.add("look", pairs=7)
    assert pairs(later) == [0, 1, 7]


def test_a_journal_whose_only_line_is_torn_begins_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / JOURNAL)
    journal.path.write_bytes(b'{"event": "ses')
    assert pairs(journal) == []
    journal.add("look", pairs=1)
    assert pairs(journal) == [1]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not JSON",
        b'{"event": "end"',
        b"\xff\xfe",
        b"[" * 100_000,
        b"[1]",
        b'{"time": "2026-01-01T00:00:00+00:00"}',
        b'{"event": 3}',
        b'{"event": "end", "note": 3}',
        b'{"event": "process", "seconds": "x"}',
        b'{"event": "process", "record": 1}',
        b'{"event": "session", "criteria": []}',
    ],
)
def test_a_line_that_cannot_be_read_is_named(journal: Journal, line: bytes) -> None:
    lines = journal.path.read_bytes().splitlines()
    lines[1] = line
    journal.path.write_bytes(b"\n".join([*lines, b""]))
    with pytest.raises(PathError, match="line 2 is damaged; restore the file, or name another"):
        pairs(journal)


def process(name: str, data: bytes | None, path: str = "") -> dict[str, Any]:
    """The event at the end of a process that has left a record."""
    named = {} if data is None else {"record": path or f"a/{name}.json", "sha256": digest(data)}
    return {"event": "process", "name": name, **named}


def started(*names: str) -> dict[str, Any]:
    return {"event": "note", "note": "started", "names": list(names)}


LOST = {"event": "lost", "pair": "1", "names": ["1"], "again": True}
FIRST, SECOND = b"first", b"second"


@pytest.mark.parametrize(
    ("events", "files", "wrong"),
    [
        ([process("1", FIRST)], {"a/1.json": FIRST}, None),
        ([process("1", FIRST)], {}, "the record of 1 is missing"),
        ([process("1", FIRST)], {"a/1.json": SECOND}, "the record of 1 was exchanged"),
        # A pending record belongs to a batch that has not ended.
        ([process("1", FIRST)], {"logs/1.pending": FIRST}, None),
        ([process("1", SECOND)], {"a/1.json": FIRST, "logs/1.pending": SECOND}, None),
        # The last process of a name counts, unless it has started again.
        ([process("1", FIRST), process("1", SECOND)], {"a/1.json": SECOND}, None),
        ([process("1", FIRST), started("1")], {"a/1.json": SECOND}, None),
        ([process("1", FIRST), started("2")], {}, "is missing"),
        ([process("1", FIRST), LOST], {}, None),
        ([process("1", FIRST), {**LOST, "again": False}], {}, "is missing"),
        # Some processes leave no record that a later session reads.
        ([process("1", None)], {}, None),
    ],
)
def test_records_are_those_that_were_measured(
    tmp_path: Path,
    events: Sequence[Mapping[str, Any]],
    files: Mapping[str, bytes],
    wrong: str | None,
) -> None:
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    if wrong is None:
        check_records(tmp_path, events, PENDING)
        return
    with pytest.raises(PathError, match=f"a/1.json: .*{wrong}.*restore the file, or name another"):
        check_records(tmp_path, events, PENDING)


def test_the_last_event_of_each_process_is_known() -> None:
    events = [process("1", None), {**process("2", None), "seconds": 1.0}, started("1")]
    assert last_process_events(events) == {"2": events[1]}
