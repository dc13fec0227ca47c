"""Temporary git worktrees of the measured revisions."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cnnbench.base import message
from cnnbench.base.interrupts import delaying_interrupts
from cnnbench.base.locks import CHECKOUT, SCRATCH_NAME, TemporaryFolder, remove_if_abandoned
from cnnbench.base.text import format_duration
from cnnbench.campaigns.processes import start_guard
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.machine.repository import (
    GitError,
    abbreviate_hash,
    environment_for_git,
    find_commit_hash,
    git_error_reason,
    is_full_hash,
    safe_git_command,
)

MOST_SECONDS = 1800.0
"""Time limit for adding or removing a worktree. A large repository takes minutes. Git never ends if
a filter waits for input, for example, or if a file system does not answer.
"""


def resolve_commit(flag: str, text: str) -> str | None:
    """The commit that a flag's value names as a git revision; None if the value is a folder.

    A full hash is always a commit. Raises FlagError if the value is neither a folder nor a
    revision, or is the name of both.
    """
    is_folder = os.path.isdir(text) and not is_full_hash(text)
    try:
        commit = find_commit_hash(text)
    except GitError as error:
        if is_folder:
            return None
        where = "is neither a folder nor a revision of the repository you are in"
        raise FlagError(flag, text, f"{where}: {error}") from None
    if is_folder:
        both = f"is a folder and a revision; use ./{text} for the folder, or {commit[:12]}"
        raise FlagError(flag, text, both)
    return commit


@contextlib.contextmanager
def worktree(
    commit: str, repository: str | Path = ".", seconds: float = MOST_SECONDS
) -> Iterator[Path]:
    """Context manager: a temporary git worktree of a commit, removed even if this process dies.

    First removes the worktrees that killed commands on this machine have left in the repository.
    Raises BenchmarkError if git fails, or if it has not ended after `seconds`.
    """
    git_command = safe_git_command(repository)
    failed = f"git worktree add {abbreviate_hash(commit)}"
    with contextlib.ExitStack() as stack:
        try:
            parent = stack.enter_context(TemporaryFolder(CHECKOUT)).path.resolve()
        except OSError as error:
            place = f"{tempfile.gettempdir()}: no worktree can be created"
            raise BenchmarkError(f"{place}: {error.strerror or error}") from error
        _remove_abandoned(git_command)
        folder = parent / f"{commit[:12]}{_machine_suffix()}"
        words = ("worktree", commit, str(folder), *git_command)
        process, link = start_guard(*words, stdout=subprocess.DEVNULL, env=environment_for_git())
        try:
            try:
                answer = message.receive(link, seconds)
            except TimeoutError:
                _kill_group(process)
                limit = format_duration(seconds)
                raise BenchmarkError(f"{failed}: did not finish within {limit}") from None
            except message.FOREIGN:
                raise BenchmarkError(f"{failed}: did not finish") from None
            if answer["error"]:
                reason = git_error_reason(answer["error"])
                raise BenchmarkError(f"{failed}: {reason}")
            yield folder
        finally:
            # After Ctrl-C, `subprocess.Popen.__exit__` would not wait until the process has ended.
            with delaying_interrupts():
                link.close()
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    _kill_group(process)
                    process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a guard and its git. The next worktree of the repository removes what they leave."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _machine_suffix() -> str:
    """Suffix of the names of all worktrees that this machine creates.

    A repository may be shared by machines, and only the machine of a worktree can tell whether its
    folder exists.
    """
    return "-" + re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())


def _remove_abandoned(git_command: Sequence[str]) -> None:
    """Removes the worktrees of a repository that killed processes on this machine have left."""

    def run(*words: str) -> bytes:
        return subprocess.run(
            [*git_command, "worktree", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment_for_git(),
            check=False,
        ).stdout

    for line in os.fsdecode(run("list", "--porcelain")).splitlines():
        folder = Path(line.removeprefix("worktree "))
        ours = SCRATCH_NAME.fullmatch(folder.parent.name) and folder.name.endswith(
            _machine_suffix()
        )
        if line.startswith("worktree ") and ours and folder.parent.name.startswith(CHECKOUT):
            remove_if_abandoned(folder.parent)
            if not folder.parent.exists():
                run("remove", "--force", "--force", str(folder))
