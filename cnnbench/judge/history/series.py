"""Groups the measurements in a results directory into time series. Each point of a time series
contains the measurements of one commit, day or label.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import ClassVar, TypeAlias

from cnnbench.base.slow_steps import SlowSteps, find_slow_steps, median_slow_steps
from cnnbench.base.stats import median
from cnnbench.base.tables import natural_key
from cnnbench.base.text import suggestion
from cnnbench.base.values import labels_from_config
from cnnbench.errors import FlagError
from cnnbench.judge.compare.configuration import Configuration, unique_names
from cnnbench.judge.compare.facts import DifferenceEffect, fact_rule
from cnnbench.judge.compare.matching import (
    MeasuredProcess,
    Pair,
    Revision,
    find_resolved_match,
    match_complete_pairs,
    pair_id_of,
    revision_of,
)
from cnnbench.judge.compare.rows import records_to_measurements
from cnnbench.judge.metrics.measurement import Measurement, fact_text, short_commit
from cnnbench.judge.metrics.origin import Origin, fill_in_origins, machine_names, origin_titles
from cnnbench.machine.repository import sort_by_optional_place
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import ABSENT, TIME, JsonKeys, Key, parse_start_time
from cnnbench.records.metric import HISTORY, Metric
from cnnbench.records.run import ModelInfo, RunRecord
from cnnbench.records.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry(MeasuredProcess):
    """One measurement in a history: a run, or a row of an all-reduce record.

    Attributes:
      status: status of the measurement: "ok", "failed" or "interrupted".
      error: type and message of the error; "" if there was none.
      facts: recorded properties of the environment that may affect measurements, and versions.
      values: finite values by name of the metric.
      slow: slow steps of a run; None if there are none.
    """

    run_id: str
    status: str
    error: str
    configuration: Configuration
    labels: Mapping[str, str]
    facts: Mapping[str, str]
    values: Mapping[str, float]
    subject: Subject | None = None
    slow: SlowSteps | None = None

    @classmethod
    def all_of(
        cls, record: RunRecord | AllReduceRecord, metrics: Collection[str] = HISTORY
    ) -> list[HistoryEntry]:
        """Returns the measurements in a record: a run, or each row of an all-reduce record."""
        (rows,) = records_to_measurements([record])
        labels = labels_from_config(record.config)
        facts = _facts(json.dumps(record.environment))
        origin = Origin.of(record)
        pair = pair_id_of(record) if isinstance(record, RunRecord) else None
        slow = find_slow_steps(record.step_seconds) if isinstance(record, RunRecord) else None
        return [
            cls(
                run_id=record.run_id,
                started=parse_start_time(record.started_at),
                status=row.status,
                error="" if row.error is None else f"{row.error.type}: {row.error.message}",
                configuration=Configuration.of(row),
                labels=labels,
                facts=facts,
                values=_metric_values(row, metrics),
                origin=origin,
                subject=record.subject,
                pair=pair,
                slow=slow,
            )
            for row in rows
        ]

    @property
    def hostname(self) -> str:
        """Name of the host that ran the measurement; "" if unknown."""
        return self.facts.get("hostname", "")

    @property
    def commit(self) -> str:
        """The commit that was measured: the label `commit`, the revision of the measured
        repository, or the commit of cnnbench.

        The first of these that is known is used; "" if none is known.
        """
        return self.origin.revision


@lru_cache(maxsize=1024)
def _facts(environment: str) -> Mapping[str, str]:
    """Returns the texts of recorded properties, which are given as JSON. Cached, because most
    records in a folder have equal properties.
    """
    return {
        name: fact_text(value, name)
        for name, value in json.loads(environment).items()
        if fact_rule(name).effect is not DifferenceEffect.IGNORED
    }


def _metric_values(row: Measurement, metrics: Collection[str]) -> dict[str, float]:
    values = {name: HISTORY[name].value(row) for name in metrics if row.kind in HISTORY[name].kinds}
    return {n: value for n, value in values.items() if value is not None and math.isfinite(value)}


POINTS = ("commit", "day", "run")
"""Values of --by other than names of labels and recorded properties."""

_Points: TypeAlias = dict[tuple[str, Origin], list[HistoryEntry]]
"""Measurements by the name of their point and their origin."""


@dataclass(frozen=True, eq=False)
class SeriesPoint:
    """A point of a time series: the runs of one commit, day or label, with the same code,
    TensorFlow version and machine.

    Attributes:
      title: name of the point, unique in its series.
      commit: commit of the first run; None if unknown.
      started_at: start of the first run, ISO 8601.
      value: median over the processes; None if no process has a value.
      values: one value for each process.
      failed: number of processes that did not succeed.
      labels: labels (--result_label) of the first run.
      hostnames: names of the hosts, sorted.
      run_ids: run_ids of all processes.
      subject: subject of the first run's record; absent if it has none.
      origin: the code, TensorFlow version and machine that the runs measured. It has a side only if
        an experiment measured the same code as A and as B.
      runs: runs in order of their start.
      detail: origin, if it distinguishes the point from points with the same name; otherwise "".
      newest: whether the point is of the newest revision, and not of the base in an experiment with
        this revision.
      hosts: name of the host for each value; "" if unknown.
    """

    json_keys: ClassVar[JsonKeys] = (
        Key("name", "title"),
        "commit",
        Key("started_at", rules=TIME),
        Key("value", "_value"),
        "values",
        "failed",
        Key("labels", "_first_run.labels"),
        "hostnames",
        "run_ids",
        Key("subject", "_first_run.subject", ABSENT),
    )

    name: str
    origin: Origin
    runs: tuple[HistoryEntry, ...]
    values: tuple[float, ...]
    failed: int = 0
    detail: str = ""
    newest: bool = False
    hosts: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The median over the processes of the point, which must have a value."""
        return median(self.values)

    @property
    def _value(self) -> float | None:
        return self.value if self.values else None

    @property
    def _first_run(self) -> HistoryEntry:
        return self.runs[0]

    @property
    def title(self) -> str:
        """The name of the point, with a detail in parentheses if its time series contains another
        point with the same name.
        """
        return f"{self.name} ({self.detail})" if self.detail else self.name

    @property
    def short_title(self) -> str:
        """The title of the point. If its name is a commit, the commit is shortened."""
        name = short_commit(self.name)
        return f"{name} ({self.detail})" if self.detail else name

    @property
    def commit(self) -> str | None:
        """Commit of the first run of the point; None if unknown."""
        return self.runs[0].commit or None

    @property
    def started(self) -> datetime:
        """Start time of the first run of the point, in UTC."""
        return self.runs[0].started

    @property
    def started_at(self) -> str:
        """Start time of the first run of the point, as text in ISO 8601."""
        return self.started.isoformat()

    @property
    def common_slow_steps(self) -> SlowSteps | None:
        """The slow steps that most successful runs of the point share; None if there are none."""
        return median_slow_steps([run.slow for run in self.runs if run.status == "ok"])

    @property
    def hostnames(self) -> tuple[str, ...]:
        """Names of the hosts that ran the measurements of the point, sorted."""
        return tuple(sorted({run.hostname for run in self.runs if run.hostname}))

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The run_ids of all runs of the point."""
        return tuple(run.run_id for run in self.runs)


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """Measurements of one configuration, with one network, on one machine, as points in order of
    time or commits.

    Attributes:
      configuration: name of the configuration.
      key: hash of the configuration's flags.
      machine: name of the machine.
      points: points that have a value, in order.
      empty: points that have no successful run.
      before: size of the earlier network that this network has replaced, or "".
    """

    json_keys: ClassVar[JsonKeys] = (
        "configuration",
        "key",
        "machine",
        "points",
        Key("without_value", "empty"),
    )

    configuration: str
    key: str
    machine: str
    points: tuple[SeriesPoint, ...]
    empty: tuple[SeriesPoint, ...]
    before: str = ""

    def of_metric(self, metric: Metric) -> TimeSeries:
        """The points with the values of another metric, which the entries must contain."""
        points = []
        for point in self.points:
            values, hosts = _values_and_hosts(point.runs, metric)
            points.append(replace(point, values=values, hosts=hosts))
        lacking = tuple(point for point in points if not point.values)
        return replace(
            self,
            points=tuple(point for point in points if point.values),
            empty=self.empty + lacking,
        )


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Selects runs by model, configuration and machine (patterns, or parts of names), and by
    earliest start. Empty fields select all runs.
    """

    model: str = ""
    configuration: str = ""
    machine: str = ""
    since: datetime | None = None


