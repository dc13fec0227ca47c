"""Finds and reads the records and other documents in files and folders."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, TypeAlias

from cnnbench.base.files import converting_parse_errors, json_from_content, read_file, read_json
from cnnbench.base.notebook import short_repr
from cnnbench.base.tables import natural_key
from cnnbench.base.terminal import ProgressLine
from cnnbench.base.text import count_text
from cnnbench.errors import PathError
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.campaigns import TuneDocument
from cnnbench.records.codec import OPTIONAL, Document, json_document
from cnnbench.records.explanation import Explanation
from cnnbench.records.profiles import StepProfile
from cnnbench.records.roofline import Roofline
from cnnbench.records.run import RunRecord

Study: TypeAlias = Explanation | Roofline | StepProfile | TuneDocument
"""Results of a command about one or more processes, in addition to their records."""


_NAMES: Mapping[type[RunRecord | AllReduceRecord | Study], str] = {
    RunRecord: "a run record",
    AllReduceRecord: "an all-reduce measurement",
    Explanation: "an explanation",
    Roofline: "a roofline",
    StepProfile: "a profile of steps",
    TuneDocument: "a search of flags",
}


_KINDS = {kind.kind: kind for kind in _NAMES}


_WILD = ("*", "?", "[")


JOURNAL = "events.jsonl"
"""File name of the journal of a campaign."""


SETTINGS = re.compile(r"settings(-.+)?\.json")
"""Names of the files with the settings of a campaign, which are in the folder of its journal."""


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file or folder from which no record was read, and the reason.

    Attributes:
      path: path of the file or folder.
      reason: why it was skipped, in words that follow the path and a colon.
      defect: whether it is defective, rather than another document or a second copy of a record.
      differs: whether it is a copy of a record with less content than the copy that was read.
    """

    path: str
    reason: str
    defect: bool = True
    differs: bool = field(default=False, metadata=OPTIONAL)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The documents that `load_records` found: records, sorted by path, and other documents that
    reports can show.
    """

    records: tuple[RunRecord, ...]
    skipped: tuple[SkippedFile, ...]
    allreduces: tuple[AllReduceRecord, ...] = ()
    studies: tuple[Study, ...] = ()

    def __repr__(self) -> str:
        counts = (
            count_text(self.records, "run", "runs"),
            count_text(self.allreduces, "all-reduce run", "all-reduce runs"),
            count_text(self.skipped, "skipped file", "skipped files"),
        )
        return short_repr(self, ", ".join(counts))

    @property
    def all_records(self) -> tuple[RunRecord | AllReduceRecord, ...]:
        """Records of runs and of all-reduce measurements, one per process."""
        return (*self.records, *self.allreduces)

    @property
    def defects(self) -> tuple[SkippedFile, ...]:
        """The skipped files that are defective."""
        return tuple(file for file in self.skipped if file.defect)


def load_records(
    paths: Iterable[str | os.PathLike[str]],
    *,
    hidden: bool = True,
    progress: ProgressLine | None = None,
) -> Loaded:
    """Reads all records in the given files and folders (with subfolders), and in files that match
    the given patterns.

    If there are several copies of a record (with the same run_id), the most complete one is
    returned: first by status "ok", then by the number of steps or reductions, then by length. File
    names are irrelevant. PathError if a path does not exist, or a pattern matches nothing.

    Args:
      paths: files; folders, of which every ``*.json`` is read, links followed; patterns with ``*``,
        ``?``, ``[...]`` and ``**``.
      hidden: whether to read names in a folder that begin with a dot.
      progress: shows the number of files read.
    """
    runs: dict[str, tuple[RunRecord | AllReduceRecord, str]] = {}
    studies: list[Study] = []
    listed = [*find_files(paths, hidden)]
    skipped: list[SkippedFile] = []
    progress = progress or ProgressLine.silent()
    progress.start("reading", len(listed))
    for number, path in enumerate(listed):
        progress.update(number)
        if isinstance(path, SkippedFile):
            skipped.append(path)
            continue
        loaded = read_result(path)
        if isinstance(loaded, SkippedFile):
            skipped.append(loaded)
        elif isinstance(loaded, Study):
            # A run can write its roofline to two files, so the second one is left out.
            studies += [loaded] if loaded not in studies else []
        elif loaded.run_id not in runs:
            runs[loaded.run_id] = loaded, path
        else:
            skipped.append(_keep_better(runs, loaded, path))
    progress.finish()
    everything = [record for record, _ in runs.values()]
    return Loaded(
        tuple(record for record in everything if isinstance(record, RunRecord)),
        tuple(skipped),
        tuple(record for record in everything if isinstance(record, AllReduceRecord)),
        tuple(studies),
    )


def _keep_better(
    runs: dict[str, tuple[RunRecord | AllReduceRecord, str]],
    record: RunRecord | AllReduceRecord,
    path: str,
) -> SkippedFile:
    """Keeps the more complete of two copies of a record in `runs`. Returns the file of the less
    complete copy as skipped.
    """
    other, its_path = runs[record.run_id]
    what = f"copy of run {record.run_id}"
    if record == other:
        return SkippedFile(path, f"a second {what}", defect=False)
    if _completeness(record) > _completeness(other):
        runs[record.run_id] = record, path
        path, its_path = its_path, path
    reason = f"a {what} that differs from {its_path}, which is more complete and is used instead"
    return SkippedFile(path, reason, defect=False, differs=True)


def _completeness(record: RunRecord | AllReduceRecord) -> tuple[bool, int, int, str]:
    measured = record.step_seconds if isinstance(record, RunRecord) else record.rows
    text = repr([getattr(record, attribute.name) for attribute in fields(record)])
    return record.status == "ok", len(measured), len(text), text


@json_document("pytest --cnnbench-update")
@dataclass(frozen=True)
class BaselineDocument(Document):
    """Content of a baseline file, schema 1: the records with which later results are compared.

    Attributes:
      records: the records to compare with.
    """

    kind: ClassVar[str] = "baseline"
    schema: ClassVar[int] = 1

    records: tuple[RunRecord, ...]


def load_run(path: str) -> RunRecord:
    """Reads the record of a run from a file. PathError if the file does not contain one."""
    with converting_parse_errors(path, "a run record"):
        return RunRecord.from_dict(read_json(path))


def find_files(
    paths: Iterable[str | os.PathLike[str]], hidden: bool = True
) -> Iterator[str | SkippedFile]:
    """Yields each file that `load_records` reads, without duplicates. Files of the same given path
    are sorted by name.
    """
    seen: set[str] = set()
    for path in paths:
        for file in _expand_path(os.fspath(path), hidden):
            if isinstance(file, SkippedFile):
                yield file
            elif file[1] not in seen:
                seen.add(file[1])
                yield file[0]


_Found: TypeAlias = "tuple[str, str] | SkippedFile"
"""The path of a file as the user gave it, and the path with resolved links."""


def _expand_path(path: str, hidden: bool) -> list[_Found]:
    if os.path.isdir(path):
        return _json_files(path, hidden)
    if os.path.exists(path):
        return [(path, os.path.realpath(path))]
    if not any(c in path for c in _WILD):
        raise PathError(path, "no such file or folder")
    matches = sorted(glob.glob(path, recursive=True), key=natural_key)
    matches = [match for match in matches if not _is_settings(match)]
    if not matches:
        raise PathError(path, "no file matches this pattern")
    return [file for match in matches for file in _expand_path(match, hidden)]


def _is_settings(path: str) -> bool:
    """Whether a file contains the settings of a campaign, which are not a result."""
    folder, name = os.path.split(path)
    return bool(SETTINGS.fullmatch(name)) and os.path.exists(os.path.join(folder, JOURNAL))


def _json_files(folder: str, hidden: bool) -> list[_Found]:
    """Finds the ``*.json`` files in a folder and its subfolders, sorted by name. Unreadable folders
    come last.

    Follows links to folders and reads each folder once. Skips pipes and devices, which could block,
    and returns dangling links.
    """
    skipped: list[SkippedFile] = []
    files: list[tuple[str, str]] = []
    top = os.path.realpath(folder)
    seen = {top}

    def is_new_folder(path: str) -> bool:
        real = os.path.realpath(path)
        if os.path.commonpath((real, top)) == real and real != top:
            # This link leads to a folder that contains the link; following it would never end.
            skipped.append(
                SkippedFile(path, "a link to a folder that contains the link", defect=False)
            )
            return False
        is_first = real not in seen
        seen.add(real)
        return is_first

    left = [folder]
    while left:
        parent = left.pop()
        # To save time, links in the folder's path are resolved once for all files in it.
        place = os.path.join(os.path.realpath(parent), "")
        folders = []
        try:
            with os.scandir(parent) as entries:
                shown = [entry for entry in entries if hidden or not entry.name.startswith(".")]
        except OSError as error:
            skipped.append(SkippedFile(parent, f"cannot be read: {error.strerror or error}"))
            continue
        for entry in shown:
            path = entry.path
            if os.path.isdir(path) if entry.is_symlink() else entry.is_dir():
                folders.append(path)
            elif entry.name.endswith(".json") and not _is_settings(path):
                if entry.is_file(follow_symlinks=False):
                    files.append((path, place + entry.name))
                elif os.path.isfile(path) or not os.path.exists(path):
                    files.append((path, os.path.realpath(path)))
        left += reversed([path for path in sorted(folders) if is_new_folder(path)])
    return [*sorted(files, key=lambda pair: natural_key(pair[0])), *skipped]


def read_result(
    path: str, data: bytes | None = None
) -> RunRecord | AllReduceRecord | Study | SkippedFile:
    """Reads the document in a file. Returns a SkippedFile if the file is defective or contains a
    document of another kind.

    Pass `data` if the file was already read.
    """
    try:
        content = json_from_content(path, read_file(path) if data is None else data)
        kind = content.get("kind") if isinstance(content, dict) and "schema" in content else None
        kind = kind if isinstance(kind, str) else RunRecord.kind
        if kind not in _KINDS:
            other = f"contains a document of the kind {kind!r}, not a run record"
            return SkippedFile(path, other, defect=False)
        form = _KINDS[kind]
        with converting_parse_errors(path, _NAMES[form]):
            return form.from_dict(content)
    except PathError as error:
        return SkippedFile(path, error.reason)


def record_from_json(document: object) -> RunRecord | AllReduceRecord:
    """Creates a record of a run or of all-reduces. ValueError for other JSON values."""
    reduced = isinstance(document, dict) and document.get("kind") == AllReduceRecord.kind
    return (AllReduceRecord if reduced else RunRecord).from_dict(document)
