"""Blocks of the table of measurements: what they hold, and how many files each has."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cnnbench.judge.history import HistoryEntry
from cnnbench.judge.history import cache as table
from cnnbench.judge.history.cache import (
    SAME,
    CachedFile,
    MeasurementCache,
    Process,
    decode_block,
    encode_block,
    file_stamp,
)
from cnnbench.records.load import SkippedFile
from cnnbench.records.metric import HISTORY
from cnnbench.records.subject import Subject

SECOND = 10**9


@pytest.mark.parametrize(
    ("size", "modified", "changed", "current"),
    [
        # The file was read at 10 s, and times may be wrong by 2 s.
        (5, 7 * SECOND, 8 * SECOND - 1, True),
        (5, 7 * SECOND, 8 * SECOND, False),
        (5, 8 * SECOND, 7 * SECOND, False),
        (5, 9 * SECOND, 9 * SECOND, False),
    ],
)
def test_a_file_that_was_new_when_it_was_read_may_have_changed(size, modified, changed, current):
    status = SimpleNamespace(st_size=size, st_mtime_ns=modified, st_ctime_ns=changed)
    row = CachedFile("a", file_stamp(status), 10 * SECOND, "digest", None)
    assert row.is_current(status) == current
    for other in (
        SimpleNamespace(**{**vars(status), "st_size": 6}),
        SimpleNamespace(**{**vars(status), "st_mtime_ns": modified - 1}),
        SimpleNamespace(**{**vars(status), "st_ctime_ns": changed - 1}),
    ):
        assert not row.is_current(other)


def file(path, content):
    return CachedFile(path, f"stamp of {path}", 1, f"digest of {path}", content)


@pytest.fixture
def process(by_commit):
    """process(SPEED): the measurements of a run."""

    def make(speed=100.0, commit="a", **parts):
        record = by_commit(speed, commit, **parts)
        return Process(record.run_id, HistoryEntry.all_of(record))

    return make


def test_blocks_hold_what_was_written(process, reductions):
    reduced = reductions(6.0, reductions.point(spec="copy"))
    subject = Subject(repository="nets", revision="b" * 40, dirty=False)
    rows = [
        file("a", process()),
        file("b", process(step_seconds=(0.08, 0.08, 0.2) * 10, losses=())),
        file("c", process(subject=subject, ab={"side": "a", "seed": 1, "pair": 3, "position": 1})),
        file("d", process(error="no memory")),
        file("e", Process(reduced.run_id, HistoryEntry.all_of(reduced))),
        file("f", Process("empty", [])),
        file("g", SkippedFile("/top/g", "cut off")),
        file("h", SkippedFile("/top/h", "another kind", defect=False)),
        file("i", None),
    ]
    columns = encode_block(rows)
    assert columns.keys() == {table.FILES, *HISTORY}
    assert [*decode_block(columns, "/top/")] == rows
    assert rows[1].content.entries[0].slow is not None
    assert rows[2].content.entries[0].pair is not None
    # With the columns of some metrics, there are only their values.
    some = {name: columns[name] for name in (table.FILES, "throughput")}
    found = [*decode_block(some, "/top/")]
    values = [entry.values for row in found[:2] for entry in row.content.entries]
    assert [{*one} for one in values] == [{"throughput"}] * 2
    assert found[3].content.entries[0].values == {}


def test_long_texts_are_stored_once(process):
    rows = [file(str(number), process(100.0 + number)) for number in range(10)]
    sizes = [len(encode_block(some)[table.FILES]) for some in (rows[:1], rows)]
    assert sizes[1] < 3 * sizes[0]
    (first, *others) = decode_block(encode_block(rows), "")
    assert all(one.content.entries[0].facts is first.content.entries[0].facts for one in others)


def blocks_of(folder):
    """Number of files in each block of the table, in descending order."""
    with contextlib.closing(sqlite3.connect(folder / table.FILE)) as database:
        columns = database.execute("SELECT block, name, data FROM columns").fetchall()
    blocks = {}
    for block, name, data in columns:
        blocks.setdefault(block, {})[name] = data
    return sorted((len([*decode_block(one, "")]) for one in blocks.values()), reverse=True)


@pytest.fixture
def small(monkeypatch):
    """A table is made for three files, and a block has four."""
    monkeypatch.setattr(table, "FEWEST", 3)
    monkeypatch.setattr(table, "AT_ONCE", 4)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("count", "blocks"), [(2, None), (3, [3]), (4, [4]), (5, [4, 1])])
def test_a_table_is_made_for_many_files(tmp_path, process, count, blocks):
    rows = [file(str(number), process()) for number in range(count)]
    MeasurementCache(tmp_path, HISTORY).write(rows)
    assert (tmp_path / table.FILE).exists() == (blocks is not None)
    assert blocks is None or blocks_of(tmp_path) == blocks
    known = MeasurementCache(tmp_path, HISTORY).known
    assert sorted(known.values()) == (rows if blocks else [])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("first", "more", "blocks"),
    [
        # Blocks that are at most half full are merged with new files.
        (6, 1, [4, 3]),
        (6, 3, [4, 4, 1]),
        (7, 1, [4, 3, 1]),
        (8, 1, [4, 4, 1]),
    ],
)
def test_small_blocks_are_merged(tmp_path, process, first, more, blocks):
    rows = [file(f"{number:02}", process()) for number in range(first + more)]
    MeasurementCache(tmp_path, HISTORY).write(rows[:first])
    MeasurementCache(tmp_path, HISTORY).write(rows[first:])
    assert blocks_of(tmp_path) == blocks
    known = MeasurementCache(tmp_path, HISTORY).known
    assert sorted(known.values()) == rows


@pytest.mark.usefixtures("small")
def test_files_are_replaced_and_removed(tmp_path, process):
    rows = [file(str(number), process()) for number in range(6)]
    cache = MeasurementCache(tmp_path, HISTORY)
    cache.write(rows)
    other = process(50.0)
    touched = rows[1]._replace(stamp="new", read_ns=7, content=SAME)
    cache.write([rows[0]._replace(content=other), touched], deleted=["5"])
    known = MeasurementCache(tmp_path, HISTORY).known
    assert {*known} == {"0", "1", "2", "3", "4"}
    assert known["0"].content == other
    assert (known["1"].stamp, known["1"].read_ns) == ("new", 7)
    assert known["1"].content == rows[1].content
    assert known["2"] == rows[2]
    # Removing files needs no new ones, and nothing is written without a change.
    cache.write([], deleted=["0", "unknown"])
    assert {*MeasurementCache(tmp_path, HISTORY).known} == {"1", "2", "3", "4"}
    before = (tmp_path / table.FILE).read_bytes()
    MeasurementCache(tmp_path, HISTORY).write([])
    assert (tmp_path / table.FILE).read_bytes() == before


@pytest.mark.usefixtures("small")
def test_a_file_in_two_blocks_counts_once(tmp_path, process):
    rows = [file(str(number), process()) for number in range(3)]
    caches = [MeasurementCache(tmp_path, HISTORY) for _ in range(2)]
    caches[0].write(rows)
    # The second program does not know that the first one has written.
    newer = [row._replace(stamp="newer") for row in rows]
    caches[1].write(newer)
    assert blocks_of(tmp_path) == [3, 3]
    found = MeasurementCache(tmp_path, HISTORY)
    assert {*found.known} == {"0", "1", "2"}
    # The next write leaves one of them.
    found.write([])
    assert blocks_of(tmp_path) == [3]
    assert {*MeasurementCache(tmp_path, HISTORY).known} == {"0", "1", "2"}


def test_digests_of_columns_depend_on_the_code(tmp_path, process, monkeypatch):
    monkeypatch.setattr(table, "FEWEST", 1)
    MeasurementCache(tmp_path, HISTORY).write([file("a", process())])
    assert {*MeasurementCache(tmp_path, HISTORY).known} == {"a"}
    code = table.code_digest()
    assert len(code) == 16
    monkeypatch.setattr(table, "code_digest", lambda: code[::-1])
    assert MeasurementCache(tmp_path, HISTORY).known == {}


def test_entries_are_equal_to_those_of_the_record(by_commit):
    record = by_commit(100.0, "c" * 40)
    (entry,) = HistoryEntry.all_of(record)
    content = Process(record.run_id, [replace(entry, values={"throughput": 1.5})])
    (row,) = decode_block(encode_block([file("a", content)]), "")
    assert row.content.entries[0].values == {"throughput": 1.5}
    assert row.content.entries[0].commit == "c" * 40
