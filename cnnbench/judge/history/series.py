"""Sorts the measurements in a results directory into series of points."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TypeAlias

from cnnbench.base.slow_steps import SlowSteps, find_slow_steps, median_slow_steps
from cnnbench.base.stats import median
from cnnbench.base.terminal import natural_key
from cnnbench.base.text import labels_from_config, nearest_word
from cnnbench.errors import FlagError
from cnnbench.judge.compare.comparability import (
    Pair,
    Revision,
    compared_commit_lookup,
    compared_commit_text,
    find_resolved_match,
    match_complete_pairs,
    pair_id_of,
    revision_of,
)
from cnnbench.judge.compare.configuration import (
    Configuration,
    Effect,
    fact,
    measurements_of_sides,
    unique_configuration_names,
)
from cnnbench.judge.metrics import (
    Measurement,
    Origin,
    complete_origins,
    fact_text,
    kind_of,
    machine_names,
    origin_titles,
    short_commit,
)
from cnnbench.machine.repository import sort_by_place
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import (
    ABSENT,
    HIDDEN,
    TIME,
    computed,
    computed_path,
    key_metadata,
    started,
)
from cnnbench.records.metric import HISTORY, Metric
from cnnbench.records.run import ModelInfo, RunRecord, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One measurement of a process: a run, or a row of an all-reduce benchmark.

    Attributes:
      started: start of the process, in UTC.
      status: status of the measurement: "ok", "failed" or "interrupted".
      error: type and message of the error; "" if there was none.
      facts: facts about the environment that may affect measurements, and versions.
      values: finite values by metric.
      pair: seed of an experiment of `cnnbench ab`, and number of the pair; None for other runs.
      slow: slow steps of a run; None if there are none.
    """

    run_id: str
    started: datetime
    status: str
    error: str
    configuration: Configuration
    labels: Mapping[str, str]
    facts: Mapping[str, str]
    values: Mapping[str, float]
    origin: Origin
    subject: Subject | None = None
    pair: tuple[int, int] | None = None
    slow: SlowSteps | None = None

    @classmethod
    def all_of(
        cls, record: RunRecord | AllReduceRecord, metrics: Collection[str] = HISTORY
    ) -> list[HistoryEntry]:
        """One entry for a run, or one for each row of an all-reduce benchmark."""
        (rows,) = measurements_of_sides([record])
        labels = labels_from_config(record.config)
        facts = {
            name: fact_text(value, name)
            for name, value in record.environment.items()
            if fact(name).effect is not Effect.IGNORED
        }
        origin = Origin.of(record)
        pair = pair_id_of(record) if isinstance(record, RunRecord) else None
        return [
            cls(
                run_id=record.run_id,
                started=started(record.started_at),
                status=row.status,
                error="" if row.error is None else f"{row.error.type}: {row.error.message}",
                configuration=Configuration.of(row),
                labels=labels,
                facts=facts,
                values=_metric_values(row, metrics),
                origin=origin,
                subject=record.subject,
                pair=pair,
                slow=find_slow_steps(record.step_seconds)
                if isinstance(record, RunRecord)
                else None,
            )
            for row in rows
        ]

    @property
    def kind(self) -> str:
        """Kind of measurement; see `cnnbench.judge.metrics.KINDS`."""
        return self.configuration.kind

    @property
    def network(self) -> str:
        """Size of the network; "" if unknown."""
        return self.origin.network_size

    @property
    def hostname(self) -> str:
        """Name of the host; "" if unknown."""
        return self.facts.get("hostname", "")

    @property
    def commit(self) -> str:
        """The label `commit`, the measured revision, or cnnbench's revision; "" if unknown.

        The first one that is known is used.
        """
        return self.origin.revision


def _metric_values(row: Measurement, metrics: Collection[str]) -> dict[str, float]:
    kind = kind_of(row)
    values = {name: HISTORY[name].value(row) for name in metrics if kind in HISTORY[name].kinds}
    return {n: value for n, value in values.items() if value is not None and math.isfinite(value)}


POINTS = ("commit", "day", "run")
"""Values of --by besides names of labels and facts."""

_Points: TypeAlias = dict[tuple[str, Origin, str], list[HistoryEntry]]
"""Measurements by name of the point, origin, and the commit with which they were compared."""


