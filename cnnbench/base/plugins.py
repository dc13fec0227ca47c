"""Plug-in files and entry points that register models, data sets and variable managers."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnnbench.base.interrupts import restored
from cnnbench.base.reading import read_file
from cnnbench.errors import FlagError, UsageError, text_of

_MOST_MIB = 16

Added = dict[str, tuple[Any, ...]]  # flag of a kind: keys in its table


@dataclass(frozen=True)
class Kind:
    """A kind of object that plug-ins register.

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
_files: dict[Path, tuple[str, str, Added]] = {}  # digest of its text, name, what it registered
_origins: dict[tuple[str, Any], str] = {}  # by flag of a kind and key: who registered it
_entry_points: dict[str, str] = {}  # digests of their modules, by name
_watch: list[Callable[[str], None]] = []


def add_kind(kind: Kind) -> None:
    """Lets plug-ins register things of this kind."""
    _kinds[kind.flag] = kind


def watch(call: Callable[[str], None]) -> None:
    """Registers a function to be called with a plug-in's name before its code runs."""
    _watch.append(call)


def about_to_run(name: str) -> None:
    """Calls the functions of `watch`."""
    for call in _watch:
        call(name)


def origin(flag: str, key: Any) -> str | None:
    """Name of the plug-in that registered an object; None if none did."""
    return _origins.get((flag, key))


def digests() -> dict[str, str]:
    """SHA-256 of the source file of each loaded plug-in, by its name."""
    return {**_entry_points, **{name: digest for digest, name, _ in _files.values()}}


@contextlib.contextmanager
def code(failed: Callable[[str], Exception], *passes: type[BaseException]) -> Iterator[None]:
    """A block that runs plug-in code; whatever it raises becomes one error.

    An interrupt passes, and so does what is no error and of cnnbench itself.

    Args:
      failed: makes that error, given one line about what was raised.
      *passes: exceptions that pass as they are.
    """
    try:
        with restored():
            yield
    except BaseException as error:
        own = type(error).__module__.startswith("cnnbench.") and not isinstance(error, Exception)
        if own or isinstance(error, (KeyboardInterrupt, GeneratorExit, *passes)):
            raise
        raise failed(one_line(error)) from error


def load(path: str, flag: str) -> tuple[Any, ...]:
    """Runs a plug-in file, which registers objects.

    Loading the same text twice does nothing; an edited file replaces what it registered.
    Nothing stays registered when the file fails.

    Args:
      flag: of the kind that it must register; it may register other kinds too.

    Returns:
      Keys of what it registered of that kind.

    Raises:
      FlagError: no such file, the file raises, registers nothing of the kind, or registers a
        name that is taken.
    """
    kind = _kinds[flag]
    source = read_file(path, _MOST_MIB, flag)
    file = Path(os.path.realpath(path))
    digest, name = _sha256(source), f"--{flag}={path}"
    if _files.get(file, ("",))[0] != digest:
        forget(file)
        about_to_run(name)
        with (
            code(lambda line: FlagError(flag, path, f"fails: {line}")),
            registering(name) as added,
        ):
            _execute(file, source)
        _files[file] = (digest, name, added)
    keys = _files[file][2].get(flag, ())
    if not keys:
        raise FlagError(flag, path, f"registers no {kind.noun}; call {kind.call}")
    return keys


def load_entry_points(group: str) -> None:
    """Loads installed entry points: modules that register on import, or functions.

    Raises:
      UsageError: one of them fails.
    """
    import importlib.metadata  # late: it takes 10 ms, and few runs ask

    for point in importlib.metadata.entry_points(group=group):
        name = f"entry point {point.name} = {point.value} of group {group}"
        about_to_run(name)
        with (
            code(lambda line, name=name: UsageError(f"{name} fails: {line}")),  # type: ignore[misc]
            registering(name),
        ):
            found = point.load()
            if callable(found):
                found()
        source = getattr(sys.modules[point.module], "__file__", None)
        with contextlib.suppress(OSError):  # in an archive
            _entry_points[name] = _sha256(Path(source).read_bytes() if source else b"")


def loaded() -> set[Path]:
    """Names of the loaded plug-in files."""
    return set(_files)


def forget(file: Path) -> None:
    """Removes what a file has registered."""
    _, _, added = _files.pop(file, ("", "", {}))
    for flag, keys in added.items():
        for key in keys:
            _kinds[flag].table().pop(key, None)
            _origins.pop((flag, key), None)


@contextlib.contextmanager
def registering(name: str) -> Iterator[Added]:
    """Collects what the block registers, by flag of its kind; removes it if the block fails."""
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
        _origins.update({(flag, key): name for key in added[flag]})


def out_of_memory() -> tuple[type[Exception], ...]:
    """Exceptions of Python and, if loaded, TensorFlow for a lack of memory."""
    tf = sys.modules.get("tensorflow")
    return (MemoryError,) if tf is None else (MemoryError, tf.errors.ResourceExhaustedError)


def check_name(what: str, name: object) -> None:
    """Refuses a name that a terminal would not show as it is.

    Raises:
      UsageError: it is no text, empty, or has control characters or line ends.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UsageError(f"{what} needs a name of printable characters, not {name!r}")


def one_line(error: BaseException) -> str:
    """A plug-in's exception in one line; with its type unless it is a usage error."""
    text = " ".join(text_of(error).split())
    if isinstance(error, UsageError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _sha256(data: bytes) -> str:
    import hashlib  # late: --help has no use for it

    return hashlib.sha256(data).hexdigest()


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
