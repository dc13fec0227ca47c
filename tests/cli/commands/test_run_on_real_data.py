"""The whole path from files to a report, on one device and on several."""

from __future__ import annotations

import numpy as np
import pytest

from cnnbench import RunRecord
from cnnbench.cli import main
from cnnbench.data import IMAGENET
from cnnbench.data.arrays import ArrayPipeline

pytestmark = pytest.mark.usefixtures("quick_start")


def run(tmp_path, *flags):
    path = tmp_path / "record.json"
    common = ["--device=cpu", "--num_warmup_batches=1", "--peak_flops=1e12"]
    assert main([*common, f"--result_json={path}", *flags]) == 0
    return RunRecord.from_json(path.read_text())


def test_a_data_set_that_lacks_a_file_is_measured_with_a_warning(photo_records, tmp_path, capsys):
    part = tmp_path / "imagenet-part"
    part.mkdir()
    for path in photo_records.glob("*-of-*"):
        if path.name != "train-00001-of-00003":
            (part / path.name).symlink_to(path)
    flags = ["--model=trivial", "--batch_size=2", "--num_batches=1"]
    run(tmp_path, *flags, f"--data_dir={part}")
    expected = f"--data_dir={part}: 1 of 3 train files are missing, the first train-00001-of-00003"
    assert expected in capsys.readouterr().err
    assert IMAGENET.gap("train", str(photo_records)) is None


def test_a_broken_record_ends_the_run_with_its_name(call, photo_records, tmp_path, capsys):
    broken = tmp_path / "imagenet-broken"
    broken.mkdir()
    for path in photo_records.glob("*-of-*"):
        (broken / path.name).write_bytes(path.read_bytes())
    victim = sorted(broken.glob("train-*"))[1]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(bytes(content))
    flags = ["--device=cpu", "--model=lenet", f"--data_dir={broken}", "--num_batches=12"]
    captured = call(*flags, "--batch_size=4", code=4)
    last = captured.err.splitlines()[-1]
    assert last.startswith("cnnbench: error: ")
    assert victim.name in last
    assert "record" in last
    assert "total images/sec" not in captured.out
    record = run(tmp_path, *flags[1:], "--batch_size=4", "--on_bad_record=skip")
    assert record.skipped_records is not None
    assert record.skipped_records.count == 1
    (named,) = record.skipped_records.first
    assert last == f"cnnbench: error: {named}"
    assert f"warning: skipped {named}" in capsys.readouterr().err


def test_what_is_read_whole_cannot_be_skipped_by_records(call, cifar10):
    flags = ["--model=trivial", f"--data_dir={cifar10}", "--on_bad_record=skip"]
    assert "--on_bad_record=skip: the files of data set cifar10" in call(*flags, code=2).err


def test_a_resumed_run_trains_on_what_follows(photo_records, tmp_path, capsys):
    """The warm-up trains too: one step before three timed ones, and again one before three.

    It goes on with two towers, that is with other batches of each.
    """
    flags = [
        "--model=trivial",
        f"--data_dir={photo_records}",
        "--distortions",
        "--init_learning_rate=0.0001",
    ]
    whole = run(tmp_path, *flags, "--batch_size=8", "--num_batches=7")
    parted = [*flags, f"--train_dir={tmp_path / 'train'}"]
    first = run(tmp_path, *parted, "--batch_size=8", "--num_batches=3")
    towers = ["--num_gpus=2", "--batch_size=4", "--variable_update=replicated"]
    second = run(tmp_path, *parted, *towers, "--num_batches=7")
    losses = [one.warmup_losses + one.losses for one in (whole, first, second)]
    assert len(set(losses[0])) == len(losses[0]) == 8
    np.testing.assert_allclose([*losses[1], *losses[2]], losses[0], rtol=1e-5)
    assert "the input continues after the 32 examples trained on" in capsys.readouterr().err


def test_data_that_cannot_go_on_starts_over_with_a_notice(cifar10, tmp_path, capsys, monkeypatch):
    flags = [
        "--model=trivial",
        f"--data_dir={cifar10}",
        f"--train_dir={tmp_path / 'train'}",
    ]
    run(tmp_path, *flags, "--num_batches=1")
    monkeypatch.setattr(ArrayPipeline, "resumable", False)
    run(tmp_path, *flags, "--num_batches=3")
    assert capsys.readouterr().err.count("the input starts over: ") == 1
