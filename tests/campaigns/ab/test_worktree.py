"""Temporary worktrees: what a command that was killed or interrupted leaves."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from covering import slow_if

from cnnbench.base.locks import CHECKOUT
from cnnbench.campaigns.ab.worktree import worktree
from cnnbench.errors import BenchmarkError

HOLD = """\
import sys, time
from cnnbench.campaigns.ab import worktree
with worktree.worktree("HEAD", sys.argv[1]) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""
SLOW_GIT = """\
#!/bin/sh
case " $* " in *" worktree add "*) echo begun > "$BEGUN"; sleep 1;; esac
exec {git} "$@"
"""
ENDLESS_GIT = """\
#!/bin/sh
case " $* " in *" worktree {command} "*) sleep 60;; esac
exec {git} "$@"
"""


@pytest.fixture
def repository(tmp_path, git, monkeypatch):
    folder = tmp_path / "repository"
    git(tmp_path, "init", "--quiet", "repository")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "one")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return folder


def children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_next_worktree_removes_what_killed_processes_left(repository, git, tmp_path):
    command = [sys.executable, "-c", HOLD, str(repository)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        left = Path(holder.stdout.readline().strip())
        for pid in (*children(holder.pid), holder.pid):
            os.kill(pid, signal.SIGKILL)
    # Git was killed while it added the worktree.
    (repository / ".git" / "worktrees" / left.name / "locked").write_text("initializing")
    others = [
        tmp_path / f"{CHECKOUT}abcdefgh" / "mine",  # not named by cnnbench
        tmp_path / f"{CHECKOUT}abcdefgi" / "0123456789ab-elsewhere",  # of another machine
        # Nothing shows that the folder is temporary.
        tmp_path / f"{CHECKOUT}abcdefgj" / f"0123456789ab-{socket.gethostname()}",
    ]
    for folder in others:
        git(repository, "worktree", "add", "--quiet", "--detach", folder)
    others[1].rename(tmp_path / "unmounted")
    with worktree("HEAD", repository) as new:
        assert not left.parent.exists()
        listed = git(repository, "worktree", "list", "--porcelain")
        there = {line.split()[1] for line in listed.splitlines() if line.startswith("worktree ")}
        assert there == {str(repository), str(new), *map(str, others)}
        # A worktree in use is not removed.
        with worktree("HEAD", repository):
            assert (new / ".git").exists()
    assert (others[0] / ".git").exists()
    assert (others[2] / ".git").exists()
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.mark.parametrize(
    "number",
    slow_if([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]),
)
def test_a_signal_while_a_worktree_is_added_prints_only_that_it_interrupts(
    repository,
    git,
    tmp_path,
    number,
):
    (repository / "network.py").write_text("")  # With equal code, nothing is measured.
    git(repository, "add", "network.py")
    git(repository, "commit", "--quiet", "-m", "two")
    (tmp_path / "bin").mkdir()
    slow, begun = tmp_path / "bin" / "git", tmp_path / "begun"
    slow.write_text(SLOW_GIT.format(git=shutil.which("git")))
    slow.chmod(0o755)
    path = f"{slow.parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "cnnbench", "gate", "HEAD~", "--", "--model=lenet"]
    with subprocess.Popen(
        command,
        cwd=repository,
        env={**os.environ, "PATH": path, "BEGUN": str(begun)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as gate:
        while not begun.exists():
            assert gate.poll() is None
            time.sleep(0.02)
        gate.send_signal(number)
        _, told = gate.communicate(timeout=60)
    assert (told, gate.returncode) == ("cnnbench: error: interrupted\n", 130)
    assert git(repository, "worktree", "list").count("\n") == 0
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.fixture
def endless(tmp_path, monkeypatch):
    """endless("add"): from now on, `git worktree add` never ends."""

    def endless(command):
        script = tmp_path / "bin" / "git"
        script.parent.mkdir()
        script.write_text(ENDLESS_GIT.format(git=shutil.which("git"), command=command))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")

    return endless


def test_a_worktree_that_git_never_finishes_is_an_error(
    repository, git, tmp_path, endless, monkeypatch
):
    usual, begun = os.environ["PATH"], time.monotonic()
    endless("add")
    with pytest.raises(BenchmarkError), worktree("HEAD", repository, seconds=0.2):
        pass
    assert time.monotonic() - begun < 30
    assert [*(tmp_path / "temporary").iterdir()] == []
    monkeypatch.setenv("PATH", usual)
    with worktree("HEAD", repository) as folder:
        assert (folder / ".git").exists()
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.slow
def test_a_worktree_that_git_never_removes_loses_its_folder(repository, tmp_path, endless):
    endless("remove")
    begun = time.monotonic()
    with worktree("HEAD", repository, seconds=4.0) as folder:
        assert (folder / ".git").exists()
    assert time.monotonic() - begun < 30
    assert [*(tmp_path / "temporary").iterdir()] == []
