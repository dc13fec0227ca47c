"""Classes, subsets and labels of a folder of images.

Tests cnnbench/data/folder.py.
"""

from collections import Counter

import pytest

from cnnbench.data.folder import find_images
from cnnbench.errors import UsageError


def make(root, counts):
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            (root / name / f"{i}.jpg").touch()


def per_class(files):
    return Counter(image_class.name for _, image_class in files)


def test_classes_are_numbered_from_one_in_order_of_their_names(tmp_path):
    """Also one that is called train."""
    make(tmp_path, {"train": 2, "ant": 2, "bee": 2})
    found = find_images(tmp_path, None, 0, 1)
    assert [(c.label, c.name, c.text) for c in found.classes] == [
        (1, "ant", "ant"),
        (2, "bee", "bee"),
        (3, "train", "train"),
    ]
    assert len(found.subsets["train"]) == 6
    assert found.subsets["validation"] == []


def test_the_share_for_validation_is_taken_from_every_class(tmp_path):
    make(tmp_path, {"a": 20, "b": 10, "c": 1})
    found = find_images(tmp_path, None, 0.2, 1)
    assert per_class(found.subsets["validation"]) == {"a": 4, "b": 2}
    assert per_class(found.subsets["train"]) == {"a": 16, "b": 8, "c": 1}
    paths = [path for files in found.subsets.values() for path, _ in files]
    assert len(set(paths)) == 31


def test_the_seed_decides_split_and_order(tmp_path):
    make(tmp_path, {"a": 30, "b": 30})
    first, again, other = (find_images(tmp_path, None, 0.5, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.subsets != other.subsets
    names = [image_class.name for _, image_class in first.subsets["train"]]
    assert names != sorted(names)


@pytest.mark.parametrize("validation", ["validation", "val"])
def test_a_folder_that_is_split_already_stays_split(tmp_path, validation):
    make(tmp_path / "train", {"a": 5, "b": 4})
    make(tmp_path / validation, {"b": 3})
    found = find_images(tmp_path, None, 0.5, 1)
    assert per_class(found.subsets["train"]) == {"a": 5, "b": 4}
    assert per_class(found.subsets["validation"]) == {"b": 3}
    assert [c.name for c in found.classes] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        (
            "n09\tnobody\nn02  a cat, a tabby\n\nn01\n",
            [(1, "n09", "nobody"), (2, "n02", "a cat, a tabby"), (3, "n01", "n01")],
        ),
        # As make-imagenet writes it.
        ("background\nn02\nn01 a cat\n", [(1, "n02", "n02"), (2, "n01", "a cat")]),
    ],
)
def test_labels_follow_the_labels_file(text, classes, tmp_path):
    make(tmp_path / "images", {"n01": 1, "n02": 1})
    (tmp_path / "labels.txt").write_text(text)
    found = find_images(tmp_path / "images", tmp_path / "labels.txt", 0, 1)
    assert [(c.label, c.name, c.text) for c in found.classes] == classes
    labels = {image_class.label for _, image_class in found.subsets["train"]}
    assert labels == {label for label, name, _ in classes if name != "n09"}


def test_other_files_and_hidden_folders_are_left_out(tmp_path):
    """What systems add is not looked at; what a person may have meant is listed."""
    make(tmp_path, {"a": 1, ".git": 3, "__MACOSX": 1, "@eaDir": 1})
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "labels.txt").touch()
    (tmp_path / "lost.jpg").touch()
    (tmp_path / "a" / "._0.jpg").touch()
    (tmp_path / "readme.txt").touch()
    (tmp_path / "a" / "notes.txt").touch()
    (tmp_path / "a" / "B.JPEG").touch()
    (tmp_path / "a" / "c.PNG").touch()
    found = find_images(tmp_path, None, 0, 1)
    assert sorted(path.name for path, _ in found.subsets["train"]) == ["0.jpg", "B.JPEG", "c.PNG"]
    assert [c.name for c in found.classes] == ["a"]
    ignored = [str(path.relative_to(tmp_path)) for path in found.ignored]
    assert ignored == ["a/notes.txt", "lost.jpg", "output"]


def test_what_cannot_be_used_is_said(tmp_path):
    with pytest.raises(UsageError, match="its sub-folders contain no images"):
        find_images(tmp_path, None, 0, 1)
    make(tmp_path / "images", {"a": 1, "b": 1})
    labels = tmp_path / "labels"
    labels.write_text("a\n")
    with pytest.raises(UsageError, match=r"--labels=.*: class folder 'b' is not listed"):
        find_images(tmp_path / "images", labels, 0, 1)
    labels.write_text("a\nb\na again\n")
    with pytest.raises(UsageError, match="'a' is listed twice"):
        find_images(tmp_path / "images", labels, 0, 1)


def test_a_folder_that_cannot_be_read_is_wrong_use(tmp_path, unreadable):
    make(tmp_path, {"a": 1})
    refused = tmp_path / "a"
    unreadable(refused)
    with pytest.raises(UsageError) as caught:
        find_images(tmp_path, None, 0, 1)
    assert str(caught.value) == f"{refused}: Permission denied"


def test_a_name_that_no_system_takes_is_wrong_use(tmp_path):
    # Which of the two is said depends on the version of Python.
    with pytest.raises(UsageError, match=r"x: (File name too long|there is no such folder)$"):
        find_images(tmp_path / ("x" * 300), None, 0, 1)