@dataclass(frozen=True, eq=False)
class SeriesPoint:
    """Runs of one commit, day or label, with the same side, code, TensorFlow and machine.

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
      runs: runs in order of their start.
      detail: origin, and commit with which the point was compared, if they distinguish it from
        points with the same name; otherwise "".
      newest: whether the point is of the newest revision (and not the base in an experiment with
        that revision).
      hosts: name of the host for each value; "" if unknown.
    """

    name: str = field(metadata=HIDDEN)
    runs: tuple[HistoryEntry, ...] = field(metadata=HIDDEN)
    values: tuple[float, ...]
    failed: int = 0
    detail: str = field(default="", metadata=HIDDEN)
    newest: bool = field(default=False, metadata=HIDDEN)
    hosts: tuple[str, ...] = field(default=(), metadata=HIDDEN)

    labels = computed_path("_first_run.labels", Mapping[str, str])
    subject = computed_path("_first_run.subject", Subject | None, **ABSENT)

    @property
    def value(self) -> float:
        """Median over the processes of the point. There must be at least one."""
        return median(self.values)

    @property
    @computed(key="value", before="values")
    def _value(self) -> float | None:
        return self.value if self.values else None

    @property
    def _first_run(self) -> HistoryEntry:
        return self.runs[0]

    @property
    def origin(self) -> Origin:
        """The origin of the runs. It is the same for all of them."""
        return self.runs[0].origin

    @property
    @computed(key="name", before="value")
    def title(self) -> str:
        """The name and the detail, which are unique in a series."""
        return f"{self.name} ({self.detail})" if self.detail else self.name

    @property
    def short(self) -> str:
        """The title with a shortened commit."""
        name = short_commit(self.name)
        return f"{name} ({self.detail})" if self.detail else name

    @property
    @computed(before="value")
    def commit(self) -> str | None:
        """Commit of the first run; None if unknown."""
        return self.runs[0].commit or None

    @property
    def started(self) -> datetime:
        """Start of the first run, in UTC."""
        return self.runs[0].started

    @property
    @computed(before="value", **TIME)
    def started_at(self) -> str:
        """Start of the first run in ISO 8601."""
        return self.started.isoformat()

    @property
    def slow(self) -> SlowSteps | None:
        """The slow steps that most of the successful runs have in common."""
        return median_slow_steps([run.slow for run in self.runs if run.status == "ok"])

    @property
    @computed(before="subject")
    def hostnames(self) -> tuple[str, ...]:
        """Sorted names of the hosts of the runs."""
        return tuple(sorted({run.hostname for run in self.runs if run.hostname}))

    @property
    @computed(before="subject")
    def run_ids(self) -> tuple[str, ...]:
        """The run_ids of all runs."""
        return tuple(run.run_id for run in self.runs)


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """A series: measurements of one configuration, with one network, on one machine.

    Attributes:
      configuration: name of the configuration.
      key: hash of the configuration's flags.
      machine: name of the machine.
      points: points that have a value, in order.
      empty: points that have no successful run.
      before: size of the earlier network that this network has replaced, or "".
    """

    configuration: str
    key: str
    machine: str
    points: tuple[SeriesPoint, ...]
    empty: tuple[SeriesPoint, ...] = field(metadata=key_metadata("without_value"))
    before: str = field(default="", metadata=HIDDEN)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Selects runs by patterns (or parts) of names, and by their earliest start. Empty selects all
    runs.
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
    """Sorts measurements, which must be in order of their start, into series of points.

    `by` is "commit" (day if the commit is unknown), "day", "run", or the name of a label or fact.
    Raises FlagError if no measurement has this label or fact. For `order`, see `Revisions`.
    """
    resolved = _resolve_entries([entry for entry in entries if entry.kind in metric.kinds])
    _check_grouping(by, resolved)
    networks: dict[str, list[str]] = {}
    for entry in resolved:
        sizes = networks.setdefault(entry.configuration.key, [])
        sizes += [] if entry.network in sizes else [entry.network]
    chosen = _selected_entries(resolved, networks, selection or Selection())
    pairs = match_complete_pairs(entry for _, entry in chosen)
    opponent = compared_commit_lookup(pairs)
    groups: dict[tuple[str, str], _Points] = {}
    for place, entry in chosen:
        point = (_point_name(entry, by), entry.origin, opponent(entry))
        groups.setdefault(place, {}).setdefault(point, []).append(entry)
    revisions = Revisions([entry for _, entry in chosen], pairs, order)
    all_points = {place: _series_points(points, metric) for place, points in groups.items()}
    measured = (point.runs[0] for made in all_points.values() for point in made if point.values)
    newest = revisions.newest(measured)
    series = []
    for (configuration, machine), points in all_points.items():
        # Points are sorted by revision. If commits are named by labels, points are sorted by the
        # first run of each name, and then by revision.
        first: dict[str, int] = {}
        for index, measured_point in enumerate(points):
            first.setdefault(measured_point.name, 0 if by == "commit" else index)
        points.sort(key=lambda point: (first[point.name], revisions.place(point.runs[0])))
        run = points[0].runs[0]
        sizes = networks[run.configuration.key]
        made = [replace(point, newest=revisions.is_of(newest, point.runs[0])) for point in points]
        series.append(
            TimeSeries(
                configuration=configuration,
                key=run.configuration.key,
                machine=machine,
                points=tuple(point for point in made if point.values),
                empty=tuple(point for point in made if not point.values),
                before=["", *sizes][sizes.index(run.network)],
            )
        )
    return tuple(
        sorted(series, key=lambda group: natural_key(f"{group.configuration} {group.machine}"))
    )


