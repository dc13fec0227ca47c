import functools
import pickle

import numpy as np
import pytest
from data_sets import noise, write_cifar10

from cnnbench.data import CIFAR10, cifar10_files
from cnnbench.data.cifar10_files import find_files, read_cifar10_file
from cnnbench.data.dataset import detect_dataset
from cnnbench.errors import DataError, FlagError

NESTED = functools.reduce(lambda inner, _: [inner] * 10, range(9), [1])
"""A billion labels in a pickle of a few hundred bytes: every list holds one list ten times."""


@pytest.fixture(scope="module")
def some():
    """Images and labels."""
    return noise(0, 60, 32, 32, 3), np.arange(60) % 10


@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize("folder", ["", "cifar-10-batches-py", "cifar-10-batches-bin"])
def test_images_come_back_equal(tmp_path, some, form, folder):
    images, labels = some
    write_cifar10(tmp_path / folder, images[:50], labels[:50], form=form)
    write_cifar10(tmp_path / folder, images[50:], labels[50:], form=form, subset="validation")
    for subset, rows in (("train", slice(0, 50)), ("validation", slice(50, None))):
        parts = [read_cifar10_file(path, 11) for path in find_files(str(tmp_path), subset)]
        assert len(parts) == (5 if subset == "train" else 1)
        for found, expected in zip(zip(*parts, strict=True), (images, labels), strict=True):
            np.testing.assert_array_equal(np.concatenate(found), expected[rows])


def test_files_are_ordered_by_number(tmp_path, some):
    images, labels = some
    write_cifar10(tmp_path, images[:24], labels[:24], files=12)
    names = [path.name for path in find_files(str(tmp_path), "train")]
    assert names == [f"data_batch_{i}" for i in range(1, 13)]


def test_other_files_are_left_alone_and_pickles_win(tmp_path, some):
    images, labels = some
    write_cifar10(tmp_path, images[:5], labels[:5], form="python")
    write_cifar10(tmp_path, images[:5], labels[:5], form="binary")
    for name in ("batches.meta", "readme.html", "data_batch_1.bin.part", "data_batch_x"):
        (tmp_path / name).write_bytes(b"junk")
    assert {path.suffix for path in find_files(str(tmp_path), "train")} == {""}


ONE = np.zeros((1, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"labels": [1]}, "key 'data' is missing"),
        ({b"data": ONE}, "key 'labels' is missing"),
        ([1, 2], "key 'data' is missing"),
        ({b"data": ONE[:, 1:], b"labels": [1]}, r"a uint8 tensor \[1, 3071\]"),
        ({b"data": ONE.astype(float), b"labels": [1]}, "'<f8'"),
        ({b"data": b"bytes", b"labels": [1]}, "not a bytes"),
        ({b"data": ONE.repeat(2, 0), b"labels": [1]}, "2 images, but 1 labels"),
        ({b"data": np.zeros((), np.uint8), b"labels": [1]}, r"not a uint8 tensor \[\]"),
        *(
            ({b"data": ONE, b"labels": labels}, "'labels' is not a list")
            for labels in (["one"], [1.0], np.array(1), np.ones((1, 1), int), 1, [NESTED])
        ),
        ({b"data": ONE, b"labels": [2**70]}, "not a 64-bit integer"),
        ({b"data": ONE[:0], b"labels": []}, "contains no records"),
        ({b"data": ONE.repeat(2, 0), b"labels": [1, 11]}, "record 1: label 11"),
    ],
)
def test_wrong_content_names_the_file(tmp_path, content, message):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(content, 2))
    with pytest.raises(DataError, match=f"data_batch_1: .*{message}"):
        read_cifar10_file(path, 11)


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_a_folder_that_cannot_be_read_is_not_called_empty(tmp_path, some, unreadable, inner):
    images, labels = some
    folder = tmp_path / inner
    write_cifar10(folder, images[:5], labels[:5])
    unreadable(folder)
    where = f"{folder}: " if inner else ""
    for look in (detect_dataset, CIFAR10.files_by_subset):
        with pytest.raises(FlagError) as caught:
            look(str(tmp_path))
        assert str(caught.value).endswith(f": {where}Permission denied")


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"test_batch: cannot be read: Not a directory$"):
        read_cifar10_file(tmp_path / "file" / "test_batch", 11)
    (tmp_path / "data_batch_1").mkdir()
    with pytest.raises(DataError, match=r"data_batch_1: cannot be read: Is a directory$"):
        read_cifar10_file(tmp_path / "data_batch_1", 11)
    with pytest.raises(FlagError, match="there is no such directory"):
        find_files(str(tmp_path / "file" / "inner"), "train")


@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize(
    ("lost", "records", "missing"),
    [
        (None, 4, []),
        (4, 4, [4]),
        (5, 4, []),  # other data sets may have fewer files
        (5, 10_000, [5]),
        (1, 10_000, [1]),
    ],
)
def test_lost_training_files_are_named(tmp_path, form, lost, records, missing, monkeypatch):
    images = np.zeros((20, 32, 32, 3), np.uint8)
    paths = write_cifar10(tmp_path, images, np.arange(20) % 10, form=form)
    write_cifar10(tmp_path, images, np.arange(20) % 10, subset="validation", form=form)
    monkeypatch.setattr(cifar10_files, "count_records", lambda path: records)
    names = {n: path.name for n, path in enumerate(paths, 1)}
    if lost:
        paths[lost - 1].unlink()
    files = CIFAR10.find(str(tmp_path), "train")
    assert CIFAR10.missing(files) == [names[n] for n in missing]
    assert CIFAR10.missing(CIFAR10.find(str(tmp_path), "validation")) == []
    defects = CIFAR10.check(files, 11).defects
    assert defects == [f"{tmp_path / names[n]}: this file is missing" for n in missing]
    notices = CIFAR10.file_notices("train", str(tmp_path))
    assert [names[missing[0]] in line for line in notices] == [True] * len(missing)
