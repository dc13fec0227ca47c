import contextlib
import os

import numpy as np
import pytest
import tensorflow as tf
from data_sets import write_cifar10
from forked import Forked, cnnbench, cnnbench_with_little_disk

from cnnbench.cli.commands import data
from cnnbench.data.imagenet import serialize


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


def test_the_order_of_a_labels_file_and_what_was_made(call, folder, tmp_path):
    out, labels = tmp_path / "out", tmp_path / "labels"
    labels.write_text("right\nleft\n")
    options = ["--train_shards=2", "--validation_shards", "1", "--validation_fraction=0.25"]
    said = call("data", "make-imagenet", folder, out, *options, f"--labels={labels}").out
    made = f"{out}: 6 training and 2 validation images of 2 classes, 2 of them re-encoded\n"
    assert said == made
    assert len([*out.glob("train-*-of-00002")]) == 2
    assert (out / "labels.txt").read_text() == "background\nright\nleft\n"


def test_labels_may_be_held_to_fewer_classes(call, tmp_path):
    images = np.zeros((4, 32, 32, 3), np.uint8)
    write_cifar10(tmp_path, images, [0, 1, 10, 3], form="binary", files=2)
    call("data", "check", str(tmp_path))
    out, err = call("data", "check", str(tmp_path), "--num_classes=10", code=4)
    told = f"{tmp_path}/data_batch_2.bin: record 0: label 10 is not in [0, 10)"
    assert f"defect: {told}\n" in out
    assert err == f"cnnbench: error: 1 defect, the first: {told}\n"


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


@pytest.mark.parametrize(
    ("raised", "room", "heard"),
    [(RuntimeError, True, True), (None, True, False), (None, False, True)],
)
def test_what_libraries_say_is_heard_after_surprises_or_where_nothing_can_hold_it(
    raised, room, heard, monkeypatch, temporary_folders, capfd
):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if not room:
        temporary_folders("/nowhere")
    with contextlib.suppress(RuntimeError), data._quietly_on_cpu():
        os.write(2, b"a library speaks\n")
        if raised:
            raise raised
    monkeypatch.undo()
    assert ("a library speaks" in capfd.readouterr().err) == heard


def test_a_disk_that_is_full_ends_with_4_and_one_line(folder, process, tmp_path):
    made = tmp_path / "made"
    arguments = ("make-imagenet", folder, made, "--train_shards=1")
    code, _, err = process(*arguments, program=cnnbench_with_little_disk)
    assert code == 4
    assert err.startswith(f"cnnbench: error: {made}/unfinished-")
    assert err.endswith("/train-00000-of-00001: cannot be written: File too large\n")
    assert err.count("\n") == 1
    assert list(made.iterdir()) == []
