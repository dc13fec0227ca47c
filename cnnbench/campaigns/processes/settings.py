"""The settings of a campaign: the file ``settings.json``, which its first session writes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, TypeVar

from cnnbench.base.files import converting_parse_errors, read_json
from cnnbench.campaigns.processes.identity import Identity
from cnnbench.campaigns.processes.journal import JOURNAL, is_journal_without_events
from cnnbench.records.codec import ABSENT, Document
from cnnbench.records.documents import json_document
from cnnbench.records.result_files import SETTINGS

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
    """Whether a file contains settings of a campaign whose journal has no events, because its first
    session was killed before it started a process.
    """
    journal = path.with_name(JOURNAL)
    begun = journal.exists() and not is_journal_without_events(journal)
    return not begun and is_settings(path)
