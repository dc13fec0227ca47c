"""The question of a campaign: what its results belong to, and what `--resume` has to ask again.

Every journal begins with it: what the plans compute, the measured code with all uncommitted
changes, software and machine, and the policy with its seed. While processes run, the code is looked
at again before each of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.text.labels import labels_of
from cnnbench.base.text.numbers import first_few
from cnnbench.campaigns.processes.commands import Resolved, environment_identity, source_digest
from cnnbench.errors import BenchmarkError
from cnnbench.flags.params import ACCEPTED
from cnnbench.machine import repository
from cnnbench.records.codec import encode
from cnnbench.records.subject import Subject

_NAMED = 8  # differences in a message
_LENGTH = 40  # of values in it
_NOT_SET = "not set"


class ChangedError(BenchmarkError):
    """The measured code was changed during a campaign, which ends before its next process."""

    @classmethod
    def of(cls, what: str) -> ChangedError:
        """The error that names what has changed."""
        return cls(f"the measured code was changed ({what}); what was measured before is kept")


@dataclass(frozen=True)
class AskedPlan:
    """A plan of a question.

    Attributes:
      identity: what identifies it, by the names of flags.
      config: parameters of its runs, whose plug-ins are measured; None if commits alone are.
      folder: where its runs start, if it is not the working directory.
      parts: files that the plug-ins use, see `plugins.parts`.
    """

    identity: Mapping[str, Any]
    config: Mapping[str, Any] | None
    folder: Path | None = None
    parts: Sequence[str] = ()

    def code(self) -> Subject:
        """The measured code, as it is now."""
        if self.config is None:
            return Subject()
        found = repository.of_work(self.config, self.folder, self.parts)
        return found.labelled(labels_of(self.config)) or Subject()


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of a campaign.

    Attributes:
      plans: the plans by their names; those that only one of two questions has make no difference
        between these.
      facts: facts of this machine.
      policy: what else decides which processes run, and how they are judged.
      own: whether the processes run the code of this cnnbench.
    """

    plans: Mapping[str, AskedPlan]
    facts: Mapping[str, Any]
    policy: Mapping[str, Any]
    own: bool = True

    @cached_property
    def state(self) -> dict[str, Any]:
        """The code as it was when this was asked first."""
        return self._state()

    def to_json(self) -> dict[str, Any]:
        """JSON values; differences are found between these."""
        known = environment_identity(self.facts).items()
        software = {name.removeprefix("env_"): value for name, value in known}
        software["interpreter"] = sys.executable
        plans = {name: plan.identity for name, plan in self.plans.items()}
        parts = {"code": self.state, "software": software, "policy": self.policy}
        found: dict[str, Any] = json.loads(json.dumps(encode({"plans": plans, **parts})))
        return found

    def check(self) -> None:
        """Raises `ChangedError` if the code is not as it was at first."""
        then, now = self.state, self._state()
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if changed:
            raise ChangedError.of(", ".join(changed))

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = {"sources of cnnbench": source_digest()} if self.own else {}
        places: dict[str, AskedPlan] = {}  # by a name for messages
        for name, plan in self.plans.items():
            files = ", ".join(path for _, path in plugins.files(plan.config or {}))
            places.setdefault(files if plan.folder is None else name, plan)
        for name, plan in places.items():
            subject, of = plan.code(), f" of {name}" if name else ""
            known = {"repository": subject.repository, "commit": subject.revision}
            known["uncommitted changes"] = subject.changes
            found |= {f"{what}{of}": value for what, value in known.items() if value is not None}
        return found


def plan_of(resolved: Resolved, /, **more: object) -> AskedPlan:
    """A plan of runs in the working directory, with more that identifies it."""
    found = identity_of(resolved.identity, **more)
    return AskedPlan(found, resolved.config, parts=resolved.parts)


def identity_of(flags: Mapping[str, Any], /, **more: object) -> dict[str, Any]:
    """What identifies a plan, by flag, without flags at their defaults, and more."""
    usual = {name: encode(spec.default) for name, spec in ACCEPTED.items()}
    found = {n: v for n, v in flags.items() if n not in usual or usual[n] != encode(v)}
    return {**found, **more}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between two questions as JSON values, with the values; "" if they are equal."""
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
        f"{name} ({_text(before, key)}, now {_text(after, key)})"
        for name, (before, after, key) in pairs.items()
        if before.get(key) != after.get(key)
    ]
    return first_few(texts, _NAMED, ", ") if texts else ""


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    text = _NOT_SET if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 3]}..."
