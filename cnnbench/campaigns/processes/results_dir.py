"""The results directory of a campaign: identity, journal and files.

Every journal begins with the identity of the campaign (`CampaignIdentity`). It consists of the
flags of all plans, the measured code with uncommitted changes, software and machine, the decision
thresholds and the seed. The code is checked again before each process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from cnnbench.base import plugins
from cnnbench.base.files import FILE, TemporaryFolder, lock_folder, parse_json, read_file
from cnnbench.base.terminal import print_warning
from cnnbench.base.text import first_few, labels_from_config
from cnnbench.campaigns.processes.child import ResolvedRun, environment_identity, source_digest
from cnnbench.errors import BenchmarkError, FlagError, PathError
from cnnbench.flags.params import FLAGS, OBSOLETE
from cnnbench.machine import repository
from cnnbench.records.codec import TIME, encode
from cnnbench.records.documents import json_document
from cnnbench.records.files import remove_abandoned_files, write_all, write_atomically
from cnnbench.records.run import KilledProcess, Subject

# Identity of a campaign, which `--resume` must match.

_NAMED = 8  # Maximum number of differences in an error message.
_LENGTH = 40  # Maximum number of characters of a value in an error message.
_NOT_SET = "not set"


class CodeChangedError(BenchmarkError):
    """The measured code was changed during a campaign.

    The campaign ends before its next process.
    """

    @classmethod
    def for_changed_code(cls, code_name: str) -> CodeChangedError:
        """Creates the error. `code_name` names the changed code, such as a repository."""
        return cls(f"the measured code was changed ({code_name}); earlier measurements are kept")


class ConfigurationIdentity(NamedTuple):
    """The identity of one configuration that a campaign measures: its flags and its code.

    Attributes:
      identity: values that identify the plan, by the names of flags.
      config: parameters of the runs, if the plug-ins that they name are measured; None if only
        commits are.
      folder: folder in which the runs start; None means the working directory.
      parts: files that the plug-ins use; see `plugins.parts`.
    """

    identity: Mapping[str, Any]
    config: Mapping[str, Any] | None
    folder: Path | None = None
    parts: Sequence[str] = ()

    def measured_code(self) -> Subject:
        """The repository, commit and uncommitted changes of the measured code at the time of the
        call.
        """
        if self.config is None:
            return Subject()
        subject = repository.measured_code(self.config, self.folder, self.parts)
        return subject.with_labels(labels_from_config(self.config)) or Subject()


@dataclass(frozen=True, kw_only=True)
class CampaignIdentity:
    """Everything that must be unchanged when `--resume` continues a campaign.

    Attributes:
      plans: plans by name. If a plan exists in only one of two identities, the identities still
        match.
      facts: recorded properties of this machine.
      policy: other values that determine which processes run and how their results are judged.
      own: whether the processes run the code of this cnnbench installation.
    """

    plans: Mapping[str, ConfigurationIdentity]
    facts: Mapping[str, Any]
    policy: Mapping[str, Any]
    own: bool = True

    @cached_property
    def initial_code_state(self) -> dict[str, Any]:
        """State of the measured code, such as commits, at the time when this property was first
        read.
        """
        return self._read_code_state()

    def to_json(self) -> dict[str, Any]:
        """The identity as JSON values, which `identity_differences` compares."""
        known = environment_identity(self.facts).items()
        software = {name.removeprefix("env_"): value for name, value in known}
        software["interpreter"] = sys.executable
        plans = {name: plan.identity for name, plan in self.plans.items()}
        parts = {"code": self.initial_code_state, "software": software, "policy": self.policy}
        plan: dict[str, Any] = json.loads(json.dumps(encode({"plans": plans, **parts})))
        return plan

    def raise_if_code_changed(self) -> None:
        """Raises CodeChangedError if the measured code has changed since the first read of
        `initial_code_state`.
        """
        then, now = self.initial_code_state, self._read_code_state()
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if changed:
            raise CodeChangedError.for_changed_code(", ".join(changed))

    def _read_code_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"sources of cnnbench": source_digest()} if self.own else {}
        places: dict[str, ConfigurationIdentity] = {}  # The keys name the code in error messages.
        for name, plan in self.plans.items():
            files = ", ".join(plugins.plugin_files_of_flags(plan.config or {}))
            places.setdefault(files if plan.folder is None else name, plan)
        for name, plan in places.items():
            subject, of = plan.measured_code(), f" of {name}" if name else ""
            known = {"repository": subject.repository, "commit": subject.revision}
            known["uncommitted changes"] = subject.changes
            state |= {f"{what}{of}": value for what, value in known.items() if value is not None}
        return state


def configuration_identity(resolved: ResolvedRun, /, **more: object) -> ConfigurationIdentity:
    """Creates the identity of runs in the working directory. `more` contains additional values."""
    identity = identity_values(resolved.identity, **more)
    return ConfigurationIdentity(identity, resolved.config, parts=resolved.parts)


def identity_values(flags: Mapping[str, Any], /, **more: object) -> dict[str, Any]:
    """The values that identify a run: flags that differ from their defaults, and `more`."""
    usual = {spec.name: encode(spec.default) for spec in (*FLAGS, *OBSOLETE)}
    chosen = {n: v for n, v in flags.items() if n not in usual or usual[n] != encode(v)}
    return {**chosen, **more}


def identity_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes how two identities of a campaign, as JSON values, differ; "" if they match."""
    pairs = {
        f"{flag} of {name}" if name else flag: (then["plans"][name], now["plans"][name], flag)
        for name in then["plans"]
        if name in now["plans"]
        for flag in {**then["plans"][name], **now["plans"][name]}
    }
    for part in ("code", "software", "policy"):
        before, after = then[part], now[part]
        pairs |= {name: (before, after, name) for name in {**before, **after}}
    texts = [
        f"{name} ({_value_text(before, key)}, now {_value_text(after, key)})"
        for name, (before, after, key) in pairs.items()
        if before.get(key) != after.get(key)
    ]
    return first_few(texts, _NAMED, ", ") if texts else ""


