"""The configuration of a measurement, and its name.

Two runs belong to the same configuration if their identities are equal, which are the flags that
determine what is measured (`cnnbench.flags.params`). A different flag prevents a verdict.
Differences in paths, and in properties that are not in `FACTS` (`cnnbench.judge.compare.facts`),
are only mentioned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from cnnbench.base.stats import group_by
from cnnbench.base.text import boolean_text, count_text
from cnnbench.flags import (
    FLAGS,
    RunPart,
    changed_flags,
    identity_flags,
    names_of_flags,
    recorded_defaults,
)
from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS
from cnnbench.judge.compare.facts import GROUPS, UNKNOWN
from cnnbench.judge.compare.rows import LEFT_OUT, name_parts, packing_flags
from cnnbench.judge.metrics.measurement import KINDS, RUN, Measurement
from cnnbench.records.codec import encode
from cnnbench.records.run import RunRecord
from cnnbench.variable_mgr.modes import DEFAULT
from cnnbench.variable_mgr.packing import Packing

IMPORTED = "imported_from"
"""Key in the `config` of imported records. Its value is the program that measured the values."""


def ab_place(measurement: object) -> Mapping[str, Any]:
    """Returns the place of a run in an experiment of `cnnbench ab`, as its record says; {} for
    other measurements. The values were not validated.
    """
    return measurement.ab or {} if isinstance(measurement, RunRecord) else {}


@dataclass(frozen=True)
class Configuration:
    """The flags that identify a configuration, as a mapping from name to value.

    Attributes:
      key: hash of the flags, 12 hexadecimal digits.
      resolved: whether all flags have their final values.
      given: flags that the user set. Other flags may follow from them.
    """

    flags: Mapping[str, Any]
    key: str
    resolved: bool
    kind: str = RUN
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, measurement: Measurement) -> Configuration:
        """Returns the configuration that a measurement belongs to."""
        kind = measurement.kind
        # A flag that is missing in an imported record is unknown: it may have any value, not only
        # the default.
        usual = {} if IMPORTED in measurement.config else _default_flags(kind)
        changed = changed_flags(measurement.config, usual)
        # If `cnnbench ab` chose the number of timed steps from the noise, processes with different
        # numbers may belong to the same configuration.
        if ab_place(measurement).get("chose_steps"):
            changed = {name: changed[name] for name in changed if name not in GROUPS["num_batches"]}
        counted = json.dumps(identity_flags(changed))
        resolved = not isinstance(measurement, RunRecord) or measurement.placement is not None
        return _make(kind, counted, resolved, measurement.explicit_flags)

    @property
    def non_default_flags(self) -> dict[str, Any]:
        """The flags whose values are not the defaults."""
        usual = _defaults(self.kind)
        return {
            name: value
            for name, value in self.flags.items()
            if name not in usual or usual[name] != value
        }

    def differing_flags(self, other: Configuration) -> tuple[str, ...]:
        """Returns the names of the flags that differ between this configuration and `other`, a
        configuration of the same kind of measurement. Flags without final values are not compared.
        """
        names = dict.fromkeys((*self.flags, *other.flags))
        if self.flags.get(IMPORTED) != other.flags.get(IMPORTED):
            # Imported records lack many flags, so only flags that both configurations have are
            # compared.
            both = [(name, self.flags.get(name), other.flags.get(name)) for name in names]
            known = (name for name, *values in both if None not in values)
            names = dict.fromkeys((IMPORTED, *known))
        differing = (name for name in names if self.flags.get(name) != other.flags.get(name))
        if self.resolved and other.resolved:
            return tuple(differing)
        # These flags get their final values late, so the record of a run that failed early may lack
        # them.
        return tuple(name for name in differing if name not in GROUPS["device"])


@lru_cache(maxsize=4096)
def _make(
    kind: str, changed_flags_json: str, resolved: bool, explicit: tuple[str, ...]
) -> Configuration:
    """Returns the configuration with the flags in `changed_flags_json` (a JSON object) and with the
    default values of all other flags.
    """
    flags: dict[str, Any] = json.loads(changed_flags_json)
    flags = flags if IMPORTED in flags else {**_defaults(kind), **flags}
    if "precision" in flags:
        flags.pop("use_fp16", None)  # Its new name is `precision`.
    flags = dict(sorted(flags.items()))
    configuration = Configuration(flags, "", resolved, kind, frozenset(explicit))
    # The key depends only on flags that differ from their defaults, so that a flag of a new version
    # does not change the keys of old records.
    text = [configuration.non_default_flags, resolved, *([] if kind == RUN else [kind])]
    key = hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:12]
    return replace(configuration, key=key)


def configuration_name(configuration: Configuration, distinguishing: Iterable[str] = ()) -> str:
    """Returns a short name of a configuration, with the flags in `distinguishing` as NAME=VALUE."""
    flags = configuration.flags
    if configuration.kind == RUN:
        parts = _name_parts(flags)
    else:
        parts = name_parts(configuration.kind, flags)
    parts += [_flag_part(name, flags[name]) for name in distinguishing if name in flags]
    return ", ".join(filter(None, parts))


def unique_names(configurations: Iterable[Configuration]) -> dict[str, str]:
    """Maps the key of each configuration to a unique name. If short names are equal, the flags that
    differ are appended.

    Flags that the user set are preferred, because other flags, such as epochs, may follow from
    them.
    """
    named: dict[str, str] = {}
    distinct = {one.key: one for one in configurations}.values()
    for members in group_by(distinct, configuration_name).values():
        first = members[0]
        differing = {name for other in members[1:] for name in first.differing_flags(other)}
        # The chief of a job has a name of its task, and a run that is no job has none.
        follows = {"job_name"} if "worker_hosts" in differing else set[str]()
        varying = sorted(differing - follows)
        explicit = frozenset[str]().union(*(member.given for member in members))
        asked = [name for name in varying if name in explicit]
        values = {json.dumps([member.flags.get(name) for name in asked]) for member in members}
        added = asked if len(values) == len(members) else varying
        for member in members:
            named[member.key] = configuration_name(member, added)
    return named


def work_name_parts(flags: Mapping[str, Any]) -> list[str]:
    """Returns the parts of a run's name about its work: network, data set, batch and devices."""
    data = flags.get("data_name")
    return [
        str(flags.get("model") or UNKNOWN),
        *([] if data in (None, "imagenet") else [str(data)]),
        f"batch {flags.get('batch_size') or UNKNOWN}",
        f"{flags.get('num_gpus') or UNKNOWN} {flags.get('device') or 'devices'}",
    ]


