"""The order of commits in a git repository, read by git itself."""

from __future__ import annotations

import os
import subprocess

from cnnbench.errors import FlagError

FLAG = "git"
_SECONDS = 60


def order_of_commits(folder: str) -> dict[str, int]:
    """Place of every commit of all branches, ancestors before descendants.

    Commits count by their full names and by the abbreviations of 7 to 12 digits, where one
    stands for a single commit.

    Args:
      folder: in a working tree, or a bare repository.

    Raises:
      FlagError: git finds no repository there, or there is no git.
    """
    command = ["git", "-C", folder, "rev-list", "--all", "--topo-order", "--reverse"]
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=True, env=environ
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        raise FlagError(FLAG, folder, said[-1] if said else "git cannot read it") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FlagError(FLAG, folder, f"git cannot be run: {error}") from None
    commits = done.stdout.split()
    places = {commit: place for place, commit in enumerate(commits)}
    for digits in range(7, 13):
        short: dict[str, list[int]] = {}
        for place, commit in enumerate(commits):
            short.setdefault(commit[:digits], []).append(place)
        places |= {name: found[0] for name, found in short.items() if len(found) == 1}
    return places
