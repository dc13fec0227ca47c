"""Paths in the flags of runs, if the runs measure commits. Each commit is checked out, and its runs
start in the root folder of the checkout, so relative paths count from the root of the repository,
whatever the current folder is.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

from cnnbench.base import plugins
from cnnbench.base.urls import is_url
from cnnbench.campaigns.ab.side import RESERVED, WRITTEN, AbSide
from cnnbench.errors import FlagError
from cnnbench.flags import FLAG_FILE, FLAGS
from cnnbench.machine.repository import GitError, git

_KERAS = "keras:"
_READ = {
    *(spec.name for spec in FLAGS if spec.path and spec.name not in (*RESERVED, *WRITTEN)),
    FLAG_FILE,
    "model",
}
"""Flags of runs whose values are, or contain, paths that a run reads."""

_RULE = "paths count from the root of the repository"


def flags_from_root(flags: Sequence[str]) -> list[str]:
    """Returns flags of runs in which a path that exists only relative to the current folder is
    replaced by the path from the root of the repository. Other words remain unchanged.

    Raises FlagError if a plug-in exists neither in the repository nor at an absolute path.
    """
    top, here = Path(git("rev-parse", "--show-toplevel")), git("rev-parse", "--show-prefix")
    words, name = [], ""
    for word in flags:
        start, equals, text = word.partition("=")
        if name:  # The value of the flag that is the word before.
            words.append(_value_from_root(name, word, top, here))
            name = ""
            continue
        given = start.lstrip("-") if start.startswith("-") else ""
        if given in _READ and equals:
            words.append(f"{start}={_value_from_root(given, text, top, here)}")
        else:
            name = given if given in _READ else ""
            words.append(word)
    return words


def _value_from_root(flag: str, text: str, top: Path, here: str) -> str:
    keras = _KERAS if flag == "model" and text.startswith(_KERAS) else ""
    if flag == "model" and not keras:
        return text
    paths = text.removeprefix(keras).split(",")
    return keras + ",".join(_path_from_root(flag, path, top, here) for path in paths)


def _path_from_root(flag: str, path: str, top: Path, here: str) -> str:
    """Finds a path from the root `top`; `here` is the current folder, relative to the root."""
    if not path or is_url(path):
        return path
    if os.path.isabs(path):
        real, root = os.path.realpath(path), os.path.realpath(top)
        is_inside = os.path.commonpath([real, root]) == root
        return os.path.relpath(real, root) if is_inside else path
    if (top / path).exists():
        return path
    found = posixpath.normpath(here + path)
    if os.path.exists(path) and not found.startswith("../"):
        return found
    if flag == plugins.FLAG:
        raise FlagError(flag, path, f"is not in the repository {top}; {_RULE}")
    return path


def hint_of_root(side: AbSide, error: str) -> str:
    """Returns text to add to an error about the flags of a side, if the error is about a file that
    exists relative to the current folder, but not relative to the root of the measured commit;
    otherwise "".
    """
    if side.commit is None or side.checkout is None:
        return ""
    try:
        here = git("rev-parse", "--show-prefix")
    except GitError:
        return ""
    for flag, path in _paths_of_flags(side):
        found = posixpath.normpath(here + path)
        if here and path in error and not (side.checkout / path).exists():
            is_there = not found.startswith("../") and (side.checkout / found).exists()
            return f"; {_RULE}" + (f": --{flag}={found}" if is_there else "")
    return ""


def _paths_of_flags(side: AbSide) -> Iterator[tuple[str, str]]:
    """Yields the flags with relative paths that runs read, and each of these paths."""
    for flag, text in side.given_flags.items():
        if flag in _READ and (flag != "model" or text.startswith(_KERAS)):
            for path in text.removeprefix(_KERAS).split(","):
                if path and not os.path.isabs(path) and not is_url(path):
                    yield flag, path
