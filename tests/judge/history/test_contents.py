"""What is read from a results directory, and in which order."""

import dataclasses
import os

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


def test_names_that_are_not_unicode(folder, runs):
    for number, name in enumerate((b"\xff\xfe.json", b"\xff/x.json")):
        path = os.fsdecode(os.fsencode(folder) + b"/" + name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(dataclasses.replace(runs(1.0), run_id=f"odd{number}").to_json())
    (folder / "surrogate.json").write_text(r'{"schema": 1, "run_id": "x", "status": "\ud800"}')
    found = contents(folder)
    assert {"odd0", "odd1"} < set(names(found))
    assert [os.path.basename(one.path) for one in found.skipped] == ["surrogate.json"]


def test_runs_of_one_second_are_in_order_of_their_files(tmp_path, runs):
    for number in range(12):
        record = dataclasses.replace(runs(1.0), run_id=f"{99 - number}")
        record = dataclasses.replace(record, started_at="2026-11-20T00:00:00+00:00")
        (tmp_path / f"run{number}.json").write_text(record.to_json())
    assert names(contents(tmp_path)) == [str(99 - number) for number in range(12)]


def test_links_and_folders_that_cannot_be_read(folder, runs, save, monkeypatch, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    save(elsewhere, [dataclasses.replace(runs(1.0), run_id="linked")])
    (folder / "link").symlink_to(elsewhere)
    (folder / "gone.json").symlink_to(folder / "nowhere")
    (folder / "loop.json").symlink_to(folder / "loop.json")
    (folder / "locked").mkdir()
    scan = os.scandir

    def refuse(path):
        if os.path.basename(path) == "locked":
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = contents(folder)
    assert "linked" in names(found)
    assert {(os.path.basename(one.path), one.reason, one.defect) for one in found.skipped} == {
        ("gone.json", "cannot be read: No such file or directory", True),
        ("loop.json", "cannot be read: Too many levels of symbolic links", True),
        ("locked", "cannot be read: Permission denied", True),
    }


def test_faulty_files_and_second_copies(folder):
    (folder / "cut.json").write_text('{"schema": 1, "run_id"')
    (folder / "other.json").write_text('{"schema": 1, "kind": "comparison"}')
    (folder / "copy.json").write_text((folder / "run0.json").read_text())
    found = contents(folder)
    assert len(found.entries) == 9
    reasons = {os.path.basename(one.path): one.reason for one in found.skipped}
    assert "cut off" in reasons["cut.json"]
    # By name, copy.json comes before run0.json.
    assert "second copy" in reasons["run0.json"]
    defects = [one.path for one in found.skipped if one.defect]
    assert defects == [str(folder / "cut.json")]
