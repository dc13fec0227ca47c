"""The current git repository, as the subject of a measurement."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cnnbench.machine.git import GitError, git, state
from cnnbench.records.subject import Subject

_SECONDS = 10.0
PLUGINS = ("model_plugin", "dataset_plugin", "variable_mgr_plugin")
"""Flags with a file whose repository is measured."""

# git@host:owner/name, and scheme://user:password@host:port/owner/name.
_SHORT = re.compile(r"(?:[^@/]+@)?(?P<host>[^:/]+):(?P<path>[^/].*)")
_LONG = re.compile(r"\w+://(?:[^@/]*@)?(?P<host>[^/]*)/(?P<path>.*)")


def of_work(flags: Mapping[str, Any]) -> Subject:
    """Repository of a measurement: that of its plug-in, else of the working directory.

    A plug-in that its repository does not track differs from the commit.
    """
    for plugin in filter(None, map(flags.get, PLUGINS)):
        file = Path(plugin).resolve()
        found = of_folder(file.parent)
        if found.revision is None:
            continue
        try:
            git("ls-files", "--error-unmatch", "--", file.name, folder=file.parent)
        except GitError:
            found = replace(found, dirty=True)
        return found
    return of_folder()


def of_folder(folder: str | Path | None = None) -> Subject:
    """Repository, commit, and whether tracked files differ from it; empty without a commit."""
    try:
        found = state(folder, _SECONDS)
    except GitError:
        found = None
    if found is None:
        return Subject()
    revision, dirty = found
    return Subject(repository=_name(folder), revision=revision, dirty=dirty)


def _name(folder: str | Path | None) -> str | None:
    """The address of `origin`, else the folder shared by all worktrees of the repository."""
    with contextlib.suppress(GitError):
        return address(git("config", "--get", "remote.origin.url", folder=folder, timeout=_SECONDS))
    with contextlib.suppress(GitError):
        shared = git("rev-parse", "--git-common-dir", folder=folder, timeout=_SECONDS)
        common = Path(folder or "", shared).resolve()
        return (common.parent if common.name == ".git" else common).name
    return None


def address(url: str) -> str:
    """A repository's address as host/path, equal for all protocols and without secrets.

    Of a path, the last part is taken.
    """
    found = _LONG.fullmatch(url) or _SHORT.fullmatch(url)
    text = url.rstrip("/").removesuffix(".git")
    if found is None or not found["host"]:
        return Path(text).name
    host = found["host"].partition(":")[0].lower()
    return f"{host}/{found['path'].strip('/').removesuffix('.git')}"
