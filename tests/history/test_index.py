"""The index: fast, and never the truth."""

import dataclasses
import os
import sqlite3

import pytest

from cnnbench.history import contents
from cnnbench.history.index import NAME


def age(folder, seconds=3600):
    """Makes files look as old as results usually are."""
    for path in folder.rglob("*.json"):
        found = path.stat()
        os.utime(path, (found.st_atime - seconds, found.st_mtime - seconds))


@pytest.fixture
def folder(tmp_path, runs, save):
    save(tmp_path, runs.history([100.0] * 4, per_commit=2))
    save(tmp_path / "deep", [runs(50.0, flags={"model": "resnet20"})])
    age(tmp_path)
    return tmp_path


def names(found):
    return [entry.run_id for entry in found.entries]


def test_reads_each_file_once(folder):
    first = contents(folder)
    assert (first.read, len(first.entries), first.kept) == (9, 9, True)
    second = contents(folder)
    assert second.read == 0
    assert second.entries == first.entries
    assert contents(folder, rebuild=True).read == 9


def test_new_changed_and_deleted_files(folder, runs, save):
    contents(folder)
    save(folder, [runs(70.0, "new")])
    (folder / "run0.json").unlink()
    changed = runs(33.0, "other")
    changed = dataclasses.replace(changed, run_id="run1")
    (folder / "run1.json").write_text(changed.to_json())
    found = contents(folder)
    assert found.read == 2
    assert "run0" not in names(found)
    assert {entry.run_id: entry.commit for entry in found.entries}["run1"] == "other"
    assert len(found.entries) == 9


def test_a_touched_file_is_not_read_again_but_one_changed_in_place_is(folder):
    contents(folder)
    path = folder / "run0.json"
    os.utime(path)
    assert contents(folder).read == 0
    text = path.read_text()
    path.write_text(text.replace("commit=c000", "commit=d000"))
    assert contents(folder).read == 1


def test_a_second_change_within_the_clocks_resolution_is_seen(folder):
    path = folder / "run0.json"
    os.utime(path)
    contents(folder)
    stamp = path.stat()
    path.write_text(path.read_text().replace("commit=c000", "commit=d000"))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    found = contents(folder)
    assert {entry.commit for entry in found.entries} >= {"d000"}


@pytest.mark.parametrize("damage", [b"", b"garbage" * 100, None])
def test_a_broken_index_is_made_anew(folder, damage):
    before = contents(folder)
    path = folder / NAME
    if damage is None:
        data = bytearray(path.read_bytes())
        data[100:4000] = b"\xff" * 3900
        path.write_bytes(bytes(data))
    else:
        path.write_bytes(damage)
    assert contents(folder).entries == before.entries
    assert contents(folder, rebuild=True).entries == before.entries
    assert contents(folder).read == 0


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE files SET entry = '{\"run_id\": 3}' WHERE path = CAST('run0.json' AS BLOB)",
        'UPDATE files SET entry = \'{"process": {}, "entries": []}\'',
        "UPDATE files SET entry = replace(entry, '\"given\": [', '\"given\": [[], ')",
        f"UPDATE files SET entry = '{'[' * 100_000}'",
        "UPDATE files SET entry = NULL",
        "UPDATE files SET path = 'run0.json' WHERE path = CAST('run0.json' AS BLOB)",
        "UPDATE files SET read_ns = 'later'",
        "UPDATE files SET path = CAST('run9.json' AS BLOB) WHERE path = CAST('run0.json' AS BLOB)",
        "UPDATE configurations SET flags = '5'",
        "UPDATE configurations SET key = key || 'x'",
        "DELETE FROM configurations",
        "ALTER TABLE files DROP COLUMN reason",
    ],
)
def test_rows_that_are_not_as_they_were_written_are_not_believed(folder, damage):
    before = contents(folder)
    with sqlite3.connect(folder / NAME) as database:
        database.execute(damage)
    database.close()
    assert contents(folder).entries == before.entries
    assert contents(folder).entries == before.entries


def test_a_damaged_index_is_made_anew_at_once(folder):
    contents(folder)
    with sqlite3.connect(folder / NAME) as database:
        database.execute("UPDATE configurations SET flags = '5'")
    database.close()
    found = contents(folder)
    assert (found.read, found.kept) == (9, True)
    assert contents(folder).read == 0


def test_names_that_are_no_text_are_names(folder, runs, save):
    for number, name in enumerate((b"\xff\xfe.json", b"\xff/x.json")):
        path = os.fsdecode(os.fsencode(folder) + b"/" + name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        record = dataclasses.replace(runs(1.0), run_id=f"odd{number}")
        with open(path, "w") as file:
            file.write(record.to_json())
        os.utime(path, (0, 0))
    (folder / "surrogate.json").write_text(r'{"schema": 1, "run_id": "x", "status": "\ud800"}')
    os.utime(folder / "surrogate.json", (0, 0))
    found = contents(folder)
    assert {"odd0", "odd1"} < set(names(found))
    again = contents(folder)
    assert (again.read, again.entries, again.skipped) == (0, found.entries, found.skipped)
    assert [os.path.basename(one.path) for one in found.skipped] == ["surrogate.json"]


def test_runs_of_one_second_are_in_order_of_their_files(tmp_path, runs):
    for number in range(12):
        record = dataclasses.replace(runs(1.0), run_id=f"{99 - number}")
        record = dataclasses.replace(record, started_at="2026-11-20T00:00:00+00:00")
        (tmp_path / f"run{number}.json").write_text(record.to_json())
    assert names(contents(tmp_path)) == [str(99 - number) for number in range(12)]


def test_links_and_folders_that_cannot_be_read_are_named(
    folder, runs, save, monkeypatch, tmp_path_factory
):
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


def test_an_index_of_another_version_is_made_anew(folder):
    contents(folder)
    with sqlite3.connect(folder / NAME) as database:
        database.execute("UPDATE meta SET version = 'of yesterday'")
    database.close()
    assert contents(folder).read == 9


def test_a_directory_that_cannot_be_written_is_read_all_the_same(folder):
    (folder / NAME).mkdir()
    found = contents(folder)
    assert len(found.entries) == 9
    assert not found.kept


def test_a_locked_index_is_no_obstacle(folder, monkeypatch):
    contents(folder)
    monkeypatch.setattr("cnnbench.history.index._PATIENCE", 0.1)
    holder = sqlite3.connect(folder / NAME)
    holder.execute("BEGIN EXCLUSIVE")
    found = contents(folder)
    holder.close()
    assert len(found.entries) == 9
    assert not found.kept


def test_faulty_files_are_named_every_time(folder):
    (folder / "cut.json").write_text('{"schema": 1, "run_id"')
    (folder / "other.json").write_text('{"schema": 1, "kind": "comparison"}')
    (folder / "copy.json").write_text((folder / "run0.json").read_text())
    for _ in range(2):
        found = contents(folder)
        assert len(found.entries) == 9
        reasons = {os.path.basename(one.path): one.reason for one in found.skipped}
        assert "cut off" in reasons["cut.json"]
        # By name, copy.json comes before run0.json.
        assert "second copy" in reasons["run0.json"]
        defects = [one.path for one in found.skipped if one.defect]
        assert defects == [str(folder / "cut.json")]
    (folder / "cut.json").unlink()
    assert len(contents(folder).skipped) == 2


def test_what_other_commands_keep_for_themselves_is_left_alone(folder, runs, save):
    save(folder / ".sweep", [runs(1.0)])
    assert len(contents(folder).entries) == 9