def _value_text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    text = _NOT_SET if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 3]}..."


# Results directories of commands that start processes, with records, logs, journal and lock.

LOGS = "logs"

SESSION, PROCESS, LOST, NOTE, END = "session", "process", "lost", "note", "end"
"""Kinds of events in a journal; see `JournalEvent`."""

CHECKSUM = "crc"
"""Key of the checksum of all bytes before a line."""

_CRC = f', "{CHECKSUM}": '.encode()
_FIRST = b'{"event": "'
"""The first bytes of a journal."""

_RESTORE = "restore the file, or name another folder"
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("campaign", "note", "name", "status", "problem"), str),
    **dict.fromkeys(("suite", "stamp", "key"), str),
    **dict.fromkeys(("group", "repeat", "pairs"), int),
    **dict.fromkeys(("seconds", "alpha"), (int, float)),
    **dict.fromkeys(("sides", "policy", "question"), dict),
    **dict.fromkeys(("looks", "verdicts", "metrics", "allowed", "files", "names"), list),
}


@dataclass(frozen=True, kw_only=True)
class CampaignKind:
    """What all campaigns of one command have in common: names, and the layout of their folders.

    Attributes:
      command: name of the command, in the events of its sessions.
      noun: name of what --resume continues, for messages; "" if the command has no --resume.
      journal: file name of the journal.
      shared: whether the folder may contain other files and the campaigns of several suites.
      log, pending: paths of a process's log, and of its record until its whole batch has ended.
        "{}" is replaced by the name of the process.
      subfolders: subfolders to create.
      named_files: patterns of files that must be named in the journal.
    """

    command: str
    noun: str = ""
    journal: str = "journal.jsonl"
    shared: bool = False
    log: str = f"{LOGS}/{{}}.log"
    pending: str = f"{LOGS}/{{}}.pending"
    subfolders: Sequence[str] = ()
    named_files: Sequence[str] = ()

    @property
    def no_campaign_text(self) -> str:
        """Error message for --resume if the results folder contains no campaign."""
        return f"contains no {self.noun} of cnnbench {self.command} that can be continued"

    @property
    def too_old_text(self) -> str:
        """Error message for --resume if a version that is too old has begun the campaign."""
        return (
            f"the {self.noun} in it was begun by an earlier version of cnnbench: compare, report "
            "and history read it, but it cannot be continued; name another folder"
        )

    def last_identity(
        self, events: Iterable[Mapping[str, Any]], suite: str | None = None
    ) -> dict[str, Any] | None:
        """The identity of the last campaign in the events of a journal; None if there is none.

        If `suite` is given, only campaigns of this suite are considered.
        """
        last = None
        for event in events:
            identity = event.get("question") or {}
            policy = identity.get("policy", event)
            if event.get("campaign") == self.command and suite in (None, policy.get("suite")):
                last = identity
        return last

    def stored_seed(self, folder: str, suite: str | None = None) -> int | None:
        """The random seed of the last campaign in a folder (see `last_identity`), or None."""
        events = Journal(Path(folder) / self.journal).read()
        seed = (self.last_identity(events, suite) or {}).get("policy", {}).get("seed")
        return seed if isinstance(seed, int) else None


