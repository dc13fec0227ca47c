"""The question of a campaign: what its results belong to, and what `--resume` has to ask again.

Every journal begins with it: what the plans compute, the measured code with all uncommitted
changes, software and machine, and the policy with its seed. While processes run, the code is looked
at again before each of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.text.labels import labels_of
from cnnbench.base.text.numbers import first_few
from cnnbench.campaigns.processes.commands import environment_identity, source_digest
from cnnbench.errors import BenchmarkError
from cnnbench.flags.params import ACCEPTED
from cnnbench.machine import repository
from cnnbench.records.codec import encode
from cnnbench.records.subject import Subject

Code = Mapping[str, Callable[[], Subject]]
"""What tells the state of the measured code, by a name for messages; "" where there is one."""

_NAMED = 8  # differences in a message
_LENGTH = 40  # of values in it
_NOT_SET = "not set"


class ChangedError(BenchmarkError):
    """The measured code was changed during a campaign, which ends before its next process."""

    @classmethod
    def of(cls, what: str) -> ChangedError:
        """The error that names what has changed."""
        return cls(f"the measured code was changed ({what}); what was measured before is kept")


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of a campaign.

    Attributes:
      plans: what identifies each plan, by its name and the names of flags; plans that only one of
        two questions has make no difference between these.
      code: the measured code.
      facts: facts of this machine.
      policy: what else decides which processes run, and how they are judged.
      own: whether the processes run the code of this cnnbench.
    """

    plans: Mapping[str, Mapping[str, Any]]
    code: Code
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
        parts = {"code": self.state, "software": software, "policy": self.policy}
        found: dict[str, Any] = json.loads(json.dumps(encode({"plans": self.plans, **parts})))
        return found

    def check(self) -> None:
        """Raises `ChangedError` if the code is not as it was at first."""
        then, now = self.state, self._state()
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if changed:
            raise ChangedError.of(", ".join(changed))

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = {"sources of cnnbench": source_digest()} if self.own else {}
        for name, ask in self.code.items():
            subject, of = ask(), f" of {name}" if name else ""
            known = {"repository": subject.repository, "commit": subject.revision}
            known["uncommitted changes"] = subject.changes
            found |= {f"{what}{of}": value for what, value in known.items() if value is not None}
        return found


def plan_of(identity: Mapping[str, Any], **more: object) -> dict[str, Any]:
    """What identifies a plan, by flag, without flags at their defaults, and more."""
    usual = {name: encode(spec.default) for name, spec in ACCEPTED.items()}
    found = {n: v for n, v in identity.items() if n not in usual or usual[n] != encode(v)}
    return {**found, **more}


def code_of(configs: Iterable[Mapping[str, Any]]) -> Code:
    """The code that runs of these configurations measure, started in the working directory."""
    found: dict[str, Callable[[], Subject]] = {}
    for config in configs:
        paths = [path for _, path in plugins.files(config)]
        found.setdefault(", ".join(paths), partial(_labelled, config))
    return found


def _labelled(config: Mapping[str, Any]) -> Subject:
    return repository.of_work(config).labelled(labels_of(config)) or Subject()


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
