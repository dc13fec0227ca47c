"""The results directory and its journal."""

from __future__ import annotations

import os

import pytest

from cnnbench.campaigns.sweep.runner import Store
from cnnbench.errors import FlagError
from cnnbench.records import files

KEY = "0123456789ab"
RUN = ("suite-a num_gpus=2/x", KEY, 2)


def test_long_and_odd_labels_make_file_names(tmp_path):
    with Store(str(tmp_path)) as store:
        for label in ("x" * 500, "ü/../..", "...", "a\nb"):
            path = store.path(label, KEY, 1)
            store.keep({}, path)
            assert path.parent == tmp_path
            assert path in store.find(KEY, 1)


def test_the_newest_is_last(tmp_path):
    with Store(str(tmp_path)) as store:
        for stamp in ("20260102T000000000000Z", "20250102T000000000000Z"):
            store.stamp = stamp
            store.keep({}, store.path(*RUN))
        assert [path.name.split(".")[-2][:4] for path in store.find(KEY, 2)] == ["2025", "2026"]


def test_one_sweep_at_a_time(tmp_path):
    with Store(str(tmp_path)):
        holder = rf"--results=.*another process is writing there: pid {os.getpid()} on "
        with pytest.raises(FlagError, match=holder):
            Store(str(tmp_path))
    Store(str(tmp_path)).__exit__()


def test_leftovers_are_removed_and_records_are_not(tmp_path):
    with Store(str(tmp_path)) as store:
        (tmp_path / f"{files._UNFINISHED}abc.tmp").write_text("{half")
        store.keep({"a": 1}, store.path(*RUN))
    with Store(str(tmp_path)) as store:
        assert not [*tmp_path.glob("*.tmp")]
        assert len(store.find(KEY, 2)) == 1


def test_the_journal_survives_a_torn_line(tmp_path):
    with Store(str(tmp_path)) as store:
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
