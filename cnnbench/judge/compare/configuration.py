"""Configurations: which measurements repeat each other, and their names.

`cnnbench.flags.identity` has the flags that count; facts that are not flags are compared in
`cnnbench.judge.compare.comparability`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cnnbench.base.grouping import grouped
from cnnbench.base.text.numbers import truth
from cnnbench.flags.declare import named
from cnnbench.flags.identity import identity
from cnnbench.flags.params import ACCEPTED, FLAGS
from cnnbench.flags.roles import RunPart
from cnnbench.judge.compare import all_reduce
from cnnbench.judge.metrics.measurement import KINDS, RUN, Measurement
from cnnbench.records.codec import encode
from cnnbench.records.run import RunRecord
from cnnbench.variable_mgr.modes import DEFAULT

UNRESOLVED = ("device", "data_format", *named(FLAGS, RunPart.THREADS))
"""Flags whose values are not resolved in the record of a run that failed early."""


@dataclass(frozen=True)
class Configuration:
    """Flags that identify a configuration, by name, as they enter the identity.

    Attributes:
      key: a hash of them, 12 hexadecimal digits.
      resolved: whether all of them have their final values.
      given: flags that the user gave; others may follow from them.
    """

    flags: Mapping[str, Any]
    key: str
    resolved: bool
    kind: str = RUN
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, measurement: Measurement) -> Configuration:
        """The configuration that a measurement repeats."""
        usual = _defaults(measurement.kind)
        # Many records repeat a configuration; it is made once. 0, 0.0 and False are told apart.
        changed = {
            name: value
            for name, value in measurement.config.items()
            if name not in usual or usual[name] != value or type(usual[name]) is not type(value)
        }
        counted = json.dumps(identity(changed))
        resolved = not isinstance(measurement, RunRecord) or measurement.placement is not None
        return _configuration(measurement.kind, counted, resolved, measurement.explicit_flags)

    def not_default(self) -> dict[str, Any]:
        """The flags with other values than their defaults."""
        return _not_default(self.flags, self.kind)

    def differing(self, other: Configuration) -> tuple[str, ...]:
        """Names of the flags by which two configurations of a kind differ."""
        names = dict.fromkeys((*self.flags, *other.flags))
        found = (name for name in names if self.flags.get(name) != other.flags.get(name))
        if self.resolved and other.resolved:
            return tuple(found)
        return tuple(name for name in found if name not in UNRESOLVED)


@lru_cache(maxsize=4096)
def _configuration(
    kind: str, changed: str, resolved: bool, given: tuple[str, ...]
) -> Configuration:
    """The configuration with these flags in JSON, all others at their defaults."""
    flags: dict[str, Any] = {**_default_identities(kind), **json.loads(changed)}
    if "precision" in flags:
        flags.pop("use_fp16", None)  # the old name of `precision`
    flags = dict(sorted(flags.items()))
    # Flags at their defaults are left out, so that a new flag changes no key.
    text = [_not_default(flags, kind), resolved, *([] if kind == RUN else [kind])]
    key = hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:12]
    return Configuration(flags, key, resolved, kind, frozenset(given))


def label(configuration: Configuration, distinguishing: Iterable[str] = ()) -> str:
    """A short name of a configuration."""
    flags = configuration.flags
    if configuration.kind == RUN:
        parts = _run_label(flags)
    else:
        parts = all_reduce.label(configuration.kind, flags)
    parts += [f"{name}={_shown(flags.get(name))}" for name in distinguishing]
    return ", ".join(parts)


def labels(configurations: Iterable[Configuration]) -> dict[str, str]:
    """Unique names by key: flags are added where the usual parts are the same.

    Flags that the user gave are preferred, since others, such as epochs, may follow from them.
    """
    named: dict[str, str] = {}
    for members in grouped({one.key: one for one in configurations}.values(), label).values():
        first = members[0]
        varying = sorted({name for other in members[1:] for name in first.differing(other)})
        given = frozenset[str]().union(*(one.given for one in members))
        asked = [name for name in varying if name in given]
        values = {json.dumps([one.flags.get(name) for name in asked]) for one in members}
        added = asked if len(values) == len(members) else varying
        for one in members:
            named[one.key] = label(one, added)
    return named


def work(flags: Mapping[str, Any]) -> list[str]:
    """Network, data set, batch and devices, as parts of a name."""
    data = flags.get("data_name")
    return [
        str(flags.get("model")),
        *([] if data in (None, "imagenet") else [str(data)]),
        f"batch {flags.get('batch_size')}",
        f"{flags.get('num_gpus')} {flags.get('device')}",
    ]


def _run_label(flags: Mapping[str, Any]) -> list[str]:
    parts = work(flags)
    if flags.get("variable_update") not in (None, DEFAULT) or flags.get("num_gpus") != 1:
        parts.append(str(flags.get("variable_update")))
    if flags.get("precision") != "fp32":
        parts.append(str(flags.get("precision")))
    return parts + [name for name in named(FLAGS, RunPart.WORK) if flags.get(name)]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return truth(value)
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return "none" if value is None else str(value)


@lru_cache(maxsize=len(KINDS))
def _defaults(kind: str) -> Mapping[str, Any]:
    """Defaults of all flags, as in a record whose version had no such flag."""
    if kind != RUN:
        return all_reduce.defaults()
    # Earlier records hold flags that have become obsolete since.
    return {spec.name: encode(spec.default) for spec in ACCEPTED.values()}


@lru_cache(maxsize=len(KINDS))
def _default_identities(kind: str) -> dict[str, Any]:
    return identity(_defaults(kind))


def _not_default(flags: Mapping[str, Any], kind: str) -> dict[str, Any]:
    usual = _default_identities(kind)
    return {
        name: value for name, value in flags.items() if name not in usual or usual[name] != value
    }
