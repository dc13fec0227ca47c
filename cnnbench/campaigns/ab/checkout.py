"""Temporary worktrees of measured revisions."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cnnbench.campaigns.ab import keeper
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.machine.repository import GitError, command, git
from cnnbench.run.runtime.native import uninterrupted


@contextlib.contextmanager
def checked_out(flag: str, text: str) -> Iterator[Path]:
    """A folder, or a temporary worktree of a revision of the current repository; else FlagError."""
    if os.path.isdir(text):
        yield Path(text).resolve()
        return
    commit = commit_of(text)
    if commit is None:
        raise FlagError(
            flag, text, "is neither a folder nor a revision of the repository you are in"
        )
    with worktree(commit) as folder:
        yield folder


@contextlib.contextmanager
def worktree(commit: str, repository: str | Path = ".") -> Iterator[Path]:
    """A temporary worktree of a commit (a hash); removed even if this process is killed."""
    process = subprocess.Popen(
        [sys.executable, "-I", keeper.__file__, commit, *command(repository)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        try:
            answer = json.loads(process.stdout.readline())
        except ValueError:
            raise BenchmarkError(f"git worktree add {commit}: was not finished") from None
        if answer["error"]:
            raise BenchmarkError(f"git worktree add {commit}: {answer['error']}")
        yield Path(answer["folder"])
    finally:
        # Not left to the context of the process, which after Ctrl-C would not wait for it.
        with uninterrupted():
            process.stdin.close()
            process.stdout.close()
            process.wait()


def commit_of(text: str, repository: str | Path = ".") -> str | None:
    """The commit that a branch, tag or abbreviated hash names; None if it names none."""
    if not text or text.startswith("-"):  # git would take it for an option
        return None
    try:
        return git("rev-parse", "--verify", "--quiet", f"{text}^{{commit}}", folder=repository)
    except GitError:
        return None