def all_series(
    entries: Iterable[HistoryEntry],
    metric: Metric,
    *,
    by: str = "commit",
    selection: Selection | None = None,
    order: Mapping[str, int] | None = None,
) -> tuple[TimeSeries, ...]:
    """Groups measurements by configuration and machine into time series, which consist of points.
    The measurements must be in order of their start times.

    `by` determines which measurements form a point: "commit" (or the day if the commit is unknown),
    "day", "run", or the name of a label or recorded property. Raises FlagError if no measurement
    has this label or property. For `order`, see `RevisionOrder`.
    """
    wanted = [entry for entry in entries if entry.configuration.kind in metric.kinds]
    resolved = _resolve_entries(wanted)
    _check_grouping(by, resolved)
    networks: dict[str, list[str]] = {}
    for entry in resolved:
        sizes = networks.setdefault(entry.configuration.key, [])
        sizes += [] if entry.origin.network_text in sizes else [entry.origin.network_text]
    chosen = _selected_entries(resolved, networks, selection or Selection())
    pairs = match_complete_pairs(entry for _, entry in chosen)
    one_revision = {revision for revision, other in _revision_pairs(pairs) if revision == other}
    groups: dict[tuple[str, str], _Points] = {}
    for place, entry in chosen:
        point = (_point_name(entry, by), _point_origin(entry, by, one_revision))
        groups.setdefault(place, {}).setdefault(point, []).append(entry)
    revisions = RevisionOrder([entry for _, entry in chosen], pairs, order)
    all_points = {place: _series_points(points, metric) for place, points in groups.items()}
    measured = (point.runs[0] for made in all_points.values() for point in made if point.values)
    newest = revisions.newest(measured)
    series = []
    for (configuration, machine), points in all_points.items():
        # With --by=commit, points are sorted by revision; otherwise by the first run with their
        # name, then by revision.
        first: dict[str, int] = {}
        for index, measured_point in enumerate(points):
            first.setdefault(measured_point.name, 0 if by == "commit" else index)
        points.sort(key=lambda point: (first[point.name], revisions.sort_key(point.runs[0])))
        run = points[0].runs[0]
        sizes = networks[run.configuration.key]
        made = [
            replace(point, newest=revisions.is_newest(newest, point.runs[0])) for point in points
        ]
        series.append(
            TimeSeries(
                configuration=configuration,
                key=run.configuration.key,
                machine=machine,
                points=tuple(point for point in made if point.values),
                empty=tuple(point for point in made if not point.values),
                before=["", *sizes][sizes.index(run.origin.network_text)],
            )
        )
    return tuple(
        sorted(series, key=lambda group: natural_key(f"{group.configuration} {group.machine}"))
    )


