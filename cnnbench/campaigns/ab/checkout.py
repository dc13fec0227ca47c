"""Temporary worktrees of measured revisions."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cnnbench.base.interrupts import uninterrupted
from cnnbench.campaigns.ab import keeper
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.machine.repository import GitError, command, commit_of, environment, reason


def revision_of(flag: str, text: str) -> str | None:
    """The commit that the value of a flag names; None if it is a folder; else FlagError."""
    if os.path.isdir(text):
        return None
    try:
        return commit_of(text)
    except GitError as error:
        where = "is neither a folder nor a revision of the repository you are in"
        raise FlagError(flag, text, f"{where}: {error}") from None


@contextlib.contextmanager
def worktree(commit: str, repository: str | Path = ".") -> Iterator[Path]:
    """A temporary worktree of a commit (a hash); removed even if this process is killed."""
    process = subprocess.Popen(
        [sys.executable, "-I", keeper.__file__, commit, *command(repository)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        try:
            answer = json.loads(process.stdout.readline())
        except ValueError:
            raise BenchmarkError(f"git worktree add {commit}: was not finished") from None
        if answer["error"]:
            raise BenchmarkError(f"git worktree add {commit}: {reason(answer['error'])}")
        yield Path(answer["folder"])
    finally:
        # Not left to the context of the process, which after Ctrl-C would not wait for it.
        with uninterrupted():
            process.stdin.close()
            process.stdout.close()
            process.wait()
