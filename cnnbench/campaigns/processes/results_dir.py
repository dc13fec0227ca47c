"""Results directories of commands that start processes: records, logs, journal, lock."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from cnnbench.base.lock import FILE, hold
from cnnbench.base.reading import parse_json, read_file
from cnnbench.base.text.terminal import print_warning
from cnnbench.errors import BenchmarkError, FlagError, PathError
from cnnbench.records.codec import TIME, encode, to_text
from cnnbench.records.files import write_all, write_whole

_Folder = TypeVar("_Folder", bound="ResultsFolder")  # typing.Self, of Python 3.11

JOURNAL = "journal.jsonl"
LOGS = "logs"

_CRC = b', "crc": '


class ResultsFolder:
    """A results directory, made if missing, and locked for one process within its context.

    The first event of its journal is named like its `command`. FlagError if it cannot be used or is
    locked, is not empty (unless `used`), or holds the journal of another command. `hint` is what
    can be done with earlier results besides naming another folder; it ends in "or ".
    """

    command: ClassVar[str] = ""

    def __init__(
        self,
        folder: str | Path,
        *,
        journal: str = JOURNAL,
        timespec: str = "seconds",
        folders: Sequence[str] = (),
        used: bool = False,
        hint: str = "",
    ) -> None:
        self.folder = Path(folder)
        self.journal = Journal(self.folder / journal, timespec)
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(hold("results", str(folder), print_warning))
                there = set(os.listdir(folder)) - {FILE}
                if not used and there:
                    reason = f"is not empty; {hint}name another folder"
                    raise FlagError("results", str(folder), reason)
                self._refuse_journals({name for name in there if name.endswith(".jsonl")})
                for name in folders:
                    (self.folder / name).mkdir(exist_ok=True)
            except OSError as error:
                reason = f"cannot be used: {error.strerror}"
                raise FlagError("results", str(folder), reason) from None
            self._lock = stack.pop_all()

    def __enter__(self: _Folder) -> _Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _refuse_journals(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            path = self.folder / name
            own = path == self.journal.path
            events = {event.get("event") for event in self.journal.read()} if own else set()
            empty = path.is_file() and not path.stat().st_size
            if self.command not in events and not empty:
                reason = f"{name} in it is no journal of cnnbench {self.command}"
                raise FlagError("results", str(self.folder), f"{reason}; name another folder")

    def log(self, name: str) -> Path:
        """Log file of a process."""
        return self.folder / LOGS / f"{name}.log"

    def keep(self, document: Mapping[str, Any], target: Path) -> None:
        """Writes a record (JSON values) atomically."""
        self.write(target, to_text(document).encode("ascii"))

    def write(self, target: Path, data: bytes) -> None:
        """Writes a file atomically and durably."""
        with writing(target):
            write_whole(target, data)


class ResumableFolder(ResultsFolder):
    """A results directory whose work later sessions can continue, with the same question.

    `earlier` has the events of earlier sessions. FlagError unless the directory is empty or, with
    `resume`, holds the same question (JSON values).
    """

    noun: ClassVar[str] = ""

    def __init__(
        self,
        folder: str,
        question: Mapping[str, Any],
        *,
        resume: bool,
        journal: str = JOURNAL,
        folders: Sequence[str] = (),
    ) -> None:
        begun = os.path.exists(os.path.join(folder, journal))
        hint = "go on with what is there by --resume, or " if begun else ""
        used = begun and resume
        super().__init__(folder, journal=journal, folders=folders, used=used, hint=hint)
        self.question: dict[str, Any] = {n: encode(value) for n, value in question.items()}
        self.earlier = tuple(self.journal.read())
        for event in self.earlier:
            then = event.get("question") or {}
            differ = [name for name, value in self.question.items() if then.get(name) != value]
            if event.get("event") == self.command and differ:
                self._lock.close()
                reason = f"holds a {self.noun} that differs in {', '.join(differ)}"
                raise FlagError("results", folder, f"{reason}; name another folder")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Reports errors of writing to a results directory, such as a full disk, as BenchmarkError."""
    try:
        yield
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror or error}"
        raise BenchmarkError(message) from error


@dataclass(frozen=True, kw_only=True)
class JournalEvent:
    """A line of a journal; further keys depend on the kind of event.

    Attributes:
      event: kind of event.
      time: time of the event, ISO 8601, UTC.
    """

    more_keys: ClassVar[bool] = True

    event: str
    time: str = field(metadata=TIME)


class Journal:
    """Events, one JSON object per line, oldest first; append-only.

    A kill can tear the last line only; such a line is skipped when reading, and never joined with
    the next one when writing. Lines end in a CRC-32 of the rest, since results follow from their
    values; those of earlier versions do not. Times have the precision of `datetime.isoformat`.
    """

    def __init__(self, path: Path, timespec: str = "seconds") -> None:
        self.path = path
        self._timespec = timespec

    def read(self, *events: str) -> Iterator[dict[str, Any]]:
        """The events so far, all or those of these names; none if there is no file.

        PathError for a line that has changed since it was written.
        """
        try:
            data = read_file(self.path)
        except PathError:
            return
        for number, line in enumerate(data.split(b"\n"), start=1):
            facts, mark, crc = line.rpartition(_CRC)
            if mark and line.endswith(b"}") and crc != b"%d}" % zlib.crc32(facts):
                reason = f"line {number} is damaged; restore the file, or name another folder"
                raise PathError(str(self.path), reason)
            with contextlib.suppress(ValueError):
                event = parse_json(line)
                if isinstance(event, dict) and (not events or event.get("event") in events):
                    yield event

    def add(self, event: str, **facts: Any) -> None:
        """Appends an event, with the time."""
        now = datetime.now(timezone.utc).isoformat(timespec=self._timespec)
        known = vars(JournalEvent(event=event, time=now))
        line = json.dumps({**known, **facts}, default=str)[:-1]
        line += f"{_CRC.decode()}{zlib.crc32(line.encode())}}}\n"
        with writing(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                size = os.lseek(descriptor, 0, os.SEEK_END)
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = "\n" + line
                write_all(descriptor, line.encode("ascii"))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
