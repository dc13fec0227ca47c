"""Files that runs write and find (files.py): checkpoints, streams, exports, late failures.

Tests cnnbench/records/checkpoints.py and cnnbench/records/files.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.records.checkpoints import (
    delete_incomplete_files,
    delete_old_checkpoints,
    find_latest_checkpoint,
    has_checkpoint,
    is_checkpoint_prefix,
    read_training_status,
    write_training_status,
)
from cnnbench.records.files import (
    ensure_writable,
    is_stream,
    prepare_export,
    report_failed_writes,
    stream_descriptor,
    write_bytes,
    write_text,
)

COMPLETE = bytes.fromhex("57fb808b247547db")
"""The last bytes of an index that TensorFlow has written to its end."""


def checkpoint(folder: Path, step: int, *, parts: int = 1, of: int = 1, index: bytes = COMPLETE):
    folder.mkdir(exist_ok=True)
    (folder / f"model.ckpt-{step}.index").write_bytes(b"x" + index)
    for part in range(parts):
        (folder / f"model.ckpt-{step}.data-{part:05d}-of-{of:05d}").write_bytes(b"d")


def test_the_newest_complete_checkpoint_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    assert find_latest_checkpoint(str(folder)) is None
    checkpoint(folder, 9, parts=2, of=2)
    checkpoint(folder, 10)
    for step, index in enumerate((b"torn", b"", COMPLETE[:7], COMPLETE + b"x"), start=11):
        checkpoint(folder, step, index=index)
    checkpoint(folder, 15, parts=1, of=2)
    (folder / "model.ckpt-16.data-00000-of-00001").write_bytes(b"d")
    assert find_latest_checkpoint(str(folder)) == str(folder / "model.ckpt-10")
    steps = [step for step in range(17) if has_checkpoint(str(folder), step)]
    assert steps == [9, 10]
    for state in (b"", b"\xff\x00", b'model_checkpoint_path: "model.ck'):
        (folder / "checkpoint").write_bytes(state)
        assert find_latest_checkpoint(str(folder)) == str(folder / "model.ckpt-10")
    prefix = str(folder / "model.ckpt-9")
    assert (is_checkpoint_prefix(prefix), is_checkpoint_prefix(str(folder))) == (True, False)
    assert find_latest_checkpoint(prefix) == prefix
    assert find_latest_checkpoint(str(folder / "model.ckpt-8")) is None


def test_a_folder_of_torn_checkpoints_is_an_error(tmp_path: Path) -> None:
    checkpoint(tmp_path / "train", 3, index=b"torn")
    with pytest.raises(BenchmarkError, match=r"model\.ckpt-3\.data-00000-of-00001"):
        find_latest_checkpoint(str(tmp_path / "train"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "resnet.index").write_bytes(COMPLETE)
    with pytest.raises(BenchmarkError, match=r"resnet\.index"):
        find_latest_checkpoint(str(tmp_path / "other"))
    (tmp_path / "file").touch()
    with pytest.raises(BenchmarkError, match="file cannot be read"):
        find_latest_checkpoint(str(tmp_path / "file"))


@pytest.mark.parametrize(("keep", "kept"), [(2, [3, 4]), (1, [4]), (0, [1, 2, 3, 4])])
def test_old_checkpoints_are_deleted(tmp_path: Path, keep: int, kept: list[int]) -> None:
    folder = tmp_path / "train"
    for step in range(1, 5):
        checkpoint(folder, step, parts=2, of=2)
    delete_old_checkpoints(str(folder), keep)
    steps = {int(path.name[11:].partition(".")[0]) for path in folder.glob("model.ckpt-*")}
    assert sorted(steps) == kept
    lines = (folder / "checkpoint").read_text().splitlines()
    assert lines[0] == 'model_checkpoint_path: "model.ckpt-4"'
    assert lines[1:] == [f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in kept]


def test_checkpoints_of_others_and_newer_ones_are_not_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    for step in (1, 2, 3, 4):
        checkpoint(folder, step)
    checkpoint(folder, 5, index=b"torn")  # which another process may be writing
    (folder / "model.ckpt-1.meta").touch()  # of tf_cnn_benchmarks
    (folder / "model.ckpt-2.index").write_bytes(b"torn")
    delete_old_checkpoints(str(folder), 1)
    names = {path.name.partition(".index")[0] for path in folder.glob("*.index")}
    assert names == {"model.ckpt-1", "model.ckpt-4", "model.ckpt-5"}
    assert not [*folder.glob("model.ckpt-2*")]


def test_remains_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    own = [f"model.ckpt-2_temp_{'0' * 32}", "model.ckpt-2_temp"]
    for name in own:
        (tmp_path / name).mkdir()
    (tmp_path / f"checkpoint.tmp{'a' * 32}").touch()
    mine = ["my_temp", "checkpoint.tmp1", "model.ckpt-x_temp"]
    for name in mine:
        (tmp_path / name).touch()
    before = {path.name for path in tmp_path.iterdir()}
    delete_incomplete_files(str(tmp_path))
    left = {path.name for path in tmp_path.iterdir()}
    assert before - left == {*own, f"checkpoint.tmp{'a' * 32}"}
    delete_incomplete_files(str(tmp_path / "none"))


def test_the_status_of_a_training(tmp_path: Path) -> None:
    assert read_training_status(str(tmp_path)) == ""
    write_training_status(str(tmp_path), "running")
    assert read_training_status(str(tmp_path)) == "running"
    write_training_status(str(tmp_path), "")
    assert read_training_status(str(tmp_path)) == ""
    write_training_status(str(tmp_path), "")
    write_training_status(str(tmp_path / "none"), "ok")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/dev/stdout", 1),
        ("/dev/stderr", 2),
        ("/dev/fd/63", 63),
        ("/proc/self/fd/5", 5),
        ("/dev/null", None),
        ("x/dev/stdout", None),
        ("/dev/fd/", None),
    ],
)
def test_paths_of_open_files(path: str, number: int | None) -> None:
    assert stream_descriptor(path) == number
    assert is_stream(path) == (number is not None or path == os.devnull)


def test_streams_are_written_as_they_are(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert is_stream(str(tmp_path / "pipe"))
    assert is_stream(os.devnull)
    (tmp_path / "plain").touch()
    others = (str(tmp_path / "none"), str(tmp_path / "plain"), str(tmp_path), "a\0b")
    assert [is_stream(path) for path in others] == [False] * 4
    opened = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    os.write(opened, b"before ")
    write_bytes("output", os.devnull, b"x")
    write_bytes("output", f"/dev/fd/{opened}", b"x")
    os.close(opened)
    assert (tmp_path / "file").read_bytes() == b"before x"
    report_failed_writes()


def test_writes_that_fail_are_reported_once_and_later(tmp_path: Path) -> None:
    write_text("output", str(tmp_path / "none" / "a.txt"), "x")
    write_text("output", str(tmp_path / "none" / "a.txt"), "x")
    write_text("plot", str(tmp_path), "x")
    with pytest.raises(BenchmarkError) as failed:
        report_failed_writes()
    assert str(failed.value).count("--output=") == str(failed.value).count("--plot=") == 1
    report_failed_writes()
    warned: list[tuple[str, str]] = []
    write_text("plot", str(tmp_path), "x")
    report_failed_writes(lambda *said: warned.append(said))
    ((text, name),) = warned
    assert (name, "--plot=" in text) == ("outputs", True)
    write_text("output", str(tmp_path / "b.txt"), "\udcff")
    assert (tmp_path / "b.txt").read_bytes() == b"\\udcff"


def test_any_file_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_bytes(b"theirs")
    target.chmod(0o640)
    for content in (b"new", b"newer"):
        write_bytes("output", str(target), content)
        assert target.read_bytes() == content
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    report_failed_writes()


def test_a_folder_of_results_is_made(tmp_path: Path) -> None:
    ensure_writable("results", str(tmp_path / "a" / "b"))
    assert [*(tmp_path / "a" / "b").iterdir()] == []
    (tmp_path / "file").touch()
    with pytest.raises(FlagError, match="--results="):
        ensure_writable("results", str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("there", "refused"),
    [
        ((), ""),
        (("saved_model.pb", "variables", "assets", "fingerprint.pb"), ""),
        (("mine.txt",), "saved_model.pb"),
        (("saved_model.pb", "mine.txt"), "mine.txt"),
    ],
)
def test_an_export_replaces_only_exports(
    tmp_path: Path, there: tuple[str, ...], refused: str
) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    for name in there:
        (folder / name).touch()
    if not refused:
        assert prepare_export(str(folder)) == folder
        return
    with pytest.raises(FlagError, match=refused):
        prepare_export(str(folder))


def test_an_export_is_a_folder(tmp_path: Path) -> None:
    assert prepare_export(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    assert (tmp_path / "a").is_dir()
    (tmp_path / "file").touch()
    for path in ("", str(tmp_path / "file"), str(tmp_path / "file" / "b")):
        with pytest.raises(FlagError, match="--export_dir="):
            prepare_export(path)
