"""git, run as a subprocess."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class GitError(Exception):
    """A git command failed; the message is the last line of its standard error."""


def git(*arguments: str, folder: str | Path | None = None, timeout: float = 60.0) -> str:
    """The standard output of a git command, without white space around it.

    Args:
      *arguments: of git.
      folder: in the repository; the working directory if None.
      timeout: in seconds.

    Raises:
      GitError: the command failed, took too long, or git is not installed.
    """
    place = [] if folder is None else ["-C", str(folder)]
    try:
        done = subprocess.run(
            ["git", *place, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            # Without the optional locks a benchmark never blocks a commit.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(f"git cannot be run: {error}") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise GitError(lines[-1] if lines else f"git {arguments[0]} failed")
    return done.stdout.strip()
