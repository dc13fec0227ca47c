"""Plug-in files: Python files of the user's that register models and data sets."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnnbench.errors import FlagError, UsageError
from cnnbench.reading import read_file

_MOST_MIB = 16

Added = dict[str, tuple[Any, ...]]  # flag of a kind: keys in its table


@dataclass(frozen=True)
class Kind:
    """Something that plug-ins may register.

    Attributes:
      flag: that names a file which registers it.
      noun: what it is.
      call: what to call to register one.
      table: all that is registered, by key.
      prepare: fills the table with what comes with cnnbench.
    """

    flag: str
    noun: str
    call: str
    table: Callable[[], dict[Any, Any]]
    prepare: Callable[[], None]


_kinds: dict[str, Kind] = {}
_files: dict[Path, tuple[str, Added]] = {}  # digest of a file's text, and what it registered


def add_kind(kind: Kind) -> None:
    """Lets plug-ins register things of this kind."""
    _kinds[kind.flag] = kind


def load(path: str, flag: str) -> tuple[Any, ...]:
    """Runs a Python file that registers something.

    Loading the same text twice does nothing; an edited file replaces what it registered.
    Nothing stays registered when the file fails.

    Args:
      path: the file.
      flag: of the kind that it must register; it may register other kinds too.

    Returns:
      Keys of what it registered of that kind.

    Raises:
      FlagError: no such file, the file raises, registers nothing of the kind, or registers a
        name that is taken.
    """
    kind = _kinds[flag]
    try:
        file = Path(os.path.realpath(path))
        source = read_file(file, _MOST_MIB)
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); give the path of a Python file"
        raise FlagError(flag, path, reason) from error
    digest = hashlib.sha256(source).hexdigest()
    if _files.get(file, ("",))[0] != digest:
        forget(file)
        try:
            with registering() as added:
                _execute(file, source)
        except Exception as error:
            raise FlagError(flag, path, f"fails: {one_line(error)}") from error
        _files[file] = (digest, added)
    keys = _files[file][1].get(flag, ())
    if not keys:
        raise FlagError(flag, path, f"registers no {kind.noun}; call {kind.call}")
    return keys


def loaded() -> set[Path]:
    """The files that are loaded."""
    return set(_files)


def forget(file: Path) -> None:
    """Takes back what a file has registered, if anything."""
    _, added = _files.pop(file, ("", {}))
    for flag, keys in added.items():
        for key in keys:
            _kinds[flag].table().pop(key, None)


@contextlib.contextmanager
def registering() -> Iterator[Added]:
    """Collects what is registered inside, by flag of its kind; takes it back if the body fails."""
    for kind in _kinds.values():
        kind.prepare()
    before = {flag: dict(kind.table()) for flag, kind in _kinds.items()}
    added: Added = {}
    try:
        yield added
    except BaseException:
        for flag, kind in _kinds.items():
            table = kind.table()
            table.clear()
            table.update(before.get(flag, {}))
        raise
    for flag, kind in _kinds.items():
        known = before.get(flag, {})
        added[flag] = tuple(key for key in kind.table() if key not in known)


def one_line(error: Exception) -> str:
    """What a plug-in raised, with the exception's name unless it is wrong use of cnnbench."""
    text = " ".join(str(error).split())
    if isinstance(error, UsageError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _execute(file: Path, source: bytes) -> None:
    # Compiled by hand rather than imported: no bytecode file appears beside the user's file,
    # and an edit within the clock tick of the last load is seen.
    module = types.ModuleType(f"cnnbench_plugin_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses and pickle look classes up there
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)
    except SystemExit as error:
        raise UsageError(f"it ends the program (SystemExit {error.code})") from error
