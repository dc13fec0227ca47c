import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from data_sets import write_cifar10

from cnnbench.data import CIFAR10, IMAGENET, tfrecord
from cnnbench.data.check import check
from cnnbench.data.dataset import detect
from cnnbench.errors import FlagError


@pytest.fixture
def copy(small_set, tmp_path):
    return shutil.copytree(small_set("imagenet"), tmp_path / "copy")


def test_a_subset_that_is_missing_altogether_is_said_to_be(copy):
    for path in copy.glob("train-*"):
        path.unlink()
    train, validation = check(str(copy), IMAGENET, 1001)
    assert train.lines() == ["train: no files"]
    assert train.found.defects == []
    assert validation.found.records == 8


def test_a_length_beyond_all_memory_is_not_believed(copy):
    path = copy / "validation-00001-of-00002"
    *_, last = tfrecord.frames(path)
    content = bytearray(path.read_bytes())
    length = struct.pack("<Q", 2**40)
    content[last.offset : last.offset + 12] = length + struct.pack(
        "<I", tfrecord.masked_crc32c(length)
    )
    path.write_bytes(content)
    _, validation = check(str(copy), IMAGENET, 1001)
    (defect,) = validation.found.defects
    assert defect.startswith(f"{path}: record {last.record}: truncated, ")
    assert validation.found.records == 7


def test_empty_files_are_a_defect(tmp_path):
    (tmp_path / "train-00000-of-00001").touch()
    train, _ = check(str(tmp_path), IMAGENET, 1001)
    assert train.found.defects == [f"{tmp_path}: the train files hold no records"]
    assert len(train.lines()) == 1


def test_the_data_set_is_told_from_the_files(small_set, tmp_path):
    assert detect(str(small_set("imagenet"))) is IMAGENET
    with pytest.raises(FlagError, match="nowhere: there is no such directory"):
        detect(str(tmp_path / "nowhere"))
    with pytest.raises(FlagError, match=r"holds files of no data set \(imagenet: train-\*-of-\*"):
        detect(str(tmp_path))
    write_cifar10(tmp_path, np.zeros((1, 32, 32, 3), np.uint8), [0], subset="validation")
    assert detect(str(tmp_path)) is CIFAR10
    assert list(CIFAR10.subsets_in(str(tmp_path))) == ["validation"]
    with pytest.raises(FlagError, match="holds no imagenet files"):
        IMAGENET.subsets_in(str(tmp_path))


def test_a_directory_that_cannot_be_read_is_not_called_empty(tmp_path, monkeypatch):
    """Root may read everything, so the system's answer is made up."""

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    for look in (detect, CIFAR10.subsets_in):
        with pytest.raises(FlagError) as caught:
            look(str(tmp_path))
        assert str(caught.value) == f"--data_dir={tmp_path}: cannot be read: Permission denied"
