"""Results directories of commands that start processes: records, logs, journal, lock."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from cnnbench.base.lock import FILE, Scratch, hold
from cnnbench.base.reading import parse_json, read_file
from cnnbench.base.text.terminal import print_warning
from cnnbench.campaigns.processes.question import Question, differences
from cnnbench.errors import BenchmarkError, FlagError, PathError
from cnnbench.records.codec import TIME, to_text
from cnnbench.records.files import write_all, write_whole
from cnnbench.records.parts import LostProcess

_Folder = TypeVar("_Folder", bound="ResultsFolder")  # typing.Self, of Python 3.11

JOURNAL = "journal.jsonl"
LOGS = "logs"
PROCESS = "process"
"""Event of a journal: the end of a process."""

_CRC = b', "crc": '


class ResultsFolder:
    """A results directory, made if missing, and locked for one process within its context.

    The folder is opened once. Every write goes through this class, and is refused with a
    BenchmarkError where the path no longer names the folder that was opened: it was moved, replaced
    or unmounted. Processes write to `unfinished` paths elsewhere; `take` moves what they leave.

    Its journal has an event named like its `command` for every session, with the question: `begin`
    adds it. `earlier` has the events before this session. FlagError if the folder cannot be used or
    is locked; if it is not empty, unless it is `shared`; if it holds the journal of another
    command; and with `resume`, if it holds no `noun` and is not shared, or one with another
    question or without one (those of 1.0.0). `inside` are folders that it makes; `within` is the
    campaign's folder that contains this one.
    """

    command: ClassVar[str] = ""
    noun: ClassVar[str] = ""
    file: ClassVar[str] = JOURNAL
    timespec: ClassVar[str] = "seconds"
    shared: ClassVar[bool] = False
    inside: Sequence[str] = ()

    def __init__(
        self,
        folder: str | Path,
        question: Question | None = None,
        *,
        resume: bool = False,
        within: ResultsFolder | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.journal = Journal(self.folder / self.file, self.timespec, self.check)
        self._within = within
        self.question = question
        self.resume = resume
        if resume and question is not None and not self.shared and not self.folder.is_dir():
            raise self._refused(self.nothing())
        if within is not None:
            within.check()
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, opened)  # open, its inode number is not used again
                self._state = os.fstat(opened)
                stack.enter_context(hold("results", str(folder), print_warning))
                there = {path.name for path in self.folder.iterdir() if not _is_unused(path)}
                if there and not (resume or self.shared):
                    go_on = "go on with what is there by --resume, or "
                    hint = go_on if self.noun and self.file in there else ""
                    raise self._refused(f"is not empty; {hint}name another folder")
                self._refuse_journals({name for name in there if name.endswith(".jsonl")})
                self.earlier = tuple(self.journal.read())
                self._groups = max([int(one.get("group", 0)) for one in self.earlier], default=0)
                if resume and question is not None:
                    self._refuse_other(question)
                for name in self.inside:
                    (self.folder / name).mkdir(exist_ok=True)
            except OSError as error:
                raise self._refused(f"cannot be used: {error.strerror}") from None
            self._held = stack.pop_all()

    def __enter__(self: _Folder) -> _Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def check(self) -> None:
        """Raises a BenchmarkError if the path no longer names the folder that was opened."""
        if self._within is not None:
            self._within.check()
        with contextlib.suppress(OSError):
            if os.path.samestat(self._state, os.stat(self.folder)):
                return
        gone = "is no longer the folder that this command opened: it was moved, replaced or "
        raise BenchmarkError(f"{self.folder}: {gone}unmounted; nothing more is written there")

    def begin(self, **facts: object) -> None:
        """Adds the event of this session, with its question."""
        asked = {} if self.question is None else {"question": self.question.to_json()}
        self.journal.add(self.command, **asked, **facts)

    @classmethod
    def seed_of(cls, folder: str, suite: str | None = None) -> int | None:
        """The seed of the campaign that a folder holds; None if there is none."""
        events = Journal(Path(folder) / cls.file).read()
        policy = (question_of(events, cls.command, suite) or {}).get("policy", {})
        seed = policy.get("seed")
        return seed if isinstance(seed, int) else None

    @classmethod
    def nothing(cls) -> str:
        """Why --resume is refused where nothing was begun."""
        return f"holds no {cls.noun} of cnnbench {cls.command} to go on with"

    @classmethod
    def too_old(cls) -> str:
        """Why --resume is refused where an earlier version began."""
        return (
            f"the {cls.noun} in it was begun by an earlier version of cnnbench: compare, report "
            "and history read it, but it cannot go on; name another folder"
        )

    def _refused(self, reason: str) -> FlagError:
        return FlagError("results", str(self.folder), reason)

    def _refuse_other(self, question: Question) -> None:
        now = question.to_json()
        begun = question_of(self.earlier, self.command, now["policy"].get("suite"))
        if begun is None and self.shared:
            return
        if begun is None:
            raise self._refused(self.nothing())
        if not begun.keys() >= now.keys():
            raise self._refused(self.too_old())
        if differ := differences(begun, now):
            reason = f"the {self.noun} in it differs in {differ}; name another folder"
            raise self._refused(reason)

    def _refuse_journals(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            path = self.folder / name
            own = path == self.journal.path
            events = {event.get("event") for event in self.journal.read()} if own else set()
            empty = path.is_file() and not path.stat().st_size
            if self.command not in events and not empty:
                reason = f"{name} in it is no journal of cnnbench {self.command}"
                raise self._refused(f"{reason}; name another folder")

    def log(self, name: str) -> Path:
        """Log file of a process."""
        return self.folder / LOGS / f"{name}.log"

    def pending(self, name: str) -> Path:
        """Path of the record of a process until all of its batch have ended."""
        return self.log(name).with_suffix(".pending")

    @cached_property
    def processes(self) -> dict[str, dict[str, Any]]:
        """The last event of each process so far, by its name."""
        return {str(one.get("name")): one for one in self.earlier if one.get("event") == PROCESS}

    @cached_property
    def lost(self) -> dict[str, list[list[LostProcess]]]:
        """Processes that were ended from outside, in each attempt that was repeated, by batch."""
        found: dict[str, list[list[LostProcess]]] = {}
        for event in self.earlier:
            if event.get("event") == "lost" and event.get("again"):
                lost = [LostProcess(side=one["side"], how=one["how"]) for one in event["lost"]]
                found.setdefault(event["pair"], []).append(lost)
        return found

    @property
    def repeated(self) -> int:
        """Number of attempts that were repeated."""
        return sum(map(len, self.lost.values()))

    def next_group(self) -> int:
        """A number for processes that were alive at once, one more than the last one."""
        self._groups += 1
        return self._groups

    def accept(self, name: str, target: Path | None) -> None:
        """Gives the record of a process its final name, if it is pending and there is one."""
        pending = self.pending(name)
        if target is not None and pending.exists():
            with self.writing(pending):
                pending.replace(target)

    def set_aside(self, name: str, log: Path, attempt: str) -> None:
        """Renames the pending record and the log of a process that will be run again."""
        for path in (self.pending(name), log):
            with self.writing(path):
                path.replace(path.with_stem(f"{name}-{attempt}"))

    def keep(self, document: Mapping[str, Any], target: Path) -> None:
        """Writes a record (JSON values) atomically."""
        self.write(target, to_text(document).encode("ascii"))

    def write(self, target: Path, data: bytes) -> None:
        """Writes a file atomically and durably, in a folder that is made if missing."""
        with self.writing(target):
            target.parent.mkdir(exist_ok=True)
            write_whole(target, data)

    def remove(self, path: Path) -> None:
        """Removes a file or a folder, if there is one."""
        with self.writing(path):
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Reports errors of writing to the folder, such as a full disk, as BenchmarkError."""
        self.check()
        with _writing(path):
            yield

    @cached_property
    def _scratch(self) -> Path:
        with _writing(Path(tempfile.gettempdir())):
            return self._held.enter_context(Scratch(f"cnnbench-{self.command}-")).path

    def unfinished(self, target: Path) -> Path:
        """Path outside of the folder at which a process writes what `take` moves to `target`."""
        return self._scratch / "-".join(target.relative_to(self.folder).parts)

    def take(self, target: Path) -> None:
        """Moves the file or folder that a process has left into this folder, if it left one."""
        made = self.unfinished(target)
        if not made.is_dir():
            if made.exists():
                self.write(target, made.read_bytes())
            return
        with self.writing(target):
            shutil.copytree(made, target, dirs_exist_ok=True)
            shutil.rmtree(made)


def _is_unused(path: Path) -> bool:
    """Whether a path is a lock, or an empty folder that a killed campaign has left."""
    return path.name == FILE or (path.is_dir() and not any(path.iterdir()))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
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

    def __init__(
        self, path: Path, timespec: str = "seconds", check: Callable[[], None] = lambda: None
    ) -> None:
        self.path = path
        self._timespec = timespec
        self._check = check

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
        self._check()
        with _writing(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                size = os.lseek(descriptor, 0, os.SEEK_END)
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = "\n" + line
                write_all(descriptor, line.encode("ascii"))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def question_of(
    events: Iterable[Mapping[str, Any]], command: str, suite: str | None = None
) -> dict[str, Any] | None:
    """The last question of a command in a journal, of a suite if it has several; None without."""
    found = None
    for one in events:
        question = one.get("question") or {}
        policy = question.get("policy", one)
        if one.get("event") == command and suite in (None, policy.get("suite")):
            found = question
    return found
