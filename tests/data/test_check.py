import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cifar10_writer import write_cifar10

from cnnbench.data import CIFAR10, IMAGENET
from cnnbench.data.check import check
from cnnbench.data.imagenet_records import serialize
from cnnbench.data.open import detect, find_subsets
from cnnbench.errors import UsageError


@pytest.fixture
def copy(imagenet_dir, tmp_path):
    for path in imagenet_dir.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path


def test_statistics_of_a_sound_set(imagenet_dir):
    train, validation = check(str(imagenet_dir), IMAGENET, 1001)
    assert (train.subset, train.files, train.records) == ("train", 3, 16)
    assert (validation.subset, validation.files, validation.records) == ("validation", 2, 8)
    assert train.labels == {1: 4, 2: 4, 3: 4, 4: 4}
    assert validation.labels == {1: 2, 2: 2, 3: 2, 4: 2}
    assert set(train.heights + validation.heights) == {90, 93, 96, 99, 102, 105}
    assert set(train.widths + validation.widths) == {95, 100, 105, 110, 115, 120}
    sizes = sum(path.stat().st_size for path in imagenet_dir.glob("train-*"))
    assert train.file_bytes == sizes > train.image_bytes > 0
    assert train.defects == validation.defects == []


def test_the_lines_for_people(imagenet_dir):
    train, _ = check(str(imagenet_dir), IMAGENET, 1001)
    head, labels, images = train.lines()
    assert head.startswith("train: 16 sound records in 3 files, ")
    assert labels.strip() == "labels: 4 different from 1 to 4, 4 to 4 records each"
    assert images.strip().endswith("bytes on average, 0 boxes")


def test_every_defect_is_found_with_its_record(copy, photos):
    """A damaged record, one with a wrong label and a broken image do not hide each other."""
    good = tf.io.encode_jpeg(photos["cat"][:40, :40]).numpy()
    path = copy / "train-00001-of-00003"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for jpeg, label in [(good, 1), (good, 2), (good, 99), (good[:200], 1), (good, 3)]:
            writer.write(serialize(jpeg, 40, 40, label, "a.jpg", "a", "a"))
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    train, validation = check(str(copy), IMAGENET, 10)
    assert train.defects == [
        f"{path}: record 0: its checksum is wrong",
        f"{path}: record 2: label 99 is not in [0, 10)",
        f"{path}: record 3: the JPEG cannot be decoded",
    ]
    assert validation.defects == []
    assert train.records == 2 + 11


def test_a_truncated_file_keeps_its_sound_records(copy):
    path = copy / "validation-00001-of-00002"
    path.write_bytes(path.read_bytes()[:-7])
    _, validation = check(str(copy), IMAGENET, 1001)
    assert validation.defects == [f"{path}: record 3: truncated, 7 bytes are missing"]
    assert validation.records == 7


def test_a_missing_file_is_a_defect(copy):
    (copy / "train-00002-of-00003").unlink()
    train, _ = check(str(copy), IMAGENET, 1001)
    assert train.defects == [f"{copy / 'train-00002-of-00003'}: this file is missing"]


def test_empty_files_are_a_defect(tmp_path):
    (tmp_path / "train-00000-of-00001").touch()
    (train,) = check(str(tmp_path), IMAGENET, 1001)
    assert train.defects == [f"{tmp_path}: the train files hold no records"]
    assert len(train.lines()) == 1


@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar10(tmp_path, form):
    images = np.random.default_rng(0).integers(0, 255, (20, 32, 32, 3), np.uint8)
    write_cifar10(tmp_path, images, np.arange(20) % 5, form=form, files=2)
    (train,) = check(str(tmp_path), CIFAR10, 11)
    assert (train.files, train.records, train.labels) == (2, 20, dict.fromkeys(range(5), 4))
    assert train.image_bytes == 20 * 3072
    first = min(path for path in tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-100])
    (train,) = check(str(tmp_path), CIFAR10, 11)
    assert train.records == 10
    assert len(train.defects) == 1
    assert train.defects[0].startswith(f"{first}: ")


def test_the_data_set_is_told_from_the_files(imagenet_dir, tmp_path):
    assert detect(str(imagenet_dir)) is IMAGENET
    with pytest.raises(UsageError, match="nowhere: there is no such directory"):
        detect(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="holds neither ImageNet records"):
        detect(str(tmp_path))
    write_cifar10(tmp_path, np.zeros((1, 32, 32, 3), np.uint8), [0], subset="validation")
    assert detect(str(tmp_path)) is CIFAR10
    assert list(find_subsets(str(tmp_path), CIFAR10)) == ["validation"]
    with pytest.raises(UsageError, match="holds no imagenet files"):
        find_subsets(str(tmp_path), IMAGENET)


def test_a_directory_that_cannot_be_read_is_not_called_empty(tmp_path, monkeypatch):
    """Root may read everything, so the system's answer is made up."""

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    for look in (detect, lambda folder: find_subsets(folder, CIFAR10)):
        with pytest.raises(UsageError) as caught:
            look(str(tmp_path))
        assert str(caught.value) == f"{tmp_path}: cannot be read: Permission denied"
