"""What the history keeps of a measurement: enough to sort, to draw and to explain a step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from cnnbench.compare.configuration import Configuration
from cnnbench.compare.measurement import RUN, Measurement, fact_text
from cnnbench.compare.reductions import measurements
from cnnbench.history.metrics import METRICS
from cnnbench.metrics.comparable_facts import Role, fact
from cnnbench.records.run import RunRecord
from cnnbench.text.labels import labels_of

if TYPE_CHECKING:
    from cnnbench.records.allreduce import AllReduceRecord

_MACHINE = ("gpu_names", "cpu_model", "architecture", "usable_cpus", "cgroup_cpu_limit")
"""Facts that make a machine another one. Names of hosts do not: a pool of like machines is one
machine, and what changes on a machine, such as a driver, is for the history to show."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One measurement of one process, as the index holds it: a run, or a row of all-reduces.

    Attributes:
      run_id, started_at: of the process.
      status: of the measurement: "ok", "failed" or "interrupted".
      error: type and message of a failed one; "" if it did not fail.
      key: of the configuration.
      flags: of the configuration.
      resolved: whether the flags are as they turned out.
      hostname: "" if unknown.
      machine: facts that make the machine, by name.
      labels: what the user said about the run (--result_label).
      facts: facts of the environment that may move a measurement or tell a version.
      values: by metric; those that were measured.
      kind: of the measurement.
      given: flags that were asked for.
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
    kind: str = RUN
    given: tuple[str, ...] = ()

    @classmethod
    def of(cls, measurement: Measurement) -> Entry:
        """The entry of a measurement, such as a run's record."""
        return cls._of(measurement, _Process.of(measurement))

    @classmethod
    def all_of(cls, record: RunRecord | AllReduceRecord) -> list[Entry]:
        """The entries of a record: one of a run, one per row of an all-reduce measurement."""
        (found,) = measurements([record])
        process = _Process.of(record)
        return [cls._of(one, process) for one in found]

    @classmethod
    def _of(cls, measurement: Measurement, process: _Process) -> Entry:
        configuration = Configuration.of(measurement)
        found = {
            name: metric.value(measurement)
            for name, metric in METRICS.items()
            if measurement.kind in metric.kinds
        }
        error = measurement.error
        return cls(
            **vars(process),
            status=measurement.status,
            error="" if error is None else f"{error.type}: {error.message}",
            key=configuration.key,
            flags=configuration.flags,
            resolved=configuration.resolved,
            values={
                name: value
                for name, value in found.items()
                if value is not None and math.isfinite(value)
            },
            kind=measurement.kind,
            given=tuple(sorted(configuration.given)),
        )

    @property
    def configuration(self) -> Configuration:
        """The configuration that the run repeats."""
        given = frozenset(self.given)
        return Configuration(self.flags, self.key, self.resolved, self.kind, given)

    @property
    def commit(self) -> str:
        """What the run is a measurement of: the label, else cnnbench's own commit, or ""."""
        return self.labels.get("commit") or self.facts.get("git_commit", "")


@dataclass(frozen=True, kw_only=True)
class _Process:
    """What all entries of a process share; see `Entry`."""

    run_id: str
    started_at: str
    hostname: str
    machine: Mapping[str, str]
    labels: Mapping[str, str]
    facts: Mapping[str, str]

    @classmethod
    def of(cls, record: Measurement | AllReduceRecord) -> _Process:
        facts = {
            name: fact_text(value)
            for name, value in record.environment.items()
            if fact(name).role is not Role.IGNORED
        }
        return cls(
            run_id=record.run_id,
            started_at=record.started_at,
            hostname=facts.get("hostname", ""),
            machine={name: facts[name] for name in _MACHINE if name in facts},
            labels=labels_of(record.config),
            facts=facts,
        )


_SHARED = tuple(field.name for field in fields(_Process))


def to_json(entries: Sequence[Entry]) -> str:
    """The entries of a process for the index; without the flags, which many runs share."""
    shared = {name: getattr(one, name) for one in entries[:1] for name in _SHARED}
    return json.dumps(
        {
            "process": shared,
            "entries": [
                {
                    name: value
                    for name, value in vars(one).items()
                    if name not in _SHARED and name != "flags"
                }
                for one in entries
            ],
        }
    )


def from_json(text: str, flags: Mapping[str, Mapping[str, Any]]) -> list[Entry]:
    """What `to_json` wrote.

    Args:
      text: of the entries.
      flags: of all configurations, by key.

    Raises:
      ValueError, TypeError, KeyError: it did not, or a configuration is missing.
    """
    found = json.loads(text)
    shared = found["process"]
    return [
        Entry(**shared, **{**one, "given": tuple(one["given"])}, flags=flags[one["key"]])
        for one in found["entries"]
    ]
