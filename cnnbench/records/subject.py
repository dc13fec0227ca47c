"""The subject of a record: the code that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cnnbench.base.text.labels import labels_of
from cnnbench.records.codec import ABSENT, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The code that was measured.

    Attributes:
      repository: host and path without secrets, or name of the folder; None if unknown.
      revision: commit; None if unknown.
      dirty: whether the code differed from the commit; None if unknown.
      changes: digest of all uncommitted changes and of plug-ins that no commit has; None without
        any, and if unknown. Without a revision, that of plug-ins alone.
      unknown: why the revision is unknown, although there is a repository; None elsewhere.
      side: "a" or "b" in an experiment of `cnnbench ab`; None elsewhere.
      labels: labels of --result_label.
    """

    repository: str | None = None
    revision: str | None = None
    dirty: bool | None = None
    changes: str | None = field(default=None, metadata=ABSENT)
    unknown: str | None = field(default=None, metadata=ABSENT)
    side: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.labels.items():
            if not isinstance(value, str):
                raise ValueError(f"subject.labels.{name}: expected a string, got {value!r}")

    @property
    def warning(self) -> str:
        """Says that the revision is unknown, and why; "" elsewhere."""
        named = "--result_label=commit=... names it"
        text = f"the commit of the measured code is unknown: {self.unknown}; {named}"
        return text if self.unknown else ""

    def labelled(self, labels: Mapping[str, str]) -> Subject | None:
        """The subject with the user's labels applied; None if nothing is known about it.

        The labels `commit` and `repository` take precedence. Where `commit` is not the found
        revision, the code was elsewhere, and the found repository and state do not apply.
        """
        commit, repository = labels.get("commit"), labels.get("repository")
        made = self
        if commit is not None and not (self.revision or "").startswith(commit.lower()):
            made = Subject(revision=commit, side=self.side)
        made = replace(made, repository=repository or made.repository, labels=dict(labels))
        return None if made == Subject() else made


def subject_of(
    subject: Subject | None, config: Mapping[str, Any], ab: Mapping[str, Any] | None = None
) -> Subject:
    """The subject of a record; of earlier versions, from its labels and place in an experiment."""
    if subject is not None:
        return subject
    side = (ab or {}).get("side")
    found = Subject(side=side if isinstance(side, str) else None)
    return found.labelled(labels_of(config)) or Subject()


def with_subject(document: Mapping[str, Any], found: Subject) -> dict[str, Any]:
    """A record's JSON document with its subject; the document's labels take precedence."""
    named = found.labelled(labels_of(document["config"]))
    rest = {key: value for key, value in document.items() if key != "subject"}
    return rest if named is None else {**rest, "subject": encode(named)}
