"""Temporary folders, and what is left of them by processes that were killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cnnbench.base import lock
from cnnbench.base.lock import FolderLock
from cnnbench.base.scratch import Scratch, remove_abandoned


@pytest.fixture(autouse=True)
def _own_temporary_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in tmp_path.iterdir()}


def test_it_is_gone_behind_its_context_unless_it_is_kept(tmp_path: Path) -> None:
    with Scratch("test") as gone, Scratch("test") as kept:
        (gone.path / "a").mkdir()
        (kept.path / "b").write_text("b")
        kept.kept = True
        assert gone.path.parent == kept.path.parent == tmp_path
    assert names(tmp_path) == {kept.path.name}
    assert names(kept.path) == {"b"}
    remove_abandoned()
    assert names(tmp_path) == {kept.path.name}


def test_what_a_killed_process_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, tempfile; tempfile.tempdir = os.environ['THERE']\n"
        "from cnnbench.base.scratch import Scratch\n"
        "(Scratch('test').path / 'deep').mkdir(); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "THERE": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60)
    assert ended.returncode == -9
    (left,) = tmp_path.iterdir()
    assert names(left) == {lock.FILE, "deep"}
    with Scratch("other") as scratch:
        assert names(tmp_path) == {scratch.path.name}


def left_behind(folder: Path, host: str) -> None:
    folder.mkdir()
    about = {"pid": 1, "host": host, "since": "2026-01-01 00:00:00 UTC"}
    (folder / lock.FILE).write_text(json.dumps(about))


def test_what_may_be_somebody_elses_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    left_behind(tmp_path / "cnnbench-there", "there")
    left_behind(tmp_path / "of-another-program", "here")
    left_behind(tmp_path / "target", "here")
    (tmp_path / "cnnbench-link").symlink_to(tmp_path / "target")
    (tmp_path / "cnnbench-file").write_text("")
    (tmp_path / "cnnbench-new").mkdir()
    (tmp_path / "cnnbench-new" / lock.FILE).write_text("")  # made, and about to be locked
    left_behind(tmp_path / "cnnbench-held", "here")
    left_behind(tmp_path / "cnnbench-killed", "here")
    before = names(tmp_path)
    with FolderLock(tmp_path / "cnnbench-held"):
        remove_abandoned()
        assert names(tmp_path) == before - {"cnnbench-killed"}
    left_behind(tmp_path / "cnnbench-killed", "here")
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: os.getuid() + 1)
        remove_abandoned()
        assert "cnnbench-killed" in names(tmp_path)
