"""The git repository that a process works in, as the subject of what it measures."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from cnnbench.machine.software import GitError, git
from cnnbench.records.subject import Subject

_SECONDS = 10.0
_STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")
_OID = "# branch.oid "
# git@host:owner/name, and scheme://user:password@host:port/owner/name.
_SHORT = re.compile(r"(?:[^@/]+@)?(?P<host>[^:/]+):(?P<path>[^/].*)")
_LONG = re.compile(r"\w+://(?:[^@/]*@)?(?P<host>[^/]*)/(?P<path>.*)")


def of_folder(folder: str | Path | None = None) -> Subject:
    """The repository that a folder is in, its commit and whether tracked files differ from it.

    Args:
      folder: in a working tree; the working directory if None.

    Returns:
      An empty subject where there is no repository, no commit or no git.
    """
    try:
        lines = git(*_STATUS, folder=folder, timeout=_SECONDS).splitlines()
    except GitError:
        return Subject()
    commits = [line.removeprefix(_OID) for line in lines if line.startswith(_OID)]
    if not commits or commits[0].startswith("("):  # (initial): nothing is committed
        return Subject()
    dirty = any(not line.startswith("#") for line in lines)
    return Subject(repository=_name(folder), revision=commits[0], dirty=dirty)


def _name(folder: str | Path | None) -> str | None:
    """The address of `origin`, else the folder that all worktrees of the repository share."""
    with contextlib.suppress(GitError):
        return address(git("config", "--get", "remote.origin.url", folder=folder, timeout=_SECONDS))
    with contextlib.suppress(GitError):
        shared = git("rev-parse", "--git-common-dir", folder=folder, timeout=_SECONDS)
        common = Path(folder or "", shared).resolve()
        return (common.parent if common.name == ".git" else common).name
    return None


def address(url: str) -> str:
    """A repository's address as host/path: equal for all ways to reach it, and without secrets.

    Args:
      url: of a remote, or a path, of which the last part is taken.
    """
    found = _LONG.fullmatch(url) or _SHORT.fullmatch(url)
    text = url.rstrip("/").removesuffix(".git")
    if found is None or not found["host"]:
        return Path(text).name
    host = found["host"].partition(":")[0].lower()
    return f"{host}/{found['path'].strip('/').removesuffix('.git')}"