def _point_origin(entry: HistoryEntry, by: str, one_revision: Collection[Revision]) -> Origin:
    """Returns the code and the machine that a point measured. Without a side, a commit is one
    point, also if it was the base of one experiment and the head of another. Both sides of an
    experiment with `one_revision` are points.
    """
    if not entry.origin.side or by != "commit" or revision_of(entry) in one_revision:
        return entry.origin
    return _without_side(entry.origin)


@lru_cache(maxsize=1024)
def _without_side(origin: Origin) -> Origin:
    return replace(origin, side="")


def _selected_entries(
    entries: Sequence[HistoryEntry], networks: Mapping[str, Sequence[str]], wanted: Selection
) -> list[tuple[tuple[str, str], HistoryEntry]]:
    """Returns the selected measurements with the names of their configuration and machine."""
    configurations = unique_names(entry.configuration for entry in entries)
    machines = machine_names(entry.origin for entry in entries)
    chosen = []
    every = wanted == Selection()
    for entry in entries:
        key = entry.configuration.key
        several = len(networks[key]) > 1
        name = configurations[key]
        if several:
            name += f", {entry.origin.network_text}"
        place = (name, machines[entry.origin])
        if every or _is_selected(entry, *place, wanted):
            chosen.append((place, entry))
    return chosen


