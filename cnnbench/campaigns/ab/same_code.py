"""Finds out, without a measurement, whether two commits contain the same code for a run.

They do if every file that differs is one that no run loads, such as a page of the documentation.
Whatever is unknown counts as a difference: the commits are then measured.
"""

from __future__ import annotations

import ast
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib.machinery import all_suffixes
from pathlib import PurePosixPath

from cnnbench.base.files import read_file
from cnnbench.base.plugins import plugin_files_of_flags
from cnnbench.base.urls import strip_file_scheme
from cnnbench.errors import PathError, UsageError
from cnnbench.flags import ACCEPTED, FLAG_FILE, split_command_line
from cnnbench.judge.compare.verdicts import SameCode
from cnnbench.machine.repository import GitError, git

NOT_LOADED = ("*.md", "*.rst", "docs/**", "LICENSE*", ".github/**")
"""Patterns of files that no run loads. Python modules among them are loaded all the same."""

_FILE_MODES = ("000000", "100644", "100755")
"""Modes of git for a missing file and for files; links and submodules have other modes."""

_LINK_MODE = "120000"
_UNDECODED = "\ufffd"
_PLUGIN_FILES = "FILES"


class UnknownFilesError(Exception):
    """The files that a run loads cannot be determined without running it."""


def find_same_code(
    base: str, new: str, flags: Sequence[str], ignored: Sequence[str]
) -> SameCode | None:
    """Returns the files that differ between two commits if no run loads any of them; otherwise
    None.

    Args:
      base, new: full hashes of commits in the repository of the current folder.
      flags: flags of the runs. Paths in them are relative to the top of the repository.
      ignored: further patterns of files that no run loads.
    """
    try:
        listed = git("diff-tree", "-r", "-z", "--raw", "--no-renames", base, new, "--")
        words = listed.split("\0")[:-1]
        files = words[1::2]
        if not all(map(partial(_is_never_loaded, ignored), words[::2], files)):
            return None
        named = {path for commit in (base, new) for path in _named_files(commit, flags)}
    except (GitError, UnknownFilesError):
        return None
    if any(_is_named(file, named) for file in files):
        return None
    return SameCode(base=base, new=new, files=tuple(files))


def _is_never_loaded(ignored: Sequence[str], facts: str, path: str) -> bool:
    """Whether no run loads a file that differs. `facts` is what git's raw format says about it."""
    modes = facts.removeprefix(":").split()[:2]
    if _UNDECODED in path or not set(modes) <= {*_FILE_MODES}:
        return False
    if matches_any_pattern(path, ignored):
        return True
    return matches_any_pattern(path, NOT_LOADED) and not path.endswith(tuple(all_suffixes()))


def matches_any_pattern(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches a path, which is relative to the top of the repository.

    A pattern without a slash matches the name of a file in any folder. In other patterns, ``**``
    matches any number of folders, and a slash at the end stands for ``/**``.
    """
    parts = PurePosixPath(path).parts
    for pattern in patterns:
        if "/" not in pattern:
            if fnmatchcase(parts[-1], pattern):
                return True
        elif _glob_matches(
            parts, f"{pattern}**".split("/") if pattern[-1] == "/" else pattern.split("/")
        ):
            return True
    return False


def _glob_matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_glob_matches(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return (
        bool(parts) and fnmatchcase(parts[0], pattern[0]) and _glob_matches(parts[1:], pattern[1:])
    )


def _named_files(commit: str, flags: Sequence[str]) -> set[str]:
    """Paths, from the top of the repository, that flags name, and that plug-ins list in FILES.

    Raises UnknownFilesError if they are unknown: if a flag file or a link is named, or if FILES of
    a plug-in is not a list of texts in its source.
    """
    if any(FLAG_FILE in word for word in flags):
        raise UnknownFilesError
    values = [word.partition("=")[2] if word.startswith("-") else word for word in flags]
    texts = {text for value in values for text in paths_in_value(value)}
    named = {path for text in texts for path in _path_in_commit(text)}
    try:
        by_flag, _ = split_command_line(flags, ACCEPTED)
    except UsageError:
        raise UnknownFilesError from None
    for text in plugin_files_of_flags(by_flag):
        for path in strip_file_scheme(text).split(","):
            (inside,) = _path_in_commit(path) or ("",)
            source = _read(commit, inside, path)
            folder = posixpath.dirname(inside or path)
            for name in _files_of_plugin(source):
                named.update(_path_in_commit(posixpath.join(folder, name)))
    links = _symlinks(commit)
    if any(_is_named(link, named) or _is_named(path, {link}) for link in links for path in named):
        raise UnknownFilesError
    return named


def paths_in_value(value: str) -> Iterator[str]:
    """Yields the texts in a flag's value that may be paths: the items of a list, and what follows a
    colon, as in ``keras:FILE.keras``.
    """
    for item in strip_file_scheme(value).split(","):
        text = item.strip()
        yield from filter(None, (text, text.partition(":")[2]))


def _path_in_commit(text: str) -> tuple[str, ...]:
    """The path of a file from the top of the repository, as a tuple; () if it is outside."""
    path = os.path.expanduser(text)
    if posixpath.isabs(path):
        path = os.path.relpath(os.path.realpath(path), git("rev-parse", "--show-toplevel"))
    path = posixpath.normpath(path)
    return () if path == ".." or path.startswith("../") else (path,)


def _is_named(path: str, named: Iterable[str]) -> bool:
    """Whether a path, or a folder or a pattern that contains it, is among the named paths."""
    return any(
        name == "." or path == name or path.startswith(f"{name}/") or fnmatchcase(path, name)
        for name in named
    )


def _symlinks(commit: str) -> list[str]:
    lines = git("ls-tree", "-r", "-z", commit).split("\0")
    return [line.partition("\t")[2] for line in lines if line.startswith(_LINK_MODE)]


def _read(commit: str, inside: str, path: str) -> bytes:
    if inside:
        return git("cat-file", "blob", f"{commit}:{inside}").encode()
    try:
        return read_file(path)
    except PathError:
        raise UnknownFilesError from None


def _files_of_plugin(source: bytes) -> list[str]:
    """The paths in the variable FILES of a plug-in, read from its source without running it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnknownFilesError from None
    files: list[str] = []
    known = 0
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == _PLUGIN_FILES:
                files += _literal_texts(value)
                known += 1
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                raise UnknownFilesError
    if sum(_mentions_files(node) for node in ast.walk(tree)) != known:
        raise UnknownFilesError
    return files


def _mentions_files(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == _PLUGIN_FILES
        case ast.alias():
            return _PLUGIN_FILES in (node.name, node.asname)
        case ast.Constant(value=value):
            return value == _PLUGIN_FILES
    return False


def _literal_texts(value: ast.expr) -> list[str]:
    try:
        texts = ast.literal_eval(value)
    except ValueError:
        raise UnknownFilesError from None
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise UnknownFilesError
    return list(texts)
