"""One writer per folder, gone with its process, and temporary folders of killed processes.

Tests cnnbench/base/files.py and cnnbench/base/locks.py.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading

import pytest
from forked import finished

from cnnbench.base import locks
from cnnbench.base.locks import (
    FILE,
    SCRATCH,
    SCRATCH_OF_PARENT,
    FolderLock,
    TemporaryFolder,
    keep_temporary_folders,
    remove_abandoned,
)

HOLDER = """
import sys, time
from cnnbench.base.locks import FolderLock
held = FolderLock(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_second_is_told_who_holds_it_and_a_release_leaves_nothing(tmp_path):
    with FolderLock(tmp_path):
        holder = rf"pid {os.getpid()} on {re.escape(socket.gethostname())} since \d{{4}}-.* UTC$"
        with pytest.raises(BlockingIOError, match=f": {holder}"):
            FolderLock(tmp_path)
    assert names(tmp_path) == []
    with FolderLock(tmp_path) as again:
        assert again.left_by == ""


@pytest.fixture
def killed(tmp_path):
    """The folder of a process that was killed while it held it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=f"pid {process.pid} on "):
            FolderLock(tmp_path)
    finally:
        process.kill()
        process.communicate(timeout=30)
    return tmp_path


def test_a_killed_process_leaves_a_file_that_keeps_nobody_out(killed):
    assert names(killed) == [FILE]
    with FolderLock(killed) as held:
        assert held.left_by == ""
        assert json.loads((killed / FILE).read_text())["pid"] == os.getpid()
    assert names(killed) == []


def move(file):
    """Replaces the machine of the holder."""
    file.write_text(json.dumps({**json.loads(file.read_text()), "host": "elsewhere"}))


def test_a_holder_of_another_machine_is_named(killed):
    move(killed / FILE)
    with FolderLock(killed) as held:
        assert " on elsewhere since " in held.left_by
        move(killed / FILE)
        remedy = re.escape(f", remove {killed / FILE}")
        with pytest.raises(BlockingIOError, match=f"on elsewhere since .*{remedy}$"):
            FolderLock(killed)
        (killed / FILE).unlink()
        FolderLock(killed).release()


def test_a_holder_that_ends_within_the_patience_is_waited_for(tmp_path):
    first = FolderLock(tmp_path)
    threading.Timer(0.2, first.release).start()
    FolderLock(tmp_path, wait_seconds=30.0).release()
    assert names(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1}', b"\xff", b"[" * 4096])
def test_an_unreadable_name_is_no_obstacle(content, tmp_path):
    (tmp_path / FILE).write_bytes(content)
    with FolderLock(tmp_path) as held:
        assert held.left_by == ""
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(BlockingIOError, match=r"there$"):
            FolderLock(tmp_path)


def test_many_threads_are_never_in_it_together(tmp_path, limits):
    inside, most = [], []

    def enter():
        for _ in range(20):
            with FolderLock(tmp_path, wait_seconds=60.0):
                inside.append(None)
                most.append(len(inside))
                inside.pop()

    limits(locks, _POLL_SECONDS=0.0)
    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80


def test_who_may_write_the_folder_may_lock_it(tmp_path):
    tmp_path.chmod(0o770)
    with FolderLock(tmp_path):
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o660


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path):
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        FolderLock(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.fixture
def temporary(temporary_folders, tmp_path):
    """The folder of temporary folders."""
    temporary_folders(tmp_path)
    return tmp_path


def test_it_is_gone_behind_its_context_unless_it_is_kept(temporary):
    with TemporaryFolder("cnnbench-test-") as gone, TemporaryFolder("cnnbench-test-") as kept:
        (gone.path / "a").mkdir()
        (kept.path / "b").write_text("b")
        kept.kept = True
        assert gone.path.parent == kept.path.parent == temporary
    assert names(temporary) == [kept.path.name]
    assert names(kept.path) == ["b"]
    remove_abandoned(temporary)
    assert names(temporary) == [kept.path.name]


def test_earlier_commits_can_write_to_a_temporary_folder_of_their_parent(temporary):
    """They refuse a folder that contains a locked file of the earlier name."""
    with TemporaryFolder("cnnbench-test-") as scratch:
        assert names(scratch.path) == [SCRATCH]
        assert SCRATCH != ".cnnbench-scratch"


def test_what_a_killed_process_has_left_is_removed_by_the_next(temporary):
    code = (
        "import os, tempfile; tempfile.tempdir = os.environ['THERE']\n"
        "from cnnbench.base.locks import TemporaryFolder\n"
        "(TemporaryFolder('cnnbench-test-').path / 'deep').mkdir(); os.kill(os.getpid(), 9)"
    )
    finished([sys.executable, "-c", code], -9, environment={"THERE": str(temporary)})
    (left,) = temporary.iterdir()
    assert names(left) == [SCRATCH, "deep"]
    with TemporaryFolder("cnnbench-other-") as scratch:
        assert names(temporary) == [scratch.path.name]


HERE = socket.gethostname()


def left_behind(folder, host=HERE, file=SCRATCH, name=None):
    """A folder with the lock file of a killed process, which by itself names the folder."""
    folder.mkdir()
    about = {"pid": 1, "host": host, "since": "2026-01-01 00:00:00 UTC"}
    (folder / file).write_text(json.dumps({**about, "folder": name or folder.name}))
    return folder


def test_only_what_was_made_as_scratch_is_removed(temporary, monkeypatch):
    left_behind(temporary / "cnnbench-test-00000000", "there")
    left_behind(temporary / "of-another-program")
    left_behind(temporary / "cnnbench-results")
    left_behind(temporary / "cnnbench-ckpt", file=FILE)
    left_behind(temporary / "cnnbench-test-11111111", file=FILE)  # kept, and written to by a run
    left_behind(temporary / "cnnbench-test-22222222", name="cnnbench-test-33333333")  # a copy
    target = left_behind(temporary / "target", name="cnnbench-test-44444444")
    (temporary / "cnnbench-test-44444444").symlink_to(target)
    (temporary / "cnnbench-test-55555555").write_text("")
    left_behind(temporary / "cnnbench-test-66666666").joinpath(SCRATCH).write_text("")  # just made
    linked = left_behind(temporary / "cnnbench-test-77777777") / SCRATCH
    linked.rename(temporary / "elsewhere")
    linked.symlink_to(temporary / "elsewhere")
    held = left_behind(temporary / "cnnbench-test-88888888")
    killed = left_behind(temporary / "cnnbench-test-99999999")
    (killed / "link").symlink_to(target)
    before = names(temporary)
    with FolderLock(held, file=SCRATCH):
        remove_abandoned(temporary)
        assert names(temporary) == [name for name in before if name != killed.name]
    assert names(target) == [SCRATCH]
    left_behind(killed)
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: os.getuid() + 1)
        remove_abandoned(temporary)
        assert killed.name in names(temporary)


@pytest.mark.parametrize(
    ("below", "through_a_link", "use"),
    [(".", False, FolderLock), ("deep/train", True, keep_temporary_folders)],
)
def test_a_scratch_folder_that_is_used_otherwise_stays(temporary, below, through_a_link, use):
    folder = left_behind(temporary / "cnnbench-test-00000000")
    (folder / below).mkdir(parents=True, exist_ok=True)
    path = folder
    if through_a_link:
        path = temporary / "link"
        path.symlink_to(folder)
    use(path / below)
    remove_abandoned(temporary)
    assert (folder / below).is_dir()
    assert not (folder / SCRATCH).exists()


def test_the_scratch_folder_of_a_living_process_is_for_nobody_else(temporary):
    with TemporaryFolder("cnnbench-test-") as scratch:
        with pytest.raises(BlockingIOError, match=f"pid {os.getpid()} "):
            keep_temporary_folders(scratch.path / "train")
        with pytest.raises(BlockingIOError):
            FolderLock(scratch.path)
    assert names(temporary) == []


def test_a_process_may_write_to_the_scratch_folder_of_its_parent(temporary, monkeypatch):
    with TemporaryFolder("cnnbench-test-") as scratch:
        monkeypatch.setenv(SCRATCH_OF_PARENT, os.path.realpath(scratch.path))
        keep_temporary_folders(scratch.path / "train")
        assert names(scratch.path) == [SCRATCH]
