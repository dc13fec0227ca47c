"""What the history keeps of a run: enough to sort it, to draw it and to explain a step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cnnbench.comparison.configuration import Configuration
from cnnbench.comparison.facts import Role, fact
from cnnbench.history.metrics import METRICS
from cnnbench.record import RunRecord
from cnnbench.result_label import labels_of

_MACHINE = ("gpu_names", "cpu_model", "architecture", "usable_cpus", "cgroup_cpu_limit")
"""Facts that make a machine another one. Names of hosts do not: a pool of like machines is one
machine, and what changes on a machine, such as a driver, is for the history to show."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run, as the index holds it.

    Attributes:
      run_id, started_at, status: as in the record.
      error: type and message of a failed run; "" if it did not fail.
      key: of the configuration.
      flags: of the configuration.
      resolved: whether the flags are as they turned out.
      hostname: "" if unknown.
      machine: facts that make the machine, by name.
      labels: what the user said about the run (--result_label).
      facts: facts of the environment that may move a measurement or tell a version.
      values: by metric; those that were measured.
    """

    run_id: str
    started_at: str
    status: str
    error: str
    key: str
    flags: Mapping[str, Any]
    resolved: bool
    hostname: str
    machine: Mapping[str, str]
    labels: Mapping[str, str]
    facts: Mapping[str, str]
    values: Mapping[str, float]

    @classmethod
    def of(cls, record: RunRecord) -> Entry:
        """The entry of a record."""
        configuration = Configuration.of(record)
        facts = {
            name: _text(value)
            for name, value in record.environment.items()
            if fact(name).role is not Role.IGNORED
        }
        found = {name: metric.value(record) for name, metric in METRICS.items()}
        error = record.error
        return cls(
            run_id=record.run_id,
            started_at=record.started_at,
            status=record.status,
            error="" if error is None else f"{error.type}: {error.message}",
            key=configuration.key,
            flags=configuration.flags,
            resolved=configuration.resolved,
            hostname=facts.get("hostname", ""),
            machine={name: facts[name] for name in _MACHINE if name in facts},
            labels=labels_of(record.config),
            facts=facts,
            values={
                name: value
                for name, value in found.items()
                if value is not None and math.isfinite(value)
            },
        )

    @property
    def configuration(self) -> Configuration:
        """The configuration that the run repeats."""
        return Configuration(self.flags, self.key, self.resolved)

    @property
    def commit(self) -> str:
        """What the run is a measurement of: the label, else cnnbench's own commit, or ""."""
        return self.labels.get("commit") or self.facts.get("git_commit", "")

    def to_json(self) -> str:
        """For the index; without the flags, which many runs share."""
        return json.dumps({name: value for name, value in vars(self).items() if name != "flags"})

    @classmethod
    def from_json(cls, text: str, flags: Mapping[str, Mapping[str, Any]]) -> Entry:
        """What `to_json` wrote.

        Args:
          text: of the entry.
          flags: of all configurations, by key.

        Raises:
          ValueError, TypeError, KeyError: it did not, or its configuration is missing.
        """
        fields = json.loads(text)
        return cls(**fields, flags=flags[fields["key"]])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
