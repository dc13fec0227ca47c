"""Checkouts to measure: folders as they are, revisions in a temporary worktree."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cnnbench.errors import BenchmarkError, FlagError


@contextlib.contextmanager
def checked_out(flag: str, text: str) -> Iterator[Path]:
    """A folder with the code of a checkout.

    Args:
      flag: name of the flag that named it, for the error.
      text: a folder, or a revision of the repository that the working directory is in; the
        worktree of a revision is removed afterwards.

    Raises:
      FlagError: it is neither.
      BenchmarkError: git cannot make the worktree.
    """
    if Path(text).is_dir():
        yield Path(text).resolve()
        return
    commit = _commit(text)
    if commit is None:
        raise FlagError(
            flag, text, "is neither a folder nor a revision of the repository you are in"
        )
    with tempfile.TemporaryDirectory(prefix="cnnbench-checkout-") as parent:
        folder = Path(parent).resolve() / commit[:12]
        done = _git("worktree", "add", "--detach", "--quiet", str(folder), commit)
        if done.returncode != 0:
            raise BenchmarkError(f"git worktree add {text}: {_last_line(done.stderr)}")
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _commit(text: str) -> str | None:
    """The commit that a revision names, or None."""
    if not text or text.startswith("-"):  # git would take it for an option
        return None
    done = _git("rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    return done.stdout.strip() if done.returncode == 0 else None


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False, errors="replace"
        )
    except OSError as error:
        return subprocess.CompletedProcess(arguments, 127, "", f"git: {error.strerror}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "failed"
