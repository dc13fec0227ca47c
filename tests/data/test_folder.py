"""Files of data sets: counted once, written all or none, and summed up in numbers."""

import os
import re

import pytest

from cnnbench.base.locks import SCRATCH
from cnnbench.data.folder import (
    UNFINISHED,
    Findings,
    ImageFacts,
    ImageTally,
    cache_by_file_version,
    find_unfinished,
    move_all_or_none,
    write_dataset_files,
)
from cnnbench.errors import DataError, UsageError


def test_a_file_is_counted_again_when_it_grew_was_touched_or_was_replaced(tmp_path):
    asked = []

    @cache_by_file_version
    def count(path):
        asked.append(path)
        return len(path.read_bytes()) if path.exists() else -1

    path, other = tmp_path / "a", tmp_path / "b"
    assert [count(path), count(path)] == [-1, -1]  # failures are not remembered
    path.write_bytes(b"123")
    assert [count(path), count(path)] == [3, 3]
    path.write_bytes(b"1234")
    assert count(path) == 4
    os.utime(path, ns=(0, 0))
    assert count(path) == 4
    other.write_bytes(b"5678")
    os.utime(other, ns=(0, 0))
    other.replace(path)
    assert count(path) == 4
    assert len(asked) == 2 + 4


def test_a_record_without_boxes_counts_none_and_a_check_begins_with_nothing():
    found = Findings()
    assert (found.records, found.details, found.defects) == (0, [], [])
    assert ImageFacts(label=1, height=2, width=3, stored_bytes=4).boxes == 0


def test_statistics_of_images_have_ranges_means_and_sums():
    tally = ImageTally()
    assert tally.lines() == []
    for label, height, width, stored, boxes in (
        (3, 20, 50, 1000, 2),
        (7, 40, 30, 2000, 0),
        (3, 30, 60, 2400, 5),
        (5, 25, 35, 2200, 1),
    ):
        tally.add(ImageFacts(label, height, width, stored, boxes))
    labels, images = (
        [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\b", line)] for line in tally.lines()
    )
    assert labels == [3, 3, 7, 1, 2]
    assert images == [20, 40, 30, 60, 1900, 8]


def write_lines(path, items):
    path.write_text("".join(items))
    return path.name, len(items)


def test_items_are_distributed_over_files_in_order(tmp_path):
    out = tmp_path / "a" / "b"
    out.mkdir(parents=True)
    (out / "labels.txt").write_text("old")
    written = write_dataset_files(
        out,
        "set-",
        {"train": "abcde", "validation": "f"},
        {"train": 2, "validation": 3},
        write_lines,
        {"labels.txt": ["x", "y"]},
    )
    names = ["set-train-00000-of-00002", "set-train-00001-of-00002"]
    names.append("set-validation-00000-of-00001")
    assert written == [*zip(names, (2, 3, 1), strict=True)]
    assert [(out / name).read_text() for name in names] == ["ab", "cde", "f"]
    assert (out / "labels.txt").read_text() == "x\ny\n"
    assert not [*out.glob(f"{UNFINISHED}*")]
    with pytest.raises(UsageError, match=re.escape(f"contains {names[0]} already")):
        write_dataset_files(out, "set-", {"train": "z"}, {"train": 1}, write_lines, {})
    assert (out / names[0]).read_text() == "ab"


def test_files_that_cannot_be_moved_leave_none_but_those_that_replace_others(tmp_path):
    out, made = tmp_path / "out", [tmp_path / name for name in ("a", "labels", "b")]
    out.mkdir()
    for path in made[:2]:
        path.touch()
    with pytest.raises(DataError):
        move_all_or_none(made, out, ["labels"])
    assert [path.name for path in out.iterdir()] == ["labels"]


def test_what_a_process_left_is_found_if_it_has_files(tmp_path):
    for name, files in (("c", 1), ("b", 1), ("a", 0)):
        folder = tmp_path / f"{UNFINISHED}{name}"
        folder.mkdir()
        (folder / SCRATCH).touch()
        for number in range(files):
            (folder / f"train-{number}").touch()
    (tmp_path / f"{UNFINISHED}0").mkdir()
    (tmp_path / f"{UNFINISHED}0" / "own.txt").touch()
    assert find_unfinished(tmp_path) == f"{UNFINISHED}b"
    assert find_unfinished(tmp_path / f"{UNFINISHED}a") == ""
