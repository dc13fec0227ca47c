"""Which runs are repeats of one configuration.

Two runs repeat each other when all their flags, as they turned out, agree, apart from
those of `RULES`: flags that cannot move a measurement, or whose values are names of
places. A flag that is not listed counts. What is not a flag, such as the machine, is for
`cnnbench.comparison.comparability`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cnnbench.record import RunRecord

IGNORED = "ignored"
PRESENCE = "presence"
NUMBER = "number"


@dataclass(frozen=True)
class Rule:
    """How a flag enters the identity of a configuration.

    Attributes:
      treatment: IGNORED; PRESENCE: whether it is given; NUMBER: how many items it lists.
      reason: why.
    """

    treatment: str
    reason: str


_WRITTEN_LATER = Rule(IGNORED, "written when the run is over")
_SHOWN = Rule(IGNORED, "shown outside of the timed steps")
_PLACE = Rule(PRESENCE, "that it is written costs time, where to does not")
_SOURCE = Rule(PRESENCE, "a place; checkouts and machines have their own")
_ADDRESSES = Rule(NUMBER, "names of machines; how many there are counts")

RULES: dict[str, Rule] = {
    "result_json": _WRITTEN_LATER,
    "result_csv": _WRITTEN_LATER,
    "eval_dir": Rule(IGNORED, "a place for events of evaluations, outside of the timed steps"),
    "result_label": Rule(IGNORED, "what somebody says about the run"),
    "progress": _SHOWN,
    "quiet_conditions": _SHOWN,
    "display_every": _SHOWN,
    "display_perf_ewma": _SHOWN,
    "peak_flops": Rule(IGNORED, "what MFU is divided by; MFU is not compared"),
    "tf_random_seed": Rule(
        IGNORED, "time does not depend on it, and accuracy should be compared over seeds"
    ),
    "max_ckpts_to_keep": Rule(IGNORED, "files removed outside of the timed steps"),
    "train_dir": _PLACE,
    "trace_file": _PLACE,
    "tfprof_file": _PLACE,
    "graph_file": _PLACE,
    "partitioned_graph_file_prefix": _PLACE,
    "data_dir": _SOURCE,
    "model_plugin": Rule(PRESENCE, "a place; the size of the model is compared instead"),
    "dataset_plugin": _SOURCE,
    "backbone_model_path": _SOURCE,
    "ps_hosts": _ADDRESSES,
    "worker_hosts": _ADDRESSES,
    "controller_host": Rule(PRESENCE, "the name of a machine"),
    "gpu_indices": Rule(NUMBER, "which of like GPUs; their names are compared"),
    "task_index": Rule(IGNORED, "which process of the job wrote the record"),
}
"""The flags that do not count as they are, each with the reason."""

PLACES = tuple(name for name, rule in RULES.items() if rule.treatment == PRESENCE)
"""Flags of which only the presence counts."""

UNRESOLVED = (
    "device",
    "data_format",
    "num_intra_threads",
    "num_inter_threads",
    "datasets_num_private_threads",
)
"""Flags that a record holds as given, not as they turned out, if the run failed early."""


@dataclass(frozen=True)
class Configuration:
    """The flags that make a configuration.

    Attributes:
      flags: by name, as they enter the identity.
      key: a hash of them, 12 hexadecimal digits.
      resolved: whether all of them are as they turned out.
    """

    flags: Mapping[str, Any]
    key: str
    resolved: bool

    @classmethod
    def of(cls, record: RunRecord) -> Configuration:
        """The configuration that a run repeats."""
        flags: dict[str, Any] = {**_defaults(), **record.config}
        if "precision" in flags:
            flags.pop("use_fp16", None)  # the same by its old name
        flags = {name: _value(name, flags[name]) for name in sorted(flags) if _counts(name)}
        resolved = record.placement is not None
        # Flags at their defaults are left out, so that a new flag changes no key.
        text = json.dumps([_telling(flags), resolved], sort_keys=True)
        return cls(flags, hashlib.sha256(text.encode()).hexdigest()[:12], resolved)

    def telling(self) -> dict[str, Any]:
        """The flags that are not at their defaults."""
        return _telling(self.flags)

    def differing(self, other: Configuration) -> tuple[str, ...]:
        """Names of the flags by which two configurations differ."""
        names = dict.fromkeys((*self.flags, *other.flags))
        found = (name for name in names if self.flags.get(name) != other.flags.get(name))
        if self.resolved and other.resolved:
            return tuple(found)
        return tuple(name for name in found if name not in UNRESOLVED)


def label(configuration: Configuration, distinguishing: Iterable[str] = ()) -> str:
    """A configuration in a few words.

    Args:
      configuration: to be named.
      distinguishing: further flags to say the value of.
    """
    flags = configuration.flags
    parts = [str(flags.get("model"))]
    if flags.get("data_name") not in (None, "imagenet"):
        parts.append(str(flags["data_name"]))
    parts.append(f"batch {flags.get('batch_size')}")
    parts.append(f"{flags.get('num_gpus')} {flags.get('device')}")
    if flags.get("variable_update") not in (None, "parameter_server") or flags.get("num_gpus") != 1:
        parts.append(str(flags.get("variable_update")))
    if flags.get("precision") != "fp32":
        parts.append(str(flags.get("precision")))
    parts += [name for name in ("eval", "forward_only") if flags.get(name)]
    parts += [f"{name}={_shown(flags.get(name))}" for name in distinguishing]
    return ", ".join(parts)


def labels(configurations: Iterable[Configuration]) -> dict[str, str]:
    """Names by key, each different: flags are added where the usual ones do not tell apart."""
    alike: dict[str, list[Configuration]] = {}
    for one in {one.key: one for one in configurations}.values():
        alike.setdefault(label(one), []).append(one)
    named: dict[str, str] = {}
    for members in alike.values():
        first = members[0]
        varying = sorted({name for other in members[1:] for name in first.differing(other)})
        for one in members:
            named[one.key] = label(one, varying)
    return named


def _counts(name: str) -> bool:
    return name not in RULES or RULES[name].treatment != IGNORED


def _value(name: str, value: Any) -> Any:
    rule = RULES.get(name)
    if rule is None:
        return value
    if rule.treatment == PRESENCE:
        return bool(value)
    return len(str(value).split(",")) if value else 0


def _telling(flags: Mapping[str, Any]) -> dict[str, Any]:
    usual = _usual()
    return {
        name: value for name, value in flags.items() if name not in usual or usual[name] != value
    }


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return "none" if value is None else str(value)


@lru_cache(maxsize=1)
def _usual() -> dict[str, Any]:
    """The defaults as they enter the identity."""
    return {name: _value(name, value) for name, value in _defaults().items()}


@lru_cache(maxsize=1)
def _defaults() -> dict[str, Any]:
    """Defaults of all flags: what a record of a version without a flag stands for."""
    from cnnbench.params import FLAGS
    from cnnbench.record_codec import encode

    return {spec.name: encode(spec.default) for spec in FLAGS}