class ResultsFolder:
    """The results directory of a campaign. It is created if necessary, and locked until the context
    ends.

    The folder is opened once, and every write uses this class. If the path later names a different
    folder (because the folder was moved, replaced or unmounted), writing raises BenchmarkError.
    Processes write to `unfinished_path` paths outside of the folder; `move_finished` moves their
    files into the folder.

    `add_session_start` adds the event of a session, with the campaign's identity, to the journal.
    `earlier` contains the events before this session. `within` is the folder of the campaign that
    contains this folder.

    FlagError is raised if the folder cannot be used or is locked, if it is not empty (unless its
    kind is `shared`), or if it contains the journal of a different command. With `resume`,
    FlagError is also raised if the folder contains no campaign of its kind (unless it is `shared`),
    if the campaign's identity differs or is missing (as in version 1.0.0), or if there are files
    that match `kept` and are not named in the journal.
    """

    def __init__(
        self,
        kind: CampaignKind,
        folder: str | Path,
        identity: CampaignIdentity | None = None,
        *,
        resume: bool = False,
        within: ResultsFolder | None = None,
    ) -> None:
        self.kind = kind
        self.folder = Path(folder)
        self.journal = Journal(self.folder / kind.journal, self.raise_if_replaced)
        self._within = within
        self.identity = identity
        self.resume = resume
        if resume and identity is not None and not kind.shared and not self.folder.is_dir():
            raise self._results_flag_error(kind.no_campaign_text)
        if within is not None:
            within.raise_if_replaced()
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
                # The folder stays open, so that its inode number is not reused.
                stack.callback(os.close, opened)
                self._state = os.fstat(opened)
                warn = partial(print_warning, name="lock")
                stack.enter_context(lock_folder("results", str(folder), warn))
                there = {
                    path.name for path in self.folder.iterdir() if not is_lock_or_empty_folder(path)
                }
                if there and not (resume or kind.shared):
                    go_on = "continue with --resume, or "
                    hint = go_on if kind.noun and kind.journal in there else ""
                    raise self._results_flag_error(f"is not empty; {hint}name another folder")
                self._refuse_journals({name for name in there if name.endswith(".jsonl")})
                self.earlier = tuple(self.journal.read())
                self._groups = max([event.get("group", 0) for event in self.earlier], default=0)
                if resume and identity is not None:
                    self._refuse_other_campaign(identity)
                if resume:
                    self._refuse_unknown_files()
                remove_abandoned_files(self.folder)
                for name in kind.subfolders:
                    (self.folder / name).mkdir(exist_ok=True)
            except OSError as error:
                raise self._results_flag_error(f"cannot be used: {error.strerror}") from None
            self._held = stack.pop_all()

    def __enter__(self) -> ResultsFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def raise_if_replaced(self) -> None:
        """Raises BenchmarkError if the path of the folder now names a different folder."""
        if self._within is not None:
            self._within.raise_if_replaced()
        with contextlib.suppress(OSError):
            if os.path.samestat(self._state, os.stat(self.folder)):
                return
        raise BenchmarkError(
            f"{self.folder}: is no longer the folder that this command opened: it was moved, "
            "replaced or unmounted; nothing more is written there"
        )

    def add_session_start(self, **facts: object) -> None:
        """Adds an event to the journal that says that this session begins, with the campaign's
        identity.
        """
        asked = {} if self.identity is None else {"question": self.identity.to_json()}
        self.journal.add(SESSION, campaign=self.kind.command, **asked, **facts)

    def add_journal_note(self, name: str, /, **facts: object) -> None:
        """Adds values to the journal under a name. Use it for values that cannot be computed from
        records.
        """
        self.journal.add(NOTE, note=name, **facts)

    def earlier_journal_notes(self, name: str) -> list[dict[str, Any]]:
        """The journal's notes with this name from earlier sessions, oldest first."""
        return [event for event in self.earlier if event.get("note") == name]

    def _results_flag_error(self, reason: str) -> FlagError:
        return FlagError("results", str(self.folder), reason)

    def _refuse_other_campaign(self, identity: CampaignIdentity) -> None:
        now, kind = identity.to_json(), self.kind
        earlier_identity = kind.last_identity(self.earlier, now["policy"].get("suite"))
        if earlier_identity is None and kind.shared:
            return
        if earlier_identity is None:
            raise self._results_flag_error(kind.no_campaign_text)
        if not earlier_identity.keys() >= now.keys():
            raise self._results_flag_error(kind.too_old_text)
        if differ := identity_differences(earlier_identity, now):
            reason = f"the {kind.noun} in it differs in {differ}; name another folder"
            raise self._results_flag_error(reason)

    def _refuse_unknown_files(self) -> None:
        if self.earlier and CHECKSUM not in self.earlier[0]:
            return  # Journals of version 1.0.0 do not name files.
        named = {name for event in self.earlier for name in event.get("files", ())}
        paths = (path for pattern in self.kind.named_files for path in self.folder.glob(pattern))
        for path in sorted(paths):
            own = path.relative_to(self.folder)
            if (
                path.is_file()
                and path.name != FILE
                and not named & {str(own.with_suffix("")), str(own.parent)}
            ):
                reason = f"its journal does not name {own}: the journal or the file was changed"
                raise self._results_flag_error(f"{reason}; {_RESTORE}")

    def _refuse_journals(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            path = self.folder / name
            own = path == self.journal.path
            commands = {event.get("campaign") for event in self.journal.read()} if own else set()
            empty = path.is_file() and not path.stat().st_size
            if self.kind.command not in commands and not empty:
                reason = f"{name} in it is not a journal of cnnbench {self.kind.command}"
                raise self._results_flag_error(f"{reason}; name another folder")

    def log_path(self, name: str) -> Path:
        """Path of the log file of a process, by the name of the process."""
        return self.folder / self.kind.log.format(name)

    def pending_record_path(self, name: str) -> Path:
        """Path of a process's record until all processes of its batch have ended."""
        return self.folder / self.kind.pending.format(name)

    @cached_property
    def last_process_events(self) -> dict[str, dict[str, Any]]:
        """The last event about each process in earlier sessions, by name of the process."""
        return {
            str(event.get("name")): event for event in self.earlier if event.get("event") == PROCESS
        }

    @cached_property
    def killed_processes(self) -> dict[str, list[list[KilledProcess]]]:
        """The processes of repeated attempts that were killed from outside, by name of the batch.

        There is one list for each attempt. The OOM killer may have killed a process, for example.
        """
        lost_by_pair: dict[str, list[list[KilledProcess]]] = {}
        for event in self.earlier:
            if event.get("event") == LOST and event.get("again"):
                lost = [
                    KilledProcess(side=process["side"], how=process["how"])
                    for process in event["lost"]
                ]
                lost_by_pair.setdefault(event["pair"], []).append(lost)
        return lost_by_pair

    @property
    def number_of_repeated_attempts(self) -> int:
        """Number of repeated attempts of all batches in the folder together."""
        return sum(map(len, self.killed_processes.values()))

    def next_group_number(self) -> int:
        """Returns a new number for a group of processes that run at the same time."""
        self._groups += 1
        return self._groups

    def journal_names(self, *paths: Path | None) -> list[str]:
        """Converts paths to names for an event in the journal: relative to the folder, without
        suffixes.

        The folder may contain only files that an event names.
        """
        own = (path.relative_to(self.folder) for path in paths if path is not None)
        return [*dict.fromkeys(str(path.with_suffix("")) for path in own)]

    def move(self, path: Path, target: Path) -> None:
        """Renames a file in the results folder; raises BenchmarkError if this is impossible."""
        with self.converting_write_errors(path):
            path.replace(target)

    def write(self, target: Path, data: bytes) -> None:
        """Writes a file atomically and durably. Creates its folder if necessary."""
        with self.converting_write_errors(target):
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, data)

    def remove(self, path: Path) -> None:
        """Removes a file or a folder if it exists."""
        with self.converting_write_errors(path):
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def converting_write_errors(self, path: Path) -> Iterator[None]:
        """Context manager: converts write errors, such as a full disk, to BenchmarkError."""
        self.raise_if_replaced()
        with _raising_write_errors(path):
            yield

    @cached_property
    def _scratch_folder(self) -> Path:
        with _raising_write_errors(Path(tempfile.gettempdir())):
            return self._held.enter_context(TemporaryFolder(f"cnnbench-{self.kind.command}-")).path

    def unfinished_path(self, target: Path) -> Path:
        """Temporary path to which a process writes a file, until `move_finished` moves the file to
        `target`.
        """
        return self._scratch_folder / "-".join(target.relative_to(self.folder).parts)

    def move_finished(self, target: Path) -> None:
        """Moves the file or folder at `unfinished_path(target)`, if it exists, to `target`."""
        made = self.unfinished_path(target)
        if not made.is_dir():
            if made.exists():
                self.write(target, made.read_bytes())
            return
        with self.converting_write_errors(target):
            shutil.copytree(made, target, dirs_exist_ok=True)
            shutil.rmtree(made)


