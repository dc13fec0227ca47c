import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from data_sets import write_cifar10
from forked import Forked, cnnbench, cnnbench_with_little_disk

from cnnbench import cli
from cnnbench.cli.commands import data
from cnnbench.data.imagenet_records import serialize
from cnnbench.errors import DataError


@pytest.fixture
def folder(tmp_path):
    """Two classes with four small images each."""
    rng = np.random.default_rng(0)
    for name in ("left", "right"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(4):
            image = rng.integers(0, 255, (20, 24, 3), np.uint8)
            encoded = tf.io.encode_jpeg(image) if i else tf.io.encode_png(image)
            (tmp_path / "images" / name / f"{i}.jpg").write_bytes(encoded.numpy())
    return tmp_path / "images"


def test_make_then_check(folder, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--train_shards=2", "--validation_shards", "1", "--validation_fraction=0.25"]
    assert data.main(["make-imagenet", str(folder), str(out), *options, "--seed=3"]) == 0
    assert "6 training and 2 validation images of 2 classes, 2 of them" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == [
        "labels.txt",
        "train-00000-of-00002",
        "train-00001-of-00002",
        "validation-00000-of-00001",
    ]
    assert data.main(["check", str(out)]) == 0
    report = capsys.readouterr().out
    assert "imagenet" in report
    assert "train: 6 valid records in 2 files" in report
    assert "validation: 2 valid records in 1 files" in report


def test_a_labels_file_gives_the_order(folder, tmp_path):
    labels = tmp_path / "labels"
    labels.write_text("right\nleft\n")
    data.main(["make-imagenet", str(folder), str(tmp_path / "out"), f"--labels={labels}"])
    written = (tmp_path / "out" / "labels.txt").read_text()
    assert written == "background\nright\nleft\n"


def test_defects_are_listed_and_raised(tmp_path, capsys):
    images = np.zeros((4, 32, 32, 3), np.uint8)
    write_cifar10(tmp_path, images, [0, 1, 10, 3], form="binary", files=2)
    assert data.main(["check", str(tmp_path)]) == 0
    with pytest.raises(
        DataError, match=r"1 defect, the first: .*data_batch_2.bin: record 0: label"
    ):
        data.main(["check", str(tmp_path), "--num_classes=10"])
    assert "defect: " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["make-imagenet", "-h"]])
def test_help(arguments, capsys):
    assert cli.main(["data", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: cnnbench data")
    assert "--train_shards=N" in out
    assert "--num_classes=N" in out


@pytest.fixture
def process(tmp_path):
    """Runs the command in a process of its own; its exit code, standard output and error."""

    def run(*arguments, program=cnnbench):
        out, err = tmp_path / "stdout", tmp_path / "stderr"
        code = Forked(program, ["data", *map(str, arguments)], out, err).wait(60)
        return code, out.read_text(), err.read_text()

    return run


def test_the_command_line_exits_with_4_and_one_line(process, tmp_path):
    """TensorFlow's own words about the damage stay out of it, and a cut header is no end."""
    broken = serialize(
        tf.io.encode_jpeg(np.zeros((9, 9, 3), np.uint8)).numpy()[:400], 9, 9, 1, *"abc"
    )
    with tf.io.TFRecordWriter(str(tmp_path / "train-00000-of-00001")) as writer:
        writer.write(broken)
    with open(tmp_path / "train-00000-of-00001", "ab") as file:
        file.write(b"short")
    code, out, err = process("check", tmp_path)
    assert code == 4
    assert "record 1: truncated within its header; a damaged file is refused" in out
    assert err == (
        f"cnnbench: error: 2 defects, the first: {tmp_path}/train-00000-of-00001: record 0: "
        "the JPEG cannot be decoded\n"
    )


def test_what_nobody_foresaw_shows_what_the_libraries_said(monkeypatch, capfd):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)

    def fail():
        with data._tensorflow():
            os.write(2, b"a library speaks\n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert "a library speaks" in capfd.readouterr().err
    with data._tensorflow():
        os.write(2, b"a library speaks\n")
    assert capfd.readouterr().err == ""


def test_without_room_for_what_the_libraries_say_they_just_speak(monkeypatch, capfd):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)

    def refuse():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with data._tensorflow():
        os.write(2, b"a library speaks\n")
    assert "a library speaks" in capfd.readouterr().err


def test_a_disk_that_is_full_ends_with_4_and_one_line(folder, process, tmp_path):
    made = tmp_path / "made"
    arguments = ("make-imagenet", folder, made, "--train_shards=1")
    code, _, err = process(*arguments, program=cnnbench_with_little_disk)
    assert code == 4
    assert err.startswith(f"cnnbench: error: {made}/unfinished-")
    assert err.endswith("/train-00000-of-00001: cannot be written: File too large\n")
    assert err.count("\n") == 1
    assert list(made.iterdir()) == []
