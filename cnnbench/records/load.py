"""Loading of records from files, folders and patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cnnbench.base.files import document, json_of, read_file, read_json
from cnnbench.base.terminal import Progress, natural_key
from cnnbench.errors import PathError
from cnnbench.records.all_reduce import AllReduceRecord, Predictions
from cnnbench.records.campaigns import StrategiesDocument, TuneDocument
from cnnbench.records.codec import OPTIONAL
from cnnbench.records.profiles import Roofline, StepProfile
from cnnbench.records.run import RunRecord

Study: TypeAlias = Roofline | StepProfile | StrategiesDocument | TuneDocument
"""Results of a command on one or more processes, apart from their records."""

_NAMES: Mapping[type[RunRecord | AllReduceRecord | Study | Predictions], str] = {
    RunRecord: "a run record",
    AllReduceRecord: "an all-reduce measurement",
    Predictions: "a prediction of reductions",
    Roofline: "a roofline",
    StepProfile: "a profile of steps",
    StrategiesDocument: "a comparison of modes",
    TuneDocument: "a search of flags",
}
_KINDS = {one.kind: one for one in _NAMES}
# Kinds of other documents that cnnbench writes.
_OTHERS = frozenset(("baseline", "comparison", "explanation", "history"))
_WILD = ("*", "?", "[")


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file or folder without a record.

    Attributes:
      path: path of the file or folder.
      reason: why it was skipped, in words that follow the path and a colon.
      defect: whether it is faulty, not another document or a second copy of a record.
      differs: whether it is a copy of a record that holds less than the copy that was read.
    """

    path: str
    reason: str
    defect: bool = True
    differs: bool = field(default=False, metadata=OPTIONAL)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Records in natural order of the paths, and other documents that reports have sections for."""

    records: tuple[RunRecord, ...]
    skipped: tuple[SkippedFile, ...]
    allreduces: tuple[AllReduceRecord, ...] = ()
    studies: tuple[Study, ...] = ()
    predictions: tuple[Predictions, ...] = ()

    @property
    def everything(self) -> tuple[RunRecord | AllReduceRecord, ...]:
        """Records of both kinds, one per process."""
        return (*self.records, *self.allreduces)

    @property
    def defects(self) -> tuple[SkippedFile, ...]:
        """Skipped files that are defective."""
        return tuple(one for one in self.skipped if one.defect)


def load_records(
    paths: Iterable[str | os.PathLike[str]],
    *,
    hidden: bool = True,
    progress: Progress | None = None,
) -> Loaded:
    """Reads the records of files, of folders with all below them, and of patterns.

    Of the copies of one record, which have the same run_id, the most complete is returned: one with
    the status "ok", then the one with the most steps or reductions, then the longest, whatever the
    names of the files. PathError if a path does not exist, or a pattern matches nothing.

    Args:
      paths: files; folders, of which every ``*.json`` is read, links followed; patterns with ``*``,
        ``?``, ``[...]`` and ``**``.
      hidden: whether to read names in a folder that begin with a dot.
      progress: shows the number of files read.
    """
    runs: dict[str, tuple[RunRecord | AllReduceRecord, str]] = {}
    studies: list[Study] = []
    predictions: list[Predictions] = []
    listed = [*files(paths, hidden)]
    skipped: list[SkippedFile] = []
    progress = progress or Progress.silent()
    progress.start("reading", len(listed))
    for number, path in enumerate(listed):
        progress.update(number)
        if isinstance(path, SkippedFile):
            skipped.append(path)
            continue
        found = read(path)
        if isinstance(found, SkippedFile):
            skipped.append(found)
        elif isinstance(found, Predictions):
            predictions.append(found)
        elif isinstance(found, Study):
            # The process of a roofline may have left its record, too.
            studies += [found] if found not in studies else []
        elif found.run_id not in runs:
            runs[found.run_id] = found, path
        else:
            skipped.append(_second(runs, found, path))
    progress.finish()
    everything = [record for record, _ in runs.values()]
    return Loaded(
        tuple(one for one in everything if isinstance(one, RunRecord)),
        tuple(skipped),
        tuple(one for one in everything if isinstance(one, AllReduceRecord)),
        tuple(studies),
        tuple(predictions),
    )


def _second(
    runs: dict[str, tuple[RunRecord | AllReduceRecord, str]],
    record: RunRecord | AllReduceRecord,
    path: str,
) -> SkippedFile:
    """Keeps the more complete of two copies in `runs`; returns the file of the other."""
    other, its_path = runs[record.run_id]
    what = f"copy of run {record.run_id}"
    if record == other:
        return SkippedFile(path, f"a second {what}", defect=False)
    if _extent(record) > _extent(other):
        runs[record.run_id] = record, path
        path, its_path = its_path, path
    reason = f"a {what} that differs from {its_path}, which is more complete and counts"
    return SkippedFile(path, reason, defect=False, differs=True)


def _extent(record: RunRecord | AllReduceRecord) -> tuple[bool, int, int, str]:
    measured = record.step_seconds if isinstance(record, RunRecord) else record.rows
    text = repr(record)
    return record.status == "ok", len(measured), len(text), text


def load_run(path: str) -> RunRecord:
    """The record of a run in a file; raises a PathError if it has none."""
    with document(path, "a run record"):
        return RunRecord.from_dict(read_json(path))


def files(
    paths: Iterable[str | os.PathLike[str]], hidden: bool = True
) -> Iterator[str | SkippedFile]:
    """Every file once, in order of the names within each path; see `load_records`."""
    seen: set[str] = set()
    for path in paths:
        for file in _expand(os.fspath(path), hidden):
            if isinstance(file, SkippedFile):
                yield file
            elif file[1] not in seen:
                seen.add(file[1])
                yield file[0]


_Found: TypeAlias = "tuple[str, str] | SkippedFile"
"""The path of a file, as it was asked for and without links."""


def _expand(path: str, hidden: bool) -> list[_Found]:
    if os.path.isdir(path):
        return _json_files(path, hidden)
    if os.path.exists(path):
        return [(path, os.path.realpath(path))]
    if not any(c in path for c in _WILD):
        raise PathError(path, "no such file or folder")
    matches = sorted(glob.glob(path, recursive=True), key=natural_key)
    if not matches:
        raise PathError(path, "no file matches this pattern")
    return [file for match in matches for file in _expand(match, hidden)]


def _json_files(folder: str, hidden: bool) -> list[_Found]:
    """The ``*.json`` files below a folder, in order of their names, then the unreadable folders.

    Follows links to folders and reads each folder once. Skips pipes and devices, which could block,
    and returns dangling links.
    """
    skipped: list[SkippedFile] = []
    found: list[tuple[str, str]] = []
    top = os.path.realpath(folder)
    seen = {top}

    def is_new(path: str) -> bool:
        real = os.path.realpath(path)
        if os.path.commonpath((real, top)) == real and real != top:
            # Its other contents were not requested.
            skipped.append(SkippedFile(path, "a link to a folder around it", defect=False))
            return False
        is_first = real not in seen
        seen.add(real)
        return is_first

    left = [folder]
    while left:
        parent = left.pop()
        # Without its links, which all of its files share.
        place = os.path.join(os.path.realpath(parent), "")
        folders = []
        try:
            with os.scandir(parent) as entries:
                shown = [one for one in entries if hidden or not one.name.startswith(".")]
        except OSError as error:
            skipped.append(SkippedFile(parent, f"cannot be read: {error.strerror or error}"))
            continue
        for entry in shown:
            path = entry.path
            if os.path.isdir(path) if entry.is_symlink() else entry.is_dir():
                folders.append(path)
            elif entry.name.endswith(".json"):
                if entry.is_file(follow_symlinks=False):
                    found.append((path, place + entry.name))
                elif os.path.isfile(path) or not os.path.exists(path):
                    found.append((path, os.path.realpath(path)))
        left += reversed([path for path in sorted(folders) if is_new(path)])
    return [*sorted(found, key=lambda one: natural_key(one[0])), *skipped]


def read(
    path: str, data: bytes | None = None
) -> RunRecord | AllReduceRecord | Study | Predictions | SkippedFile:
    """The content of a file, of these bytes if they were read already.

    A SkippedFile if it is faulty, or another document.
    """
    try:
        found = json_of(path, read_file(path) if data is None else data)
        kind = found.get("kind") if isinstance(found, dict) and "schema" in found else None
        kind = kind if isinstance(kind, str) else RunRecord.kind
        if kind in _OTHERS:
            other = f"holds a document of the kind {kind!r}, not a run record"
            return SkippedFile(path, other, defect=False)
        form = _KINDS.get(kind, RunRecord)
        with document(path, _NAMES[form]):
            return form.from_dict(found)
    except PathError as error:
        return SkippedFile(path, error.reason)


def record_of(document: object) -> RunRecord | AllReduceRecord:
    """The record of a run or of reductions in a JSON value; raises a ValueError for another."""
    reduced = isinstance(document, dict) and document.get("kind") == AllReduceRecord.kind
    return (AllReduceRecord if reduced else RunRecord).from_dict(document)
