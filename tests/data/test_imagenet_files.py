"""Which files of a folder are shards, through the command line.

Tests cnnbench/data/tfrecord.py.
"""

from __future__ import annotations

import gzip
import re
import shutil
import zlib

import pytest
from covering import slow_if
from data_sets import SMALL

pytestmark = pytest.mark.usefixtures("quick_start")

# Names of the files have no prefix, or that of their data set.
RECORDS = pytest.mark.parametrize("name", slow_if(["coco"], ["imagenet", "coco"]))
RUN = ("--device=cpu", "--model=trivial", "--batch_size=2", "--num_batches=1")


def copied(folder, out, **places):
    """Copies the shards of each subset into a folder of `out`."""
    for subset, place in places.items():
        (out / place).mkdir(parents=True, exist_ok=True)
        for path in folder.glob(f"*{subset}-*-of-*"):
            shutil.copy(path, out / place)
    return out


@pytest.mark.parametrize(
    ("name", "validation"),
    slow_if(
        lambda case: case != ("imagenet", "val"),
        [("imagenet", "val"), ("coco", "validation"), ("librispeech", "val")],
    ),
)
def test_a_folder_for_each_subset(name, validation, small_set, tmp_path, call):
    flat = call("data", "check", small_set(name)).out
    out = copied(small_set(name), tmp_path / "set", train="train", validation=validation)
    checked = call("data", "check", out).out
    assert checked == flat.replace(str(small_set(name)), str(out))
    # As if the other file of the subset had not been exported.
    first = min((out / validation).iterdir())
    first.unlink()
    err = call("data", "check", out, code=4).err
    assert f"{first}: this file is missing" in err


@pytest.mark.slow
def test_a_run_and_its_evaluation_read_the_folder_of_their_subset(small_set, tmp_path, call):
    out = copied(small_set("imagenet"), tmp_path / "set", train="train", validation="validation")
    flags = [*RUN[:-1], f"--data_dir={out}", f"--train_dir={tmp_path / 'ckpt'}"]
    assert "Dataset:     imagenet\n" in call(*flags, "--num_batches=1").out
    count = SMALL["imagenet"].count("validation")
    evaluated = call(*flags, "--eval", "--num_eval_epochs=1").out
    assert f"[{count} examples]" in evaluated
    shutil.rmtree(out / "validation")
    err = call(*flags, "--eval", code=2).err
    assert err.endswith(
        "contains no files validation-*-of-* (* is a number); it contains only train files\n"
    )


def test_files_of_the_directory_itself_come_first(small_set, tmp_path, call):
    out = copied(small_set("imagenet"), tmp_path, train="", validation="validation")
    whole = call("data", "check", out).out
    (tmp_path / "train").mkdir()
    shutil.copy(min(out.glob("train-*")), out / "train" / "train-00000-of-00001")
    assert call("data", "check", out).out == whole


@RECORDS
def test_files_beside_the_shards(name, small_set, tmp_path, call):
    """Indexes, checksums, backups, parts of downloads and copies, of another content."""
    out = copied(small_set(name), tmp_path / name, train="", validation="")
    checked = call("data", "check", out).out
    shard = min(out.glob("*train-*")).name
    for suffix in (".idx", ".md5", ".crc", ".sha256", "~"):
        (out / f"{shard}{suffix}").write_bytes(b"0 178")
    for stray in (".DS_Store", f"._{shard}", "notes-of-train"):
        (out / stray).write_bytes(b"anything")
    assert call("data", "check", out).out == checked
    for suffix in (" (1)", ".part"):
        (out / f"{shard}{suffix}").write_bytes(b"anything")
    notice = f"  train files not read: 2, the first {shard} (1)\n"
    assert call("data", "check", out).out.replace(notice, "") == checked


def test_a_run_names_a_file_that_it_leaves_out(small_set, tmp_path, call):
    out = copied(small_set("imagenet"), tmp_path, train="", validation="")
    shutil.copy(out / "train-00000-of-00003", out / "train-00000-of-00003 (1)")
    (out / "train-00000-of-00003.idx").write_text("0 178\n")
    err = call(*RUN, f"--data_dir={out}").err
    notice = "train files not read: 1, the first train-00000-of-00003 (1)"
    notice += " (--quiet_conditions=files silences this)\n"
    assert f"warning: --data_dir={out}: {notice}" in err
    assert "missing" not in err


@pytest.mark.parametrize(
    ("level", "suffix"), [("gzip", ".gz"), (0, ""), (1, ".tfrecord.gz"), (6, ""), (9, ".gz")]
)
def test_compressed_files_are_refused_by_name(level, suffix, small_set, tmp_path, call):
    for path in small_set("imagenet").glob("*-of-*"):
        content = path.read_bytes()
        packed = gzip.compress(content) if level == "gzip" else zlib.compress(content, level)
        (tmp_path / f"{path.name}{suffix}").write_bytes(packed)
    line = re.compile(
        rf"cnnbench: error: {tmp_path}/train-00000-of-00003{suffix}: is compressed \(gzip or zlib\)"
        r"; decompress the data set\n"
    )
    assert line.fullmatch(call(*RUN, f"--data_dir={tmp_path}", code=2).err)
    assert line.fullmatch(call("data", "check", tmp_path, code=2).err)


def test_a_file_and_its_compressed_original(small_set, tmp_path, call):
    """As `gunzip --keep` leaves them."""
    out = copied(small_set("imagenet"), tmp_path, train="", validation="")
    checked = call("data", "check", out).out
    for path in [*out.glob("train-*")]:
        (out / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    notice = "  train files not read: 3, the first train-00000-of-00003.gz\n"
    assert call("data", "check", out).out.replace(notice, "") == checked


def test_suffixes_of_records_count_as_shards(small_set, tmp_path, call):
    for path in small_set("imagenet").glob("*-of-*"):
        shutil.copy(path, tmp_path / f"{path.name}.tfrecord")
    call("data", "check", tmp_path)
    (tmp_path / "train-00001-of-00003.tfrecord").unlink()
    err = call("data", "check", tmp_path, code=4).err
    assert f"{tmp_path}/train-00001-of-00003.tfrecord: this file is missing" in err


def test_nothing_is_made_beside_the_folders_of_another_set(sources, small_set, tmp_path, call):
    out = copied(small_set("imagenet"), tmp_path, train="train")
    err = call("data", "make-imagenet", sources("imagenet"), out, code=2).err
    assert f"{out}: contains train/train-00000-of-00003 already" in err
