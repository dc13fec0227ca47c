"""The results directory and its journal."""

from __future__ import annotations

import os

import pytest

from cnnbench.campaigns.processes.results_dir import Journal, ResultsFolder
from cnnbench.campaigns.sweep import SWEEP, find_records, record_file_name
from cnnbench.errors import FlagError, PathError
from cnnbench.records import files

KEY = "0123456789ab"
RUN = ("suite-a num_gpus=2/x", KEY, 2)
EARLIER, LATER = "20250102T000000000000Z", "20260102T000000000000Z"


def test_long_and_odd_labels_make_file_names(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        for label in ("x" * 500, "ü/../..", "...", "a\nb"):
            path = tmp_path / record_file_name(label, KEY, 1, LATER)
            store.write(path, b"{}")
            assert path.parent == tmp_path
            assert path in find_records(tmp_path, KEY, 1)


def test_the_newest_is_last(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        for stamp in (LATER, EARLIER):
            store.write(tmp_path / record_file_name(*RUN, stamp), b"{}")
        found = find_records(tmp_path, KEY, 2)
        assert [path.name.split(".")[-2] for path in found] == [EARLIER, LATER]


def test_one_sweep_at_a_time(tmp_path):
    with ResultsFolder(SWEEP, tmp_path):
        holder = rf"--results=.*another process is writing there: pid {os.getpid()} on "
        with pytest.raises(FlagError, match=holder):
            ResultsFolder(SWEEP, tmp_path)
    ResultsFolder(SWEEP, tmp_path).__exit__()


def test_leftovers_are_removed_and_records_are_not(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        (tmp_path / f"{files._UNFINISHED}abc.tmp").write_text("{half")
        store.write(tmp_path / record_file_name(*RUN, LATER), b"{}")
    with ResultsFolder(SWEEP, tmp_path):
        assert not [*tmp_path.glob("*.tmp")]
        assert len(find_records(tmp_path, KEY, 2)) == 1


def test_the_journal_survives_a_torn_line(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        journal = store.journal
        assert list(journal.read()) == []
        journal.add("start", key="k")
        path = tmp_path / "sweep.jsonl"
        path.write_bytes(path.read_bytes() + b'{"event": "end", "ke')
        journal.add("end", key="k", seconds=1.5)
        path.write_bytes(path.read_bytes() + b'[1]\n{"event": "to')
        events = list(journal.read())
    assert [(e["event"], e["key"]) for e in events] == [("start", "k"), ("end", "k")]
    assert events[1]["seconds"] == 1.5
    assert events[0]["time"].endswith("+00:00")


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for number in range(4):
        journal.add("look", pairs=number)
    return journal


def lines_of(journal):
    return journal.path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    "edited",
    [
        lambda lines: lines[:-1],
        lambda lines: lines[:2],
        lambda lines: lines[1:],
        lambda lines: [*lines[:2], lines[2][:9]],
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0].replace(b'"pairs": 0', b'"pairs": 5'), *lines[1:]],
        lambda lines: [line.partition(b', "crc"')[0] + b"}\n" for line in lines],
        lambda lines: [*lines[:3], lines[3].partition(b', "crc"')[0] + b"}\n"],
        lambda lines: [],
    ],
)
def test_a_journal_that_was_edited_is_refused(journal, edited):
    journal.path.write_bytes(b"".join(edited(lines_of(journal))))
    with pytest.raises(PathError, match="restore the file, or name another folder"):
        list(journal.read())


@pytest.mark.parametrize(
    "edited",
    [
        lambda data: data.replace(b'"pairs": 1', b'"pairs": 5'),  # of the same size
        lambda data: data + b'{"event": "end"}\n',
        lambda data: data[: data.index(b"\n") + 1],
        lambda data: b"",
    ],
)
def test_a_journal_that_another_process_edits_meanwhile_is_refused_later(journal, edited):
    journal.path.write_bytes(edited(journal.path.read_bytes()))
    for number in range(4, 7):
        journal.add("look", pairs=number)
    with pytest.raises(PathError, match="restore the file, or name another folder"):
        list(journal.read())


def test_events_are_added_without_reading_those_before(journal, monkeypatch):
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: read.append(given) or pread(*given))
    journal.add("look", pairs=4)
    assert not read
    journal.path.write_bytes(journal.path.read_bytes() + b'{"event": "torn')  # an unfinished write
    journal.add("look", pairs=5)
    assert len(read) == 1
    assert [one["pairs"] for one in journal.read()] == [*range(6)]


def test_a_torn_last_line_is_dropped_and_the_journal_goes_on(journal):
    journal.path.write_bytes(journal.path.read_bytes()[:-9])
    later = Journal(journal.path)
    assert [one["pairs"] for one in later.read()] == [0, 1, 2]
    later.add("look", pairs=7)
    assert [one["pairs"] for one in later.read()] == [0, 1, 2, 7]


def test_a_journal_of_1_0_0_is_read_and_goes_on_but_not_with_values_of_other_types(tmp_path):
    journal = Journal(tmp_path / "sweep.jsonl")
    old = '{"event": "sweep", "suite": "a", "seed": 1}\n{"event": "end", "seconds": 4.5}\n'
    journal.path.write_text(old)
    journal.add("session", campaign="sweep", suite="b")
    assert [one["event"] for one in journal.read()] == ["session", "end", "session"]
    assert SWEEP.stored_seed(str(tmp_path), "a") is None  # it has no question, which gives the seed
    journal.path.write_text(old.replace("4.5", '"x"'))
    journal.lines.unlink()
    with pytest.raises(PathError, match="line 2 is damaged"):
        list(Journal(journal.path).read())


def test_records_that_the_journal_does_not_name_are_refused(tmp_path):
    with ResultsFolder(SWEEP, tmp_path) as store:
        known = tmp_path / record_file_name(*RUN, LATER)
        store.add_session_start(suite="a")
        store.add_journal_note("started", files=store.journal_names(known))
        store.write(known, b"{}")
        (tmp_path / "comparison.json").write_text("of the user")
    ResultsFolder(SWEEP, tmp_path, resume=True).__exit__()
    with ResultsFolder(SWEEP, tmp_path) as store:
        store.write(tmp_path / record_file_name(*RUN, EARLIER), b"{}")
    with pytest.raises(FlagError, match=r"does not name suite-a.*r2.2025.*json"):
        ResultsFolder(SWEEP, tmp_path, resume=True)