def _series_points(runs_by_point: _Points, metric: Metric) -> list[SeriesPoint]:
    """Returns the points of a time series. If points have equal names, the detail of each point
    contains the components of its origin that differ.
    """
    alike: dict[str, list[Origin]] = {}
    for name, origin in runs_by_point:
        alike.setdefault(name, []).append(origin)
    details = {
        name: origin_titles(origins, without=("machine",)) for name, origins in alike.items()
    }
    made = []
    for (name, origin), runs in runs_by_point.items():
        values, hosts = _values_and_hosts(runs, metric)
        made.append(
            SeriesPoint(
                name=name,
                origin=origin,
                runs=tuple(runs),
                values=values,
                failed=sum(run.status != "ok" for run in runs),
                detail=details[name][origin],
                hosts=hosts,
            )
        )
    return made


def _values_and_hosts(
    runs: Sequence[HistoryEntry], metric: Metric
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Values of a metric in the successful runs of a point, and the names of their hosts."""
    good = [run for run in runs if run.status == "ok" and metric.name in run.values]
    usable = [run for run in good if run.values[metric.name] > 0 or not metric.relative]
    return tuple(run.values[metric.name] for run in usable), tuple(run.hostname for run in usable)


def _check_grouping(by: str, entries: Sequence[HistoryEntry]) -> None:
    if by in POINTS or not entries:
        return
    labels = {name for entry in entries for name in entry.labels}
    known = labels.union(name for entry in entries for name in entry.facts)
    if by in known:
        return
    there = f"there are {', '.join(POINTS)}"
    if labels:
        there += f", the labels {', '.join(sorted(labels, key=natural_key))}"
    hint = suggestion(by, {*POINTS, *known}, f"{there} and properties (cnnbench env)")
    raise FlagError("by", by, f"no measurement has a label or property with this name; {hint}")


def _point_name(entry: HistoryEntry, by: str) -> str:
    if by == "run":
        return entry.run_id
    if by == "commit" and entry.commit:
        return entry.commit
    if by in ("commit", "day"):
        return f"{entry.started:%Y-%m-%d}"
    return entry.labels.get(by) or entry.facts.get(by, "") or "unknown"


def _resolve_entries(entries: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    whole = {e.configuration.key: e.configuration for e in entries if e.configuration.resolved}
    known, origins = tuple(whole.values()), fill_in_origins(entry.origin for entry in entries)
    entries_resolved = []
    # A run that ended before its network was built is assumed to have the network of the run before
    # it.
    last: dict[str, ModelInfo] = {}
    for entry in entries:
        configuration, origin = entry.configuration, origins[entry.origin]
        if not configuration.resolved:
            configuration = find_resolved_match(configuration, known)
        if configuration is not entry.configuration or origin is not entry.origin:
            entry = replace(entry, configuration=configuration, origin=origin)
        entries_resolved.append(entry)
        if origin.network:
            last.setdefault(configuration.key, origin.network)
    for index, entry in enumerate(entries_resolved):
        key, network = entry.configuration.key, entry.origin.network
        if network:
            last[key] = network
        elif key in last:
            entries_resolved[index] = replace(
                entry, origin=replace(entry.origin, network=last[key])
            )
    return entries_resolved


def _is_selected(entry: HistoryEntry, configuration: str, machine: str, wanted: Selection) -> bool:
    return (
        _matches(wanted.model, str(entry.configuration.flags.get("model") or ""), part=False)
        and _matches(wanted.configuration, configuration)
        and any(_matches(wanted.machine, name) for name in (machine, entry.hostname))
        and (wanted.since is None or entry.started >= wanted.since)
    )


def _matches(pattern: str, name: str, part: bool = True) -> bool:
    if not pattern:
        return True
    lower, text = pattern.lower(), name.lower()
    return fnmatchcase(text, lower) or (part and lower in text)


class RevisionOrder:
    """Sorts the measured revisions of the code. The base of an experiment comes before the revision
    that the experiment compared with the base.

    Measurements must be in order of their start times. Because `cnnbench ab` runs A and B in random
    order, A or B may have been measured first. `pairs` contains the pairs of all experiments.

    `order` maps commits to positions, such as their positions in the history of a repository. A
    commit that is not in `order` follows the commit before it in the order of the first
    measurements.
    """

    def __init__(
        self,
        entries: Sequence[HistoryEntry],
        pairs: Sequence[Pair] = (),
        order: Mapping[str, int] | None = None,
    ) -> None:
        self._heads: dict[Revision, Revision] = {}
        self._both_sides: set[Revision] = set()
        bases: dict[Revision, list[Revision]] = {}
        for base, head in _revision_pairs(pairs):
            if base == head:
                self._both_sides.add(base)
            else:
                self._heads[base] = head
                bases.setdefault(head, []).append(base)
        placed = _bases_first(dict.fromkeys(map(revision_of, entries)), bases)
        if order is not None:
            placed = sort_by_optional_place(placed, lambda revision: order.get(revision[1]))
        self._places = {revision: place for place, revision in enumerate(placed)}

    def sort_key(self, entry: HistoryEntry) -> tuple[int, str]:
        """Returns the sort key of a measurement: the place of its revision, then its side."""
        return self._places[revision_of(entry)], entry.origin.side

    def newest(self, entries: Iterable[HistoryEntry]) -> Revision | None:
        """Returns the last revision among the given measurements. If an experiment used this
        revision as base, returns the revision that was compared with the base.
        """
        last = max(map(revision_of, entries), key=self._places.__getitem__, default=None)
        passed: set[Revision] = set()
        while last is not None and last in self._heads and last not in passed:
            passed.add(last)
            last = self._heads[last]
        return last

    def is_newest(self, newest: Revision | None, entry: HistoryEntry) -> bool:
        """Whether a measurement has the newest revision. If both A and B of an experiment have this
        revision, only B is the newest.
        """
        revision = revision_of(entry)
        # The last item of a revision is the day; it does not matter here.
        if newest is None or revision[:-1] != newest[:-1]:
            return False
        return entry.origin.side != "a" or revision not in self._both_sides


def _revision_pairs(pairs: Iterable[Pair]) -> Iterator[tuple[Revision, Revision]]:
    """Yields the revisions of base and head for each pair."""
    return ((revision_of(base), revision_of(head)) for base, head in pairs)


def _bases_first(
    revisions: Iterable[Revision], bases: Mapping[Revision, Sequence[Revision]]
) -> list[Revision]:
    """Sorts revisions so that each revision comes after its bases, with which experiments compared
    it. Apart from this, the order is kept. Cycles are ignored.
    """
    placed: dict[Revision, None] = {}
    seen: set[Revision] = set()
    for revision in revisions:
        waiting = [revision]
        while waiting:
            seen.add(waiting[-1])
            first = [commit for commit in bases.get(waiting[-1], ()) if commit not in seen]
            if first:
                waiting += dict.fromkeys(first)
            else:
                placed[waiting.pop()] = None
    return list(placed)
