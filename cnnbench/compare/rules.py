"""Which flags make a configuration: one table.

Two processes repeat each other when all their flags, as they turned out, agree, apart from
those of `RULES`: flags that cannot move a measurement, or whose values are names of places.
A flag that is not listed counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


def counts(name: str) -> bool:
    """Whether a flag makes a difference."""
    return name not in RULES or RULES[name].treatment != IGNORED


def identity(name: str, value: Any) -> Any:
    """A flag's value as it enters the identity of a configuration."""
    rule = RULES.get(name)
    if rule is None:
        return value
    if rule.treatment == PRESENCE:
        return bool(value)
    return len(str(value).split(",")) if value else 0
