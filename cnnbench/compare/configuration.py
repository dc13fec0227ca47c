"""Which measurements are repeats of one configuration, and what it is called.

What enters the identity is in `cnnbench.compare.rules`. What is not a flag, such as the
machine, is for `cnnbench.compare.comparability`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cnnbench.compare.kinds import KINDS
from cnnbench.compare.rules import counts, identity
from cnnbench.metrics.measurement import RUN, Measurement


@dataclass(frozen=True)
class Configuration:
    """The flags that make a configuration.

    Attributes:
      flags: by name, as they enter the identity.
      key: a hash of them, 12 hexadecimal digits.
      resolved: whether all of them are as they turned out.
      kind: of its measurements.
      given: flags that somebody asked for; others may follow from them.
    """

    flags: Mapping[str, Any]
    key: str
    resolved: bool
    kind: str = RUN
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, measurement: Measurement) -> Configuration:
        """The configuration that a measurement repeats."""
        kind = KINDS[measurement.kind]
        flags: dict[str, Any] = {**kind.defaults(), **measurement.config}
        if "precision" in flags:
            flags.pop("use_fp16", None)  # the same by its old name
        flags = {name: identity(name, flags[name]) for name in sorted(flags) if counts(name)}
        resolved = kind.resolved(measurement)
        # Flags at their defaults are left out, so that a new flag changes no key.
        text = [_telling(flags, kind.name), resolved]
        if kind.name != RUN:
            text.append(kind.name)
        key = hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:12]
        return cls(flags, key, resolved, kind.name, frozenset(measurement.explicit_flags))

    def telling(self) -> dict[str, Any]:
        """The flags that are not at their defaults."""
        return _telling(self.flags, self.kind)

    def differing(self, other: Configuration) -> tuple[str, ...]:
        """Names of the flags by which two configurations of a kind differ."""
        names = dict.fromkeys((*self.flags, *other.flags))
        found = (name for name in names if self.flags.get(name) != other.flags.get(name))
        if self.resolved and other.resolved:
            return tuple(found)
        return tuple(name for name in found if name not in KINDS[self.kind].unresolved)


def label(configuration: Configuration, distinguishing: Iterable[str] = ()) -> str:
    """A configuration in a few words.

    Args:
      configuration: to be named.
      distinguishing: further flags to say the value of.
    """
    flags = configuration.flags
    parts = KINDS[configuration.kind].label(flags)
    parts += [f"{name}={_shown(flags.get(name))}" for name in distinguishing]
    return ", ".join(parts)


def labels(configurations: Iterable[Configuration]) -> dict[str, str]:
    """Names by key, each different: flags are added where the usual ones do not tell apart.

    Those that somebody gave, if they suffice: the number of epochs follows from that of
    batches, and says nothing besides it.
    """
    alike: dict[str, list[Configuration]] = {}
    for one in {one.key: one for one in configurations}.values():
        alike.setdefault(label(one), []).append(one)
    named: dict[str, str] = {}
    for members in alike.values():
        first = members[0]
        varying = sorted({name for other in members[1:] for name in first.differing(other)})
        given = frozenset[str]().union(*(one.given for one in members))
        asked = [name for name in varying if name in given]
        telling = asked if _tell_apart(asked, members) else varying
        for one in members:
            named[one.key] = label(one, telling)
    return named


def _tell_apart(names: Sequence[str], members: Sequence[Configuration]) -> bool:
    """Whether no two configurations have the same values of these flags."""
    values = {json.dumps([one.flags.get(name) for name in names]) for one in members}
    return len(values) == len(members)


def _telling(flags: Mapping[str, Any], kind: str) -> dict[str, Any]:
    usual = _usual(kind)
    return {
        name: value for name, value in flags.items() if name not in usual or usual[name] != value
    }


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return "none" if value is None else str(value)


@lru_cache(maxsize=len(KINDS))
def _usual(kind: str) -> dict[str, Any]:
    """The defaults as they enter the identity."""
    return {name: identity(name, value) for name, value in KINDS[kind].defaults().items()}
