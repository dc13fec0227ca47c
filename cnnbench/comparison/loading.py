"""Records from files, folders and patterns; what is none is named, not fatal."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cnnbench.errors import UsageError
from cnnbench.record import RunRecord
from cnnbench.sorting import natural_key

if TYPE_CHECKING:
    from cnnbench.allreduce.record import AllReduceRecord

_ALLREDUCE = "allreduce"
_WILD = ("*", "?", "[")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that gave no record.

    Attributes:
      path: the file.
      reason: why, in words that complete the sentence.
      defect: whether that is a fault; another document that cnnbench writes, or a second
        copy of a record, is none.
    """

    path: str
    reason: str
    defect: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found, in order of the paths, numbers in them by value.

    Attributes:
      records: of runs.
      skipped: files that gave no record.
      allreduces: measurements of reductions.
    """

    records: tuple[RunRecord, ...]
    skipped: tuple[Skipped, ...]
    allreduces: tuple[AllReduceRecord, ...] = ()

    @property
    def everything(self) -> tuple[RunRecord | AllReduceRecord, ...]:
        """Records of both kinds, one per process."""
        return (*self.records, *self.allreduces)

    @property
    def defects(self) -> tuple[Skipped, ...]:
        """The skipped files that are at fault."""
        return tuple(one for one in self.skipped if one.defect)


def load_records(paths: Iterable[str | os.PathLike[str]]) -> Loaded:
    """Reads the records of files, of folders with all below them, and of patterns.

    A record that is found twice counts once: a second copy is no second run.

    Args:
      paths: files; folders, in which every ``*.json`` is taken; patterns with ``*``,
        ``?``, ``[...]`` and ``**``.

    Raises:
      UsageError: a path does not exist, or a pattern matches nothing.
    """
    records: dict[str, RunRecord] = {}
    reduced: dict[str, AllReduceRecord] = {}
    skipped: list[Skipped] = []
    for path in _files(paths):
        try:
            found = _read(path)
        except (OSError, ValueError, RecursionError) as error:
            skipped.append(Skipped(path, _fault(error)))
            continue
        if isinstance(found, str):
            skipped.append(Skipped(path, f"holds {found}, not a run record", defect=False))
        elif found.run_id in records or found.run_id in reduced:
            skipped.append(Skipped(path, f"a second copy of run {found.run_id}", defect=False))
        elif isinstance(found, RunRecord):
            records[found.run_id] = found
        else:
            reduced[found.run_id] = found
    return Loaded(tuple(records.values()), tuple(skipped), tuple(reduced.values()))


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """Every file once, in order of their names within each path."""
    seen: set[str] = set()
    for path in paths:
        for file in _expand(os.fspath(path)):
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                yield file


def _expand(path: str) -> list[str]:
    if os.path.isdir(path):
        found = (
            os.path.join(folder, name)
            for folder, _, names in os.walk(path)
            for name in names
            if name.endswith(".json")
        )
        # Not from pipes and the like, which could block; what a dangling link says is told.
        readable = (file for file in found if os.path.isfile(file) or not os.path.exists(file))
        return sorted(readable, key=natural_key)
    if os.path.exists(path):
        return [path]
    if not any(sign in path for sign in _WILD):
        raise UsageError(f"{path}: no such file or folder")
    matches = sorted(glob.glob(path, recursive=True), key=natural_key)
    if not matches:
        raise UsageError(f"{path}: no file matches this pattern")
    return [file for match in matches for file in _expand(match)]


def _read(path: str) -> RunRecord | AllReduceRecord | str:
    """The record in a file, or the kind of another document of cnnbench's."""
    document = json.loads(Path(path).read_bytes(), parse_constant=_refuse)
    if isinstance(document, dict):
        kind = document.get("kind")
        if isinstance(kind, str) and "schema" in document and kind != RunRecord.kind:
            return (
                _reductions(document)
                if kind == _ALLREDUCE
                else f"a document of the kind {kind[:40]!r}"
            )
    return RunRecord.from_dict(document)


def _reductions(document: object) -> AllReduceRecord:
    # Most folders have none, and its module brings the flags of the command along.
    from cnnbench.allreduce.record import AllReduceRecord

    try:
        return AllReduceRecord.from_dict(document)
    except ValueError as error:
        raise _NoMeasurement(str(error)) from error


class _NoMeasurement(ValueError):
    """A document that says it is an all-reduce measurement, and is none."""


def _fault(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, json.JSONDecodeError):
        text = error.doc.strip()
        if not text:
            return "empty"
        if text.startswith("{") and not text.endswith("}"):
            return f"cut off after {len(error.doc)} characters"
        return f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
    if isinstance(error, RecursionError):
        return "not a run record: nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "not JSON: not text in UTF-8"
    kind = "an all-reduce measurement" if isinstance(error, _NoMeasurement) else "a run record"
    return f"not {kind}: {error}"


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
