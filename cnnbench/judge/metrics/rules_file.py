"""Where rules are read from: cnnbench.toml or the section [tool.cnnbench] of pyproject.toml in the
current folder, or the file in --rules, which may be in a commit.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from cnnbench.base.files import read_text
from cnnbench.errors import FlagError, UsageError
from cnnbench.machine.repository import GitError, find_commit_hash, git

FILE, PROJECT = "cnnbench.toml", "pyproject.toml"
"""Files with rules in a folder. The first one that contains rules is used."""

NO_RULES = "none"
"""With this value of --rules, no rules are read."""

_MOST_FOLDERS = 64
"""Maximum number of folders that are searched for the top of a repository."""

_FILE_PREFIXES = ("/", "./", "../")


@dataclass(frozen=True, kw_only=True)
class RulesFile:
    """Where rules are read from: a file, or a file in a commit.

    The text COMMIT:FILE always means a file in a commit, whatever files exist. The name of a file
    that contains a colon therefore begins with "/", "./" or "../".

    Attributes:
      path: path of the file; in a commit, the path from the top of the repository.
      commit: name of the commit; None for a file on disk.
    """

    path: str
    commit: str | None = None

    @classmethod
    def parse(cls, text: str) -> RulesFile:
        """Parses the value of --rules, except NO_RULES."""
        commit, colon, path = text.partition(":")
        if not colon or text.startswith(_FILE_PREFIXES):
            return cls(path=text)
        return cls(path=path, commit=commit)

    def __str__(self) -> str:
        """The value of --rules that selects the file."""
        return self.path if self.commit is None else f"{self.commit}:{self.path}"

    def read_table(self) -> Any:
        """Reads the TOML file as JSON values. Of pyproject.toml, only the section [tool.cnnbench]
        is returned; None if there is no such section.

        Raises UsageError with the name of the file if it cannot be read or is not valid TOML.
        """
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        text = self._read_text()
        try:
            # The conversion to JSON and back converts dates to strings.
            table = json.loads(json.dumps(tomllib.loads(text), default=str))
        except ValueError as error:
            raise UsageError(f"{self}: is not valid TOML: {error}") from None
        except RecursionError:
            raise UsageError(f"{self}: is not valid TOML: tables are nested too deeply") from None
        if PurePath(self.path).name != PROJECT:
            return table
        tools = table.get("tool")
        return tools.get("cnnbench") if isinstance(tools, dict) else None

    def _read_text(self) -> str:
        if self.commit is None:
            return read_text(self.path, "rules")
        try:
            commit = find_commit_hash(self.commit)
        except GitError as error:
            hint = f"; the file of this name is ./{self}" if os.path.exists(str(self)) else ""
            raise FlagError("rules", str(self), f"{error}{hint}") from None
        try:
            return git("cat-file", "blob", f"{commit}:{self.path}").removeprefix("\ufeff")
        except GitError as error:
            raise FlagError("rules", str(self), str(error)) from None


def paths_of_rules() -> list[str]:
    """Paths of files that may contain rules: in the current folder, then in the folders above it
    that belong to the same repository.
    """
    # The paths are relative, because the current folder may have been removed.
    folders = ["../" * up for up in range(_MOST_FOLDERS)]
    tops = (
        up for up, folder in enumerate(folders) if os.path.lexists(os.path.join(folder, ".git"))
    )
    up = next(tops, 0)
    return [os.path.join(folder, name) for folder in folders[: up + 1] for name in (FILE, PROJECT)]


def rules_flag_at_commit(commit: str, flag_value: str | None) -> str:
    """Returns the value COMMIT:FILE of --rules that selects the version of the rules file in
    `commit`, which is a full hash.

    Without --rules, it selects the rules in the current folder or in the folders above it. Values
    that do not name a file of the repository are returned unchanged. Raises FlagError if the commit
    does not contain the file.
    """
    if flag_value is None:
        here = PurePath(git("rev-parse", "--show-prefix"))
        for folder in (here, *here.parents):
            for name in (FILE, PROJECT):
                file = RulesFile(path=(folder / name).as_posix(), commit=commit)
                if _is_in_commit(file) and file.read_table() is not None:
                    return str(file)
        return NO_RULES
    given = RulesFile.parse(flag_value)
    if flag_value == NO_RULES or given.commit is not None:
        return flag_value
    path = _inner_path(given.path)
    if path is None:
        return flag_value
    file = RulesFile(path=path, commit=commit)
    if not _is_in_commit(file):
        reason = f"the merge base (commit {commit[:12]}) lacks this file"
        raise FlagError("rules", flag_value, reason)
    return str(file)


def _inner_path(path: str) -> str | None:
    """Returns the path of a file from the top of the repository; None if the file is outside.

    Links within the repository are not followed: a change could replace a file by a link to a file
    outside, and would then choose the rules by which it is judged.
    """
    top = git("rev-parse", "--show-toplevel")
    absolute = Path(os.path.abspath(path))
    for folder in reversed(absolute.parents):
        if folder.exists() and folder.samefile(top):
            return absolute.relative_to(folder).as_posix()
    return None


def _is_in_commit(file: RulesFile) -> bool:
    try:
        git("cat-file", "-e", str(file))
    except GitError:
        return False
    return True