def _selected_entries(
    entries: Sequence[HistoryEntry], networks: Mapping[str, Sequence[str]], wanted: Selection
) -> list[tuple[tuple[str, str], HistoryEntry]]:
    """The selected entries, each with the names of its configuration and machine."""
    configurations = unique_configuration_names(entry.configuration for entry in entries)
    machines = machine_names(entry.origin for entry in entries)
    chosen = []
    for entry in entries:
        key = entry.configuration.key
        several = len(networks[key]) > 1
        name = f"{configurations[key]}, {entry.network}" if several else configurations[key]
        place = (name, machines[entry.origin])
        if wanted == Selection() or _is_wanted(entry, *place, wanted):
            chosen.append((place, entry))
    return chosen


def _series_points(runs_by_point: _Points, metric: Metric) -> list[SeriesPoint]:
    """Points of a series. Equal names are distinguished by parts of their origins."""
    alike: dict[str, list[Origin]] = {}
    others: dict[tuple[str, Origin], list[str]] = {}
    for name, origin, other in runs_by_point:
        alike.setdefault(name, []).append(origin)
        others.setdefault((name, origin), []).append(other)
    details = {
        name: origin_titles(origins, without=("machine",)) for name, origins in alike.items()
    }
    made = []
    for (name, origin, other), runs in runs_by_point.items():
        parts = [details[name][origin]]
        if len(others[name, origin]) > 1:
            parts.append(compared_commit_text(other))
        good = [run for run in runs if run.status == "ok" and metric.name in run.values]
        usable = [run for run in good if run.values[metric.name] > 0 or not metric.relative]
        made.append(
            SeriesPoint(
                name=name,
                runs=tuple(runs),
                values=tuple(run.values[metric.name] for run in usable),
                failed=sum(run.status != "ok" for run in runs),
                detail=", ".join(filter(None, parts)),
                hosts=tuple(run.hostname for run in usable),
            )
        )
    return made


def _check_grouping(by: str, entries: Sequence[HistoryEntry]) -> None:
    if by in POINTS or not entries:
        return
    labels = {name for entry in entries for name in entry.labels}
    known = labels.union(name for entry in entries for name in entry.facts)
    if by in known:
        return
    close = nearest_word(by, {*POINTS, *known})
    there = f"there are {', '.join(POINTS)}"
    if labels:
        there += f", the labels {', '.join(sorted(labels, key=natural_key))}"
    hint = f"did you mean {close}?" if close else f"{there} and facts (cnnbench env)"
    raise FlagError("by", by, f"no measurement here has a label or fact of that name; {hint}")


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
    known, origins = tuple(whole.values()), complete_origins(entry.origin for entry in entries)
    entries_resolved = []
    # A run that ended before its network was known belongs to the series of the previous run.
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


def _is_wanted(entry: HistoryEntry, configuration: str, machine: str, wanted: Selection) -> bool:
    return (
        _matches_pattern(
            wanted.model, str(entry.configuration.flags.get("model") or ""), part=False
        )
        and _matches_pattern(wanted.configuration, configuration)
        and any(_matches_pattern(wanted.machine, name) for name in (machine, entry.hostname))
        and (wanted.since is None or entry.started >= wanted.since)
    )


def _matches_pattern(pattern: str, name: str, part: bool = True) -> bool:
    if not pattern:
        return True
    lower, text = pattern.lower(), name.lower()
    return fnmatchcase(text, lower) or (part and lower in text)


class Revisions:
    """Orders the revisions of measurements. A base comes before the head that was compared with it.

    Measurements must be in order of their start. Because `cnnbench ab` runs its sides in random
    order, either side may have been measured first. `pairs` contains the pairs of such experiments.

    `order` contains positions of commits, such as from the history of a repository. A commit that
    is not in `order` follows the commit that was measured before it. None means the order of time.
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
        for base, head in (map(revision_of, pair) for pair in pairs):
            if base == head:
                self._both_sides.add(base)
            else:
                self._heads[base] = head
                bases.setdefault(head, []).append(base)
        placed = _order_bases_first(dict.fromkeys(map(revision_of, entries)), bases)
        if order is not None:
            placed = sort_by_place(placed, lambda revision: order.get(revision[1]))
        self._places = {revision: place for place, revision in enumerate(placed)}

    def place(self, entry: HistoryEntry) -> tuple[int, str]:
        """Sort key of a measurement: position of its revision, then side A before side B."""
        return self._places[revision_of(entry)], entry.origin.side

    def newest(self, entries: Iterable[HistoryEntry]) -> Revision | None:
        """The last revision of the given measurements. For an experiment, the revision of side
        B.
        """
        last = max(map(revision_of, entries), key=self._places.__getitem__, default=None)
        passed: set[Revision] = set()
        while last is not None and last in self._heads and last not in passed:
            passed.add(last)
            last = self._heads[last]
        return last

    def is_of(self, newest: Revision | None, entry: HistoryEntry) -> bool:
        """Whether a measurement belongs to the newest revision, not to its base in an
        experiment.
        """
        revision = revision_of(entry)
        if newest is None or revision[:-1] != newest[:-1]:  # Compares everything except the day.
            return False
        return entry.origin.side != "a" or revision not in self._both_sides


def _order_bases_first(
    revisions: Iterable[Revision], bases: Mapping[Revision, Sequence[Revision]]
) -> list[Revision]:
    """Revisions in order, except that each revision comes after all its bases (unless in a
    cycle).
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
