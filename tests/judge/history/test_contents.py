"""What is read from a results directory, and in which order."""

import dataclasses

import pytest

from cnnbench.judge.history import contents


@pytest.fixture
def folder(tmp_path, runs, save):
    save(tmp_path, runs.history([100.0] * 4, per_commit=2))
    save(tmp_path / "deep", [runs(50.0, flags={"model": "resnet20"})])
    return tmp_path


def names(found):
    return [entry.run_id for entry in found.entries]


def test_all_records_are_read_and_an_index_of_earlier_versions_is_ignored(folder):
    before = contents(folder)
    assert len(before.entries) == 9
    assert before.skipped == ()
    (folder / ".history.sqlite").write_bytes(b"SQLite format 3\0")
    assert contents(folder) == before
    assert sorted(folder.glob(".*")) == [folder / ".history.sqlite"]


def test_hidden_files_and_folders_are_ignored(folder, runs, save):
    save(folder / ".sweep", [runs(1.0)])
    (folder / ".hidden.json").write_text("{")
    found = contents(folder)
    assert (len(found.entries), found.skipped) == (9, ())


def test_runs_of_one_second_are_in_order_of_their_files(tmp_path, runs):
    for number in range(12):
        record = dataclasses.replace(runs(1.0), run_id=f"{99 - number}")
        record = dataclasses.replace(record, started_at="2026-11-20T00:00:00+00:00")
        (tmp_path / f"run{number}.json").write_text(record.to_json())
    assert names(contents(tmp_path)) == [str(99 - number) for number in range(12)]