def is_lock_or_empty_folder(path: Path) -> bool:
    """Whether a path is a lock file, a journal without events, or a folder that contains only such
    files and folders, as a command leaves them if it ends before its journal has an event.
    """
    if path.name == FILE or _is_journal_without_events(path):
        return True
    is_folder = path.is_dir() and not path.is_symlink()
    return is_folder and all(map(is_lock_or_empty_folder, path.iterdir()))


def _is_journal_without_events(path: Path) -> bool:
    """Whether a file is the beginning of a journal whose first event is not complete, because the
    process was killed or the disk was full.
    """
    if path.suffix != ".jsonl" or path.is_symlink() or not path.is_file():
        return False
    data = path.read_bytes()
    return b"\n" not in data and data[: len(_FIRST)] == _FIRST[: len(data)]


@contextlib.contextmanager
def _raising_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror or error}"
        raise BenchmarkError(message) from error


@json_document(
    "a line of journal.jsonl of cnnbench ab and tune, of sweep.jsonl of sweep", name="journal"
)
@dataclass(frozen=True, kw_only=True)
class JournalEvent:
    """An event in a campaign's journal: one line. Additional keys depend on the kind of event.

    Attributes:
      event: session (a session begins; contains the identity), process (a process has ended), lost
        (processes of a batch were killed from outside), note (values that cannot be computed from
        records, under the name in key note) or end (a session has reached a result). Journals of
        version 1.0.0 contain other kinds.
      time: time of the event, ISO 8601, UTC.
    """

    more_keys: ClassVar[bool] = True

    event: str
    time: str = field(metadata=TIME)