def _name_parts(flags: Mapping[str, Any]) -> list[str]:
    parts = work_name_parts(flags)
    mode = flags.get("variable_update")
    if mode is not None and (mode != DEFAULT or flags.get("num_gpus") != 1):
        parts.append(str(mode))
    # An imported record may not say what the precision was; then it is None.
    if flags.get("precision") not in ("fp32", None):
        parts.append(str(flags.get("precision")))
    program = flags.get(IMPORTED)
    parts += [] if program is None else [f"from {program}"]
    return parts + [name for name in names_of_flags(FLAGS, RunPart.WORK) if flags.get(name)]


def _flag_part(name: str, value: Any) -> str:
    """Returns the part of a configuration's name about a flag; "" if a job lacks such processes."""
    if name == "worker_hosts":
        return number_of_workers_text(value)
    if name == "ps_hosts":
        return f"{value} ps" if value else ""
    return f"{name}={_value_text(value)}"


def number_of_workers_text(workers: Any) -> str:
    """Returns the part of a name about the workers of a job, such as "2 workers"; "" for no job."""
    return count_text(workers, "worker", "workers") if workers else ""


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return boolean_text(value)
    if isinstance(value, list):
        return ",".join(map(_value_text, value))
    return "none" if value is None else str(value)


@lru_cache(maxsize=len(KINDS))
def _default_flags(kind: str) -> Mapping[str, Any]:
    """Returns the default values of all flags of a kind of measurement, as records store them."""
    if kind != RUN:
        own = (spec for spec in ALL_REDUCE_FLAGS if spec.name not in LEFT_OUT)
        flags = {spec.name: encode(spec.default) for spec in own}
        return {**flags, "model": None, **packing_flags(Packing())}
    return recorded_defaults()


@lru_cache(maxsize=len(KINDS))
def _defaults(kind: str) -> dict[str, Any]:
    return identity_flags(_default_flags(kind))
