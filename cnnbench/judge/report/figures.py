"""Values for export to other programs: one metric of one configuration and origin each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cnnbench.base.text.escape import plain
from cnnbench.base.text.labels import labels_of
from cnnbench.base.text.numbers import count
from cnnbench.judge.compare.comparability import Group
from cnnbench.judge.compare.estimate import usable_values
from cnnbench.judge.compare.judge import Judgement
from cnnbench.judge.compare.result import ComparedConfiguration, Comparison
from cnnbench.judge.metrics.measurement import Measurement, Origin, machine_names, titles
from cnnbench.judge.metrics.registry import Metric
from cnnbench.judge.report.results import ProcessValues
from cnnbench.records.codec import started

BASE, NEW = "base", "new"

_OF_SUBJECT = ("commit", "repository")
"""User labels that are part of the origin."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One metric of one configuration and origin; no format pools values of several subjects.

    Attributes:
      sample: one value per process; at least one.
      flags: those that are not at their defaults.
      started: start of the first process, in UTC.
      role: BASE or NEW of a comparison; "" elsewhere.
      point: name of the point of a history: a commit, day, run or label; "" elsewhere.
      detail: difference of the origin from those of other figures, or "".
      current: whether it is of the newest subject: NEW, or the last revision of a history.
    """

    metric: Metric
    sample: ProcessValues
    configuration: str
    key: str
    flags: Mapping[str, Any]
    origin: Origin
    machine: str
    started: datetime
    role: str = ""
    point: str = ""
    detail: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    current: bool = True
    judgement: Judgement | None = None

    @property
    def value(self) -> float:
        """The median of the processes, in `Metric.unit`."""
        assert self.sample.median is not None
        return self.sample.median

    @property
    def title(self) -> str:
        """Configuration, machine and detail in one line, the same for every commit."""
        parts = (f"{self.configuration} on {self.machine}", self.detail)
        return plain(", ".join(filter(None, parts)))

    def subject(self) -> dict[str, str]:
        """The known facts about the measured code, by name."""
        origin = self.origin
        found = {
            "configuration": self.configuration,
            "configuration_key": self.key,
            "role": self.role,
            "point": "" if self.point == origin.revision else self.point,
            "repository": origin.repository,
            "revision": origin.revision,
            "dirty": "" if origin.dirty is None else str(origin.dirty).lower(),
            "side": origin.side,
            "tensorflow_version": origin.tensorflow,
            "machine": self.machine,
        }
        return {name: text for name, value in found.items() if (text := plain(value))}


def shared_labels(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Labels that all processes share, without those of the origin."""
    first, *others = each
    return {
        name: value
        for name, value in first.items()
        if name not in _OF_SUBJECT and all(other.get(name) == value for other in others)
    }


def of_comparison(comparison: Comparison) -> list[Figure]:
    """Values of both sides, by configuration and origin; new ones with their verdict."""
    everything = [
        one for entry in comparison.entries for side in (entry.base, entry.new) for one in side
    ]
    machines = machine_names(map(Origin.of, everything))
    return [
        figure
        for entry in comparison.entries
        for role, records in ((BASE, entry.base), (NEW, entry.new))
        for figure in _of_side(entry, role, records, machines)
    ]


def _of_side(
    entry: ComparedConfiguration,
    role: str,
    records: tuple[Measurement, ...],
    machines: Mapping[Origin, str],
) -> Iterable[Figure]:
    origins = Group(entry.configuration, records).origins()
    details = titles(origins, without=("machine",))
    for origin, members in origins.items():
        good = [one for one in members if one.status == "ok"]
        for result in entry.results:
            values = usable_values(good, result.metric)
            if not values:
                continue
            yield Figure(
                metric=result.metric,
                sample=ProcessValues(values),
                configuration=entry.name,
                key=entry.configuration.key,
                flags=entry.configuration.not_default(),
                origin=origin,
                machine=machines[origin],
                started=min(started(one.started_at) for one in good),
                role=role,
                detail=details[origin],
                labels=shared_labels(labels_of(one.config) for one in good),
                current=role == NEW,
                judgement=result.judgement if role == NEW and len(origins) == 1 else None,
            )


def newest(figures: Sequence[Figure]) -> tuple[list[Figure], str]:
    """The figures of the newest subject, and a sentence about the others, or "".

    Of repeated measurements only the last; the base of a comparison is not mentioned.
    """
    last = {
        _key(figure): figure
        for figure in sorted(figures, key=lambda figure: figure.started)
        if figure.current
    }
    wanted = [figure for figure in figures if last.get(_key(figure)) is figure]
    others = sum(figure.role != BASE for figure in figures) - len(wanted)
    if not others:
        return wanted, ""
    values = count(others, "other value", "other values")
    if not wanted:
        return wanted, f"the newest commit has no value; {values} left out"
    revision = wanted[0].origin.short or "an unknown revision"
    return wanted, f"the format holds one commit, here {revision}; {values} left out"


def _key(figure: Figure) -> tuple[str, str]:
    return figure.title, figure.metric.name
