"""The code that a run measured: its repository, commit and uncommitted changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cnnbench.base.values import labels_from_config
from cnnbench.records.codec import ABSENT, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The code that a run measured: repository, commit and uncommitted changes.

    Attributes:
      repository: host and path without secrets, or name of the folder; None if unknown.
      revision: commit; None if unknown.
      dirty: whether the code differed from the commit; None if unknown.
      changes: digest of all uncommitted changes and of uncommitted plug-ins; None if there are none
        or they are unknown. If the revision is unknown, only plug-ins are included.
      unknown: why the revision is unknown although there is a repository; otherwise None.
      side: "a" or "b" in an experiment of `cnnbench ab`; otherwise None.
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
    def unknown_commit_warning(self) -> str:
        """A warning that says why the measured commit is unknown; "" if it is known."""
        named = "--result_label=commit=... names it"
        text = f"the commit of the measured code is unknown: {self.unknown}; {named}"
        return text if self.unknown else ""

    def with_labels(self, labels: Mapping[str, str]) -> Subject | None:
        """Returns the subject with the user's labels applied; None if there is neither a label nor
        a detected repository.

        The labels `commit` and `repository` have priority. If `commit` differs from the detected
        revision, the measured code was in a different place, so the detected repository and state
        are not used.
        """
        commit, repository = labels.get("commit"), labels.get("repository")
        made = self
        if commit is not None and not (self.revision or "").startswith(commit.lower()):
            made = Subject(revision=commit, side=self.side)
        made = replace(made, repository=repository or made.repository, labels=dict(labels))
        return None if made == Subject() else made


def subject_of_record(
    subject: Subject | None, config: Mapping[str, Any], ab: Mapping[str, Any] | None = None
) -> Subject:
    """Returns what code a record measured. Records of earlier versions have no field `subject`, so
    the code is derived from the labels in `config` and from the field `ab`.
    """
    if subject is not None:
        return subject
    side = (ab or {}).get("side")
    started_subject = Subject(side=side if isinstance(side, str) else None)
    return started_subject.with_labels(labels_from_config(config)) or Subject()


def add_subject(document: Mapping[str, Any], subject: Subject) -> dict[str, Any]:
    """Adds the measured code to a record's JSON document. Labels in the document have priority."""
    named = subject.with_labels(labels_from_config(document["config"]))
    rest = {key: value for key, value in document.items() if key != "subject"}
    return rest if named is None else {**rest, "subject": encode(named)}
