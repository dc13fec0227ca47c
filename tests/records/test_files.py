"""Result files: refused early with a reason, replaced whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import stat

import pytest
from forked import killed_writer

from cnnbench.errors import FlagError
from cnnbench.records import files
from cnnbench.records.files import (
    check_and_resolve_output,
    report_failed_writes,
    write_atomically,
    write_bytes,
)

needs_no_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_good_path_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("r.json", str(tmp_path / "r.json")):
        assert check_and_resolve_output("result_json", path) == tmp_path / "r.json"
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "is a folder"),
        ("sub", "is a folder"),
        ("new/", "is a folder"),
        ("missing/r.json", "there is no folder"),
        ("file/r.json", "there is no folder"),
        ("fifo", "is not a regular file"),
        (os.devnull, "is not a regular file"),
        ("x" * 300, "cannot be written: File name too long"),
        ("nul\0byte", "embedded null "),  # byte or character, by Python's version
        ("loop", "is a symbolic link that leads back to itself"),
        ("there", "is a symbolic link that leads back to itself"),
        ("loop/r.json", "there is no folder"),
    ],
)
def test_bad_path_names_flag_value_and_reason(path, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    for link, target in (("loop", "loop"), ("there", "back"), ("back", "there")):
        (tmp_path / link).symlink_to(target)
    with pytest.raises(FlagError) as caught:
        check_and_resolve_output("result_json", path)
    assert str(caught.value).startswith(f"--result_json={path}: ")
    assert reason in str(caught.value)


@needs_no_root
def test_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FlagError, match="cannot be written: Permission denied"):
        check_and_resolve_output("result_json", str(tmp_path / "r.json"))


def test_write_replaces_and_keeps_permissions(tmp_path):
    target = tmp_path / "r.json"
    target.write_bytes(b"old content")
    target.chmod(0o640)
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert names(tmp_path) == ["r.json"]


def test_a_file_that_takes_the_name_of_an_abandoned_one_is_not_removed(tmp_path, monkeypatch):
    """As that of a writer whose first file another remover took before it was locked."""
    path = killed_writer(tmp_path / "r.json")
    lock = files.fcntl.flock

    def late(file, how):
        path.unlink()
        path.write_text("new")
        lock(file, how)

    with monkeypatch.context() as patch:
        patch.setattr(files.fcntl, "flock", late)
        files.remove_abandoned_files(tmp_path)
    assert path.read_text() == "new"
    files.remove_abandoned_files(tmp_path)
    assert names(tmp_path) == []


def _write_many(folder, writer, failures):
    for number in range(100):
        write_bytes("result_json", str(folder / f"r{writer}-{number}.json"), b"{}" * 50)
    report_failed_writes(lambda text, _: failures.put(text))


@pytest.mark.slow
def test_writers_in_one_folder_leave_each_others_unfinished_files_alone(tmp_path):
    fork = multiprocessing.get_context("fork")
    failures = fork.SimpleQueue()
    writers = [fork.Process(target=_write_many, args=(tmp_path, n, failures)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert failures.empty()
    assert len(names(tmp_path)) == 400


def test_new_file_obeys_the_umask(tmp_path):
    before = os.umask(0o026)
    try:
        write_atomically(tmp_path / "r.json", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "r.json").stat().st_mode) == 0o640


def test_symbolic_link_stays_a_link(tmp_path):
    (tmp_path / "real.json").write_bytes(b"old")
    link = tmp_path / "link.json"
    link.symlink_to("real.json")
    write_atomically(check_and_resolve_output("result_json", str(link)), b"new")
    assert link.is_symlink()
    assert (tmp_path / "real.json").read_bytes() == b"new"


def test_failure_while_writing_keeps_the_old_file(tmp_path, little_disk):
    target = tmp_path / "r.json"
    target.write_bytes(b"old")
    with little_disk(1), pytest.raises(OSError, match="File too large"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["r.json"]


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda fd, data: write(fd, bytes(data[:3])))
    write_atomically(tmp_path / "r", b"0123456789")
    assert (tmp_path / "r").read_bytes() == b"0123456789"
