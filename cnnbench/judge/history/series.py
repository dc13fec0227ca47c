"""Series: points of one configuration on one machine, usually one per commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TypeAlias

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.messages import nearest
from cnnbench.base.text.table import natural_key
from cnnbench.errors import FlagError
from cnnbench.judge.compare.configuration import labels
from cnnbench.judge.compare.matching import home
from cnnbench.judge.history.entries import HistoryEntry
from cnnbench.judge.history.order import Revisions
from cnnbench.judge.metrics.measurement import short_commit
from cnnbench.judge.metrics.origin import Origin, machine_names, titles
from cnnbench.judge.metrics.registry import Metric
from cnnbench.machine.git import GitError, git

POINTS = ("commit", "day", "run")
"""Values of --by, besides labels and facts."""

_Points: TypeAlias = dict[tuple[str, Origin], list[HistoryEntry]]
"""Measurements by the name of their point and by their origin."""


@dataclass(frozen=True, eq=False)
class SeriesPoint:
    """The runs of one commit, day or label that are of one origin.

    Attributes:
      runs: in order of their start.
      values: one per process that succeeded and measured the metric.
      detail: difference of its origin from those of points of the same name, or "".
      newest: whether it is of the newest revision, and not the base of an experiment with it.
    """

    name: str
    runs: tuple[HistoryEntry, ...]
    values: tuple[float, ...]
    detail: str = ""
    newest: bool = False

    @property
    def value(self) -> float:
        """The median of its processes."""
        return median(self.values)

    @property
    def origin(self) -> Origin:
        """Of all of its runs."""
        return self.runs[0].origin

    @property
    def title(self) -> str:
        """The name with the detail: unique in its series."""
        return f"{self.name} ({self.detail})" if self.detail else self.name

    @property
    def short(self) -> str:
        """The title with a shortened commit."""
        name = short_commit(self.name)
        return f"{name} ({self.detail})" if self.detail else name

    @property
    def started(self) -> datetime:
        """Start of its first run, in UTC."""
        return self.runs[0].started

    @property
    def failed(self) -> int:
        """Number of runs that did not succeed."""
        return sum(run.status != "ok" for run in self.runs)


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """One configuration on one machine: points with a value, in order, and those without any."""

    configuration: str
    key: str
    machine: str
    points: tuple[SeriesPoint, ...]
    empty: tuple[SeriesPoint, ...]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Patterns, or parts of names, of selected runs, and their earliest start; empty: all runs."""

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
    """Sorts measurements, in order of their start, into series of points.

    `by` is "commit" (or day, where the commit is unknown), "day", "run", or the name of a label or
    fact; FlagError if no measurement has it. For `order` see `Revisions`.
    """
    wanted = selection or Selection()
    found = _resolved([entry for entry in entries if entry.kind in metric.kinds])
    _check_by(by, found)
    configurations = labels(entry.configuration for entry in found)
    machines = machine_names(entry.origin for entry in found)
    name = _namer(by)
    groups: dict[tuple[str, str], _Points] = {}
    chosen = []
    for entry in found:
        place = (configurations[entry.configuration.key], machines[entry.origin])
        if _is_wanted(entry, *place, wanted):
            chosen.append(entry)
            point = (name(entry), entry.origin)
            groups.setdefault(place, {}).setdefault(point, []).append(entry)
    revisions = Revisions(chosen, order)
    all_points = {place: _points(points, metric) for place, points in groups.items()}
    measured = (point.runs[0] for made in all_points.values() for point in made if point.values)
    newest = revisions.newest(measured)
    series = []
    for (configuration, machine), points in all_points.items():
        made = [
            replace(point, newest=revisions.is_of(newest, point.runs[0]))
            for point in _ordered(points, revisions, by)
        ]
        series.append(
            TimeSeries(
                configuration=configuration,
                key=made[0].runs[0].configuration.key,
                machine=machine,
                points=tuple(point for point in made if point.values),
                empty=tuple(point for point in made if not point.values),
            )
        )
    return tuple(sorted(series, key=lambda one: natural_key(f"{one.configuration} {one.machine}")))


def _points(found: _Points, metric: Metric) -> list[SeriesPoint]:
    """Points of a series; equal names are distinguished by the parts of origins that vary."""
    alike: dict[str, list[Origin]] = {}
    for name, origin in found:
        alike.setdefault(name, []).append(origin)
    details = {name: titles(origins, without=("machine",)) for name, origins in alike.items()}
    return [
        _point(name, runs, metric, details[name][origin]) for (name, origin), runs in found.items()
    ]


def _point(name: str, runs: Sequence[HistoryEntry], metric: Metric, detail: str) -> SeriesPoint:
    values = (run.values.get(metric.name) for run in runs if run.status == "ok")
    known = (value for value in values if value is not None)
    usable = tuple(value for value in known if value > 0 or not metric.relative)
    return SeriesPoint(name, tuple(runs), usable, detail)


def _ordered(points: Sequence[SeriesPoint], revisions: Revisions, by: str) -> list[SeriesPoint]:
    """Points by revision; if named otherwise, by their first run and then by revision."""
    first: dict[str, int] = {}
    for index, point in enumerate(points):
        first.setdefault(point.name, 0 if by == "commit" else index)
    return sorted(points, key=lambda one: (first[one.name], revisions.place(one.runs[0])))


def _check_by(by: str, entries: Sequence[HistoryEntry]) -> None:
    if by in POINTS or not entries:
        return
    labels = {name for entry in entries for name in entry.labels}
    known = labels.union(name for entry in entries for name in entry.facts)
    if by in known:
        return
    close = nearest(by, {*POINTS, *known})
    there = f"there are {', '.join(POINTS)}"
    if labels:
        there += f", the labels {', '.join(sorted(labels, key=natural_key))}"
    hint = f"did you mean {close}?" if close else f"{there} and facts (cnnbench env)"
    raise FlagError("by", by, f"no measurement here has a label or fact of that name; {hint}")


def _namer(by: str) -> Callable[[HistoryEntry], str]:
    if by == "run":
        return lambda entry: entry.run_id
    if by == "day":
        return _day
    if by == "commit":
        return lambda entry: entry.commit or _day(entry)
    return lambda entry: entry.labels.get(by) or entry.facts.get(by, "") or "unknown"


def _day(entry: HistoryEntry) -> str:
    return entry.started.strftime("%Y-%m-%d")


def _resolved(entries: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    whole = {e.configuration.key: e.configuration for e in entries if e.configuration.resolved}
    resolved = tuple(whole.values())
    return [
        entry
        if entry.configuration.resolved
        else replace(entry, configuration=home(entry.configuration, resolved))
        for entry in entries
    ]


def _is_wanted(entry: HistoryEntry, configuration: str, machine: str, wanted: Selection) -> bool:
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


def order_of_commits(folder: str) -> dict[str, int]:
    """Place of every commit of all branches, ancestors before descendants.

    Keys are full names and unique abbreviations of 7 to 12 digits.
    """
    try:
        commits = git("rev-list", "--all", "--topo-order", "--reverse", folder=folder).split()
    except GitError as error:
        raise FlagError("git", folder, str(error)) from None
    places = {commit: place for place, commit in enumerate(commits)}
    for digits in range(7, 13):
        short: dict[str, list[int]] = {}
        for place, commit in enumerate(commits):
            short.setdefault(commit[:digits], []).append(place)
        places |= {name: found[0] for name, found in short.items() if len(found) == 1}
    return places
