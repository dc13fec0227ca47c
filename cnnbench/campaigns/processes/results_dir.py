"""The results directory of a campaign: its layout, its lock, its settings, and its files.

The first session stores its settings in the folder (``settings.json``), and every session appends
events to its journal (`cnnbench.campaigns.processes.journal`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from cnnbench.base.files import converting_parse_errors, read_json
from cnnbench.base.locks import FILE, TemporaryFolder, lock_folder
from cnnbench.base.terminal import print_warning
from cnnbench.campaigns.processes.identity import CampaignIdentity, Identity
from cnnbench.campaigns.processes.journal import (
    JOURNAL,
    LOST,
    NOTE,
    SESSION,
    STARTED,
    Journal,
    check_records,
    is_journal_without_events,
    last_process_events,
    raising_write_errors,
)
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.records.codec import ABSENT, Document, json_document
from cnnbench.records.files import remove_abandoned_files, write_atomically
from cnnbench.records.load import SETTINGS
from cnnbench.records.run import KilledProcess

LOGS = "logs"

S = TypeVar("S", bound="Settings")


@json_document("settings.json, which campaigns such as cnnbench ab write", name="settings")
@dataclass(frozen=True, kw_only=True)
class Settings(Document):
    """What a campaign measures. Additional keys depend on the command.

    Attributes:
      campaign: name of the command.
      identity: what must be equal when the campaign is resumed; None for a part of another
        campaign.
    """

    kind: ClassVar[str] = "settings"
    schema: ClassVar[int] = 1
    indented: ClassVar[bool] = True
    more_keys: ClassVar[bool] = True

    campaign: str
    identity: Identity | None = field(default=None, metadata=ABSENT)

    def with_plans_of(self: S, later: Settings | None) -> S:
        """Returns a copy with the plans that a later session of the campaign has added."""
        if self.identity is None or later is None or later.identity is None:
            return self
        plans = {**self.identity.plans, **later.identity.plans}
        return replace(self, identity=replace(self.identity, plans=plans))


def settings_path(folder: Path, suite: object = None) -> Path:
    """Path of the settings in a results folder. `suite` is the name of the suite of a sweep."""
    return folder / (f"settings-{suite}.json" if suite else "settings.json")


def load_settings(path: Path, form: type[S]) -> S | None:
    """Reads the settings in a file. None if there is no such file; PathError if it is damaged."""
    if not path.exists():
        return None
    with converting_parse_errors(path, "the settings of a campaign"):
        return form.from_dict(read_json(path))


def is_settings(path: Path) -> bool:
    """Whether a file begins like the settings of a campaign."""
    if not SETTINGS.fullmatch(path.name) or path.is_symlink() or not path.is_file():
        return False
    return b'"kind": "settings"' in path.read_bytes()[:100]


def is_settings_without_events(path: Path) -> bool:
    """Whether a file contains the settings of a campaign that has no events. This happens if the
    first session is killed before it starts a process.
    """
    journal = path.with_name(JOURNAL)
    begun = journal.exists() and not is_journal_without_events(journal)
    return not begun and is_settings(path)


@dataclass(frozen=True, kw_only=True)
class CampaignKind:
    """What all campaigns of one command have in common: names, and the layout of their folders.

    Attributes:
      command: name of the command, in the events of its sessions.
      noun: name of what --resume continues, for messages; "" if the command has no --resume.
      shared: whether the folder may contain other files and the campaigns of several suites.
      log, pending: paths of a process's log, and of its record until its whole batch has ended.
        "{}" is replaced by the name of the process.
      subfolders: subfolders to create.
      settings: class of the settings.
    """

    command: str
    noun: str = ""
    shared: bool = False
    log: str = f"{LOGS}/{{}}.log"
    pending: str = f"{LOGS}/{{}}.pending"
    subfolders: Sequence[str] = ()
    settings: type[Settings] = Settings

    @property
    def no_campaign_text(self) -> str:
        """Error message for --resume if the results folder contains no campaign."""
        return f"contains no {self.noun} of cnnbench {self.command} that can be continued"

    def is_campaign(self, events: Iterable[Mapping[str, Any]]) -> bool:
        """Whether the events in a journal belong to a campaign of this kind."""
        return any(event.get("campaign") == self.command for event in events)

    def stored_seed(self, folder: str, suite: str | None = None) -> int | None:
        """The random seed of the last campaign in a folder, or None. `suite` is the name of the
        suite of a sweep.
        """
        settings = load_settings(settings_path(Path(folder), suite), Settings)
        identity = None if settings is None else settings.identity
        seed = None if identity is None else identity.policy.get("seed")
        return seed if isinstance(seed, int) else None


class ResultsFolder:
    """The results directory of a campaign. It is created if necessary, and locked until the context
    ends.

    The folder is opened once, and every write uses this class. If the path later names a different
    folder (because the folder was moved, replaced or unmounted), writing raises BenchmarkError.
    Processes write to `unfinished_path` paths outside of the folder; `move_finished` moves their
    files into the folder.

    `settings` says what is measured; campaigns without settings of their own give their identity.
    `add_session_start` writes the settings, unless a resumed session has them, and adds the event
    of a session to the journal. `earlier` contains the events before this session, and
    `earlier_settings` the settings of a resumed campaign. `within` is the folder of the campaign
    that contains this folder.

    FlagError is raised if the folder cannot be used or is locked, if it is not empty (unless its
    kind is `shared`), or if it contains the journal of a different command. With `resume`,
    FlagError is also raised if the folder contains no campaign of its kind (unless it is `shared`),
    or if the campaign's identity differs. PathError is raised if an event cannot be read and, with
    `resume`, if a record is missing or is not the record that was measured.
    """

    def __init__(
        self,
        kind: CampaignKind,
        folder: str | Path,
        settings: Settings | CampaignIdentity | None = None,
        *,
        resume: bool = False,
        within: ResultsFolder | None = None,
    ) -> None:
        self.kind = kind
        self.folder = Path(folder)
        self.journal = Journal(self.folder / JOURNAL, self.raise_if_replaced)
        self._within = within
        if isinstance(settings, CampaignIdentity):
            settings = Settings(campaign=kind.command, identity=settings.values())
        self.settings = settings
        self.resume = resume
        self.earlier_settings: Settings | None = None
        if resume and self.is_whole and not kind.shared and not self.folder.is_dir():
            raise self._flag_error(kind.no_campaign_text)
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
                there = {path.name for path in self.folder.iterdir() if not is_leftover(path)}
                if there and not (resume or kind.shared):
                    go_on = "continue with --resume, or "
                    hint = go_on if kind.noun and JOURNAL in there else ""
                    raise self._flag_error(f"is not empty; {hint}name another folder")
                self.earlier = tuple(self.journal.read())
                if JOURNAL in there and not kind.is_campaign(self.earlier):
                    reason = f"{JOURNAL} in it is not a journal of cnnbench {kind.command}"
                    raise self._flag_error(f"{reason}; name another folder")
                path = settings_path(self.folder, self._suite)
                if not resume and path.exists() and not is_settings(path):
                    reason = f"{path.name} in it is not of cnnbench; name another folder"
                    raise self._flag_error(reason)
                if resume:
                    self._load_settings()
                    check_records(self.folder, self.earlier, kind.pending)
                remove_abandoned_files(self.folder)
                for name in kind.subfolders:
                    (self.folder / name).mkdir(exist_ok=True)
            except OSError as error:
                raise self._flag_error(f"cannot be used: {error.strerror}") from None
            self._held = stack.pop_all()

    def __enter__(self) -> ResultsFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def is_whole(self) -> bool:
        """Whether the campaign handles its own interrupts. If it is a part of another campaign,
        the other campaign handles them.
        """
        return self.settings is not None and self.settings.identity is not None

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
        """Adds an event to the journal that says that this session begins. The first session also
        writes the settings.
        """
        then = self.earlier_settings
        settings = self.settings if then is None else then.with_plans_of(self.settings)
        if settings is not None and settings != then:
            data = settings.to_json().encode("ascii")
            self.write(settings_path(self.folder, self._suite), data)
        self.journal.add(SESSION, campaign=self.kind.command, **facts)

    def add_journal_note(self, name: str, /, **facts: object) -> None:
        """Adds values to the journal under a name. Use it for values that cannot be computed from
        records.
        """
        self.journal.add(NOTE, note=name, **facts)

    def earlier_journal_notes(self, name: str) -> list[dict[str, Any]]:
        """The journal's notes with this name from earlier sessions, oldest first."""
        return [event for event in self.earlier if event.get("note") == name]

    def _flag_error(self, reason: str) -> FlagError:
        return FlagError("results", str(self.folder), reason)

    @property
    def _suite(self) -> object:
        identity = None if self.settings is None else self.settings.identity
        return None if identity is None else identity.policy.get("suite")

    def _load_settings(self) -> None:
        """Reads the settings of the campaign that is resumed, and compares its identity."""
        now, kind = self.settings, self.kind
        then = load_settings(settings_path(self.folder, self._suite), kind.settings)
        self.earlier_settings = then
        if now is None or now.identity is None or (then is None and kind.shared):
            return
        if then is None or then.identity is None:
            raise self._flag_error(kind.no_campaign_text)
        if differ := then.identity.differences(now.identity):
            reason = f"the {kind.noun} in it differs in {differ}; name another folder"
            raise self._flag_error(reason)

    def log_path(self, name: str) -> Path:
        """Path of the log file of a process, by the name of the process."""
        return self.folder / self.kind.log.format(name)

    def pending_record_path(self, name: str) -> Path:
        """Path of a process's record until all processes of its batch have ended."""
        return self.folder / self.kind.pending.format(name)

    @cached_property
    def started_processes(self) -> frozenset[str]:
        """Names of the processes that earlier sessions have started."""
        notes = self.earlier_journal_notes(STARTED)
        return frozenset(name for note in notes for name in note["names"])

    @cached_property
    def last_process_events(self) -> dict[str, Mapping[str, Any]]:
        """The last event about each process that ended in an earlier session, by name; see
        `journal.last_process_events`.
        """
        return last_process_events(self.earlier)

    @cached_property
    def killed_processes(self) -> dict[str, Sequence[KilledProcess]]:
        """The processes of repeated batches that were killed from outside, by name of the batch.

        The OOM killer may have killed a process, for example.
        """
        return {
            event["pair"]: [
                KilledProcess(side=process["side"], how=process["how"]) for process in event["lost"]
            ]
            for event in self.earlier
            if event.get("event") == LOST and event.get("again")
        }

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
        """Removes a file if it exists."""
        with self.converting_write_errors(path):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def converting_write_errors(self, path: Path) -> Iterator[None]:
        """Context manager: converts write errors, such as a full disk, to BenchmarkError."""
        self.raise_if_replaced()
        with raising_write_errors(path):
            yield

    @cached_property
    def _scratch_folder(self) -> Path:
        with raising_write_errors(Path(tempfile.gettempdir())):
            return self._held.enter_context(TemporaryFolder(f"cnnbench-{self.kind.command}-")).path

    def unfinished_path(self, target: Path) -> Path:
        """Temporary path to which a process writes a file, until `move_finished` moves the file to
        `target`.
        """
        return self._scratch_folder / "-".join(target.relative_to(self.folder).parts)

    def move_finished(self, target: Path) -> None:
        """Copies the file at `unfinished_path(target)`, if it exists, to `target`."""
        made = self.unfinished_path(target)
        if made.exists():
            self.write(target, made.read_bytes())


def is_leftover(path: Path) -> bool:
    """Whether a path is a lock file, a journal or settings without events, or a folder that
    contains only such files and folders, as a command leaves them if it ends before its journal has
    an event.
    """
    if path.name == FILE or is_journal_without_events(path) or is_settings_without_events(path):
        return True
    is_folder = path.is_dir() and not path.is_symlink()
    return is_folder and all(map(is_leftover, path.iterdir()))
