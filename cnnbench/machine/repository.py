"""Git repositories: commands that run no program of theirs, and the subject of a measurement.

The configuration of a repository of any origin may name programs that git runs even for reading:
hooks, a monitor of the file system, filters, a signature checker, helpers of a connection. `git`
reads facts and runs none of them; `command` changes working trees and leaves only the filters and
the connection that a checkout needs.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cnnbench.records.subject import Subject

_SECONDS = 10.0
PLUGINS = ("model_plugin", "dataset_plugin", "variable_mgr_plugin")
"""Flags with a file whose repository is measured."""

# scheme://user:password@host:port/owner/name, user@host:owner/name, and the host in other forms.
# Whatever else an address has may be a secret: a query, a fragment, a password with a slash.
_HOST = r"(?P<host>[\w.-]*|\[[\w:.]+\])"
_PATH = r"(?P<path>(?!//)(?:[\w.~+/-]|%20)+)"
_LONG = re.compile(rf"(?:https?|ftps?|ssh|git|git\+ssh|file)://(?:[^/]*@)?{_HOST}(?::\d+)?/{_PATH}")
_SHORT = re.compile(rf"(?:[^/:@]+@)?{_HOST}:{_PATH}")
_OTHER = re.compile(rf"(?:\w+::)?[\w+.-]+://(?:[^/]*@)?{_HOST}(?::\d+)?(?P<path>)(?:[/?#][^@]*)?")

_NO_PROGRAMS = (
    *("-c", "core.hooksPath=/dev/null"),
    # The empty value stands for "none" in every version; "false" was once the name of a program.
    *("-c", "core.fsmonitor="),
    *("-c", "log.showSignature=false"),
)
# Without the optional locks a benchmark never blocks a commit. An object that a partial clone
# lacks is not fetched: that runs programs such as core.sshCommand. The second variable is for
# versions before 2.44, which do not know the first.
_READING = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}
# A filter runs when git compares contents, so files with one are left out; and in a submodule git
# would start another git, which obeys the configuration there.
_STATUS = (
    *("status", "--porcelain=v2", "--branch", "--untracked-files=no"),
    *("--ignore-submodules=dirty", "--", ":(top,attr:!filter)"),
)
_OID = "# branch.oid "


class GitError(Exception):
    """A git command failed; the message is the last line of its standard error."""


def command(folder: str | Path | None = None) -> list[str]:
    """Prefix of a git command without hooks and file system monitor."""
    place = [] if folder is None else ["-C", str(folder)]
    return ["git", *place, *_NO_PROGRAMS]


def git(*arguments: str, folder: str | Path | None = None, timeout: float = 60.0) -> str:
    """Stripped output of a read-only git command; GitError also after `timeout` seconds."""
    try:
        done = subprocess.run(
            [*command(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            env={**os.environ, **_READING},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(f"git cannot be run: {error}") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise GitError(lines[-1] if lines else f"git {arguments[0]} failed")
    return done.stdout.strip()


def state(folder: str | Path | None = None, timeout: float = 10.0) -> tuple[str, bool] | None:
    """The commit that is checked out, and whether tracked files differ from it.

    None before the first commit. Files with a filter, such as those of Git LFS, and changes within
    submodules do not count.
    """
    lines = git(*_STATUS, folder=folder, timeout=timeout).splitlines()
    commits = [line.removeprefix(_OID) for line in lines if line.startswith(_OID)]
    if not commits or commits[0].startswith("("):  # (initial): nothing is committed
        return None
    return commits[0], any(not line.startswith("#") for line in lines)


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


def address(url: str) -> str | None:
    """A repository's address as host/path, equal for all protocols and without secrets.

    Of a local path only the last part is returned, of an address in another form only the host, or
    None where that is unknown.
    """
    found = _LONG.fullmatch(url) or _SHORT.fullmatch(url) or _OTHER.fullmatch(url)
    if found is None and ":" in url.partition("/")[0]:
        return None
    path = (url if found is None else found["path"]).strip("/").removesuffix(".git")
    if found is None or not found["host"]:
        return Path(path).name or None
    return f"{found['host'].lower()}/{path}".rstrip("/")