class Journal:
    """The file with the events of a campaign: one JSON object per line, oldest first.

    If a process is killed while writing, only the last line can be incomplete. Reading skips an
    incomplete line, and writing begins a new line after it. Results depend on the events, so
    changes to the file are detected: each line ends with the CRC-32 of all bytes before it, and the
    file `lines` contains the number of lines. Journals of version 1.0.0 have no checksums and other
    kinds of events; these events are converted when they are read. `check` raises an error if the
    folder must not be written to.
    """

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.lines = path.with_suffix(".lines")
        self._check = check
        self._written: int | None = None
        # Size and checksum of the file after the last event that this object has added.
        self._size, self._crc = -1, 0

    def read(self, *events: str) -> Iterator[dict[str, Any]]:
        """Yields the events in the journal file, of all kinds or only of the kinds in `events`.

        Raises PathError if the journal was changed.
        """
        data, written = b"", 0
        with contextlib.suppress(PathError):
            data = read_file(self.path)
        with contextlib.suppress(PathError, ValueError):
            written = int(read_file(self.lines))
        before, checked, torn, events_read = 0, False, False, []
        for number, line in enumerate(io.BytesIO(data), start=1):
            event = None
            with contextlib.suppress(ValueError):
                event = parse_json(line)
            torn = not (isinstance(event, dict) or line.endswith(b"\n"))
            if isinstance(event, dict):
                facts, _, crc = line.rstrip(b"\n").rpartition(_CRC)
                valid = crc == b"%d}" % zlib.crc32(facts, before)
                checked = checked or CHECKSUM in event
                typed = all(isinstance(event[key], _TYPES[key]) for key in _TYPES.keys() & event)
                # Version 1.0.0 wrote no checksums.
                if not typed or (not valid and (checked or "question" in event)):
                    raise PathError(str(self.path), f"line {number} is damaged; {_RESTORE}")
                events_read.append(event)
            before = zlib.crc32(line, before)
        if len(events_read) + torn < written or (written and events_read and not checked):
            reason = f"lines are missing at its end, or all checksums; {_RESTORE}"
            raise PathError(str(self.path), reason)
        yield from (
            event
            for event in map(_convert_event, events_read)
            if not events or event.get("event") in events
        )

    def add(self, event: str, **facts: Any) -> None:
        """Appends an event to the journal. Adds the current time."""
        self._check()
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        known = vars(JournalEvent(event=event, time=now))
        line = json.dumps({**known, **facts}, default=str)[:-1].encode("ascii")
        if self._written is None:
            self._written = sum(1 for _ in self.read())
        with _raising_write_errors(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                start, size = b"", os.fstat(descriptor).st_size
                # Another session has added lines, so the checksum is computed again.
                if size != self._size:
                    before = os.pread(descriptor, size, 0)
                    start = b"\n" if before and not before.endswith(b"\n") else b""
                    self._crc = zlib.crc32(before)
                crc = zlib.crc32(line, zlib.crc32(start, self._crc))
                data = b"%s%s%s%d}\n" % (start, line, _CRC, crc)
                write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._size, self._crc = size + len(data), zlib.crc32(data, self._crc)
            self._written += 1
            write_atomically(self.lines, b"%d\n" % self._written)


_RESUMED_IN_1_0_0 = ("ab", "bisect", "sweep", "tune")


def _convert_event(event: dict[str, Any]) -> dict[str, Any]:
    """Converts an event of version 1.0.0 to the format of this version. Returns other events
    unchanged.
    """
    kind = event.get("event")
    if kind in _RESUMED_IN_1_0_0:
        return {**event, "event": SESSION, "campaign": kind}
    if kind == "explanation":
        return {**event, "event": NOTE, "note": kind}
    return event
