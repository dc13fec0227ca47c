"""Finds changes in time series of measurements: level changes, trends, undone changes, outliers and
changed properties of machine and software.

`cnnbench.base.levels` divides a time series into levels. This module describes the changes between
levels: whether a change is a regression or a gain, whether it was undone, and in which time series
the same commit caused a change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from cnnbench.base.levels import (
    MIN_SERIES,
    TWO_MACHINES,
    CommitTimeSeries,
    RecognizedNoise,
    SeriesLevel,
    find_levels,
    level_start_interval,
    scaled_change,
    scaled_threshold,
)
from cnnbench.base.slow_steps import SlowSteps, median_slow_steps, slow_step_cost_increase
from cnnbench.base.stats import group_by
from cnnbench.base.text import alternatives
from cnnbench.judge.compare.facts import DifferenceEffect, fact_rule
from cnnbench.judge.history.series import SeriesPoint, TimeSeries
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.judge.metrics.policy import Policy
from cnnbench.records.codec import JsonKeys, Key, keys_within
from cnnbench.records.metric import Metric

STEP, TREND, UNDONE, PLATEAU = "step", "trend", "undone", "plateau"
"""Values of `LevelChange.kind`, besides `TWO_MACHINES`."""

_MOST_OF_PLATEAU = 6
"""Maximum number of points in a plateau. A longer level that ends again is called an undone change.
"""

_OF_STATES = 1.5
"""If a machine alternates between two speeds, an outlier differs from the level by more than this
factor times the difference between the two speeds.
"""

_QUIET = {"hostname", "git_commit", "git_dirty", "git_changes", "git_unknown", "gpu_processes"}
"""Properties that texts about a level change do not contain, even if they changed."""


@dataclass(frozen=True)
class ChangedFact:
    """A recorded property, such as the TensorFlow version, that differs between the last point
    before a level change and the first point after it.

    Attributes:
      fact: name of the property.
      before, after: values of the property as text.
    """

    fact: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class LevelChange:
    """A change of the level of a time series: a step between two points, or a trend over several
    points.

    Attributes:
      kind: step; trend; undone: a change that was undone later, or the change that undid it;
        plateau: like undone, if the level has at most six points; two_machines: a step between
        levels that were measured on different machines.
      index: index in `points` of the first point of the new level, or of the trend.
      change: change as a share of the previous level, or a difference for metrics such as accuracy.
      before, after: values of the levels.
      worse: whether the change is a regression.
      stands: whether the change has not been undone up to the last level.
      last_good, first_bad: names of the last point before and the first point after the change,
        even if the change is a gain. For a trend, the point before the trend and its first point.
      earliest, latest: points between which the new level begins with 95 % probability. For a
        trend, its first and last point.
      range_start: the point before `earliest`. Pass it and `latest` as GOOD and BAD to cnnbench
        bisect.
      undone: first point of the level that undid the change; null if it was not undone.
      facts: recorded properties that changed between last_good and first_bad.
      slow: text about slow steps that explain a change of speed, because the runs of only one of
        the two levels have them; null if there are none.
    """

    json_keys: ClassVar[JsonKeys] = (
        "kind",
        "index",
        "change",
        Key("before", "before.value"),
        Key("after", "after.value"),
        "worse",
        "stands",
        Key("last_good", "last_good.title"),
        Key("first_bad", "first_bad.title"),
        Key("range_start", "range_start.title"),
        Key("earliest", "earliest.title"),
        Key("latest", "latest.title"),
        Key("undone", "undone.title"),
        "facts",
    )

    kind: str = STEP
    index: int
    change: float
    before: SeriesLevel
    after: SeriesLevel
    worse: bool
    stands: bool
    last_good: SeriesPoint
    first_bad: SeriesPoint
    range_start: SeriesPoint
    earliest: SeriesPoint
    latest: SeriesPoint
    undone: SeriesPoint | None = None
    facts: tuple[ChangedFact, ...]
    slow: SlowSteps | None = None

    @property
    def is_trend(self) -> bool:
        """Whether the level changed over several points, rather than between two points."""
        return self.kind == TREND


@dataclass(frozen=True)
class Outlier:
    """A point of a time series that is far from the level of its neighbours.

    Attributes:
      index: index in `points`.
      change: difference from the level, in the unit of `LevelChange.change`.
      kind: always "outlier".
    """

    index: int
    change: float
    kind: str = "outlier"


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A time series with its levels, the changes between these levels, outliers, and recognized
    kinds of noise.

    Attributes:
      enough: whether there are enough points to search for level changes.
      levels: levels in order.
      fitted: value of the level, or of the trend, at each point.
      steps: changes between levels.
      outliers: points far from their level.
      noise: recognized kinds of noise that are easily mistaken for level changes.
    """

    json_keys: ClassVar[JsonKeys] = (
        *keys_within("series", TimeSeries),
        Key("enough_points", "enough"),
        "levels",
        "fitted",
        "steps",
        "outliers",
        "noise",
    )

    series: TimeSeries
    enough: bool
    levels: tuple[SeriesLevel, ...]
    fitted: tuple[float, ...]
    steps: tuple[LevelChange, ...]
    outliers: tuple[Outlier, ...] = ()
    noise: RecognizedNoise = field(default_factory=RecognizedNoise)

    @property
    def lasting_regressions(self) -> tuple[LevelChange, ...]:
        """The regressions in the time series that have not been undone."""
        return tuple(step for step in self.steps if step.worse and step.stands)


def trend(series: TimeSeries, metric: Metric, threshold: float | None = None) -> Trend:
    """Finds the levels of a time series and the changes between them. The default of `threshold`
    (the smallest relevant change) is the threshold of the metric.
    """
    least = Policy().threshold_of(metric) if threshold is None else threshold
    runs = [point.values for point in series.points]
    levels = find_levels(runs, metric.relative, least)
    noisy = CommitTimeSeries(runs, metric.relative)
    floor = scaled_threshold(metric.relative, least)
    hosts = [point.hosts for point in series.points]
    noise = noisy.recognize_noise(levels, hosts, floor) if levels else RecognizedNoise()
    # On a machine with two speeds, points at the rarer speed are not outliers, so outliers must be
    # further away.
    far = max(least, _OF_STATES * abs(noise.states.change) if noise.states else 0.0)
    fitted = [
        level.at(at, metric.relative) for level in levels for at in range(level.start, level.stop)
    ]
    return Trend(
        series=series,
        levels=tuple(levels),
        fitted=tuple(fitted),
        steps=tuple(_level_changes(series.points, noisy, levels, metric, floor)),
        enough=len(runs) >= MIN_SERIES,
        outliers=tuple(Outlier(*outlier) for outlier in noisy.find_outliers(levels, far)),
        noise=noise,
    )


def _level_changes(
    points: Sequence[SeriesPoint],
    noisy: CommitTimeSeries,
    levels: Sequence[SeriesLevel],
    metric: Metric,
    floor: float,
) -> list[LevelChange]:
    """Returns the changes between consecutive levels that are larger than `floor`, the smallest
    relevant change, in order.
    """
    changes = []
    for number in range(1, len(levels)):
        before, after = levels[number - 1], levels[number]
        if before.slope:
            continue
        low, high = after.start, after.stop
        if after.slope:
            after = levels[number + 1]
        else:
            low, high = level_start_interval(noisy, levels, number)
        moved = scaled_change(before.value, after.value, metric.relative)
        if abs(moved) <= floor:
            continue
        change = after.value / before.value - 1 if metric.relative else after.value - before.value
        index = levels[number].start
        now = scaled_change(before.value, levels[-1].value, metric.relative)
        last_good, first_bad = points[index - 1], points[index]
        hosts = [
            {host for point in points[level.start : level.stop] for host in point.hosts}
            for level in (before, after)
        ]
        changed = changed_facts(last_good, first_bad)
        kind = STEP if levels[number] is after else TREND
        # The host names of a level identify a machine only if all runs of the level have the same
        # host name.
        two_hosts = len(hosts[0]) == len(hosts[1]) == 1 and hosts[0] != hosts[1]
        if kind == STEP and two_hosts and "" not in hosts[0] | hosts[1]:
            kind = TWO_MACHINES
            changed = (*changed, ChangedFact("hostname", *(host.pop() for host in hosts)))
        slower, faster = (before, after) if moved > 0 else (after, before)
        changes.append(
            LevelChange(
                kind=kind,
                index=index,
                before=before,
                after=after,
                change=change,
                worse=(moved > 0) != metric.higher_is_better,
                stands=abs(now) > floor and (now > 0) == (moved > 0),
                last_good=last_good,
                first_bad=first_bad,
                range_start=points[low - 1],
                earliest=points[low],
                latest=points[high],
                facts=changed,
                slow=_added_slow_steps(points, slower, faster) if metric is THROUGHPUT else None,
            )
        )
    return _mark_undone(points, changes, metric, floor)


def _mark_undone(
    points: Sequence[SeriesPoint], changes: Sequence[LevelChange], metric: Metric, floor: float
) -> list[LevelChange]:
    """Adds to each undone change the point at which it was undone. An undone change and the later
    change that undoes it both get the kind "undone" or "plateau".
    """
    changed = list(changes)
    for place, step in enumerate(changes):
        if step.stands:
            continue
        way = math.copysign(
            1.0, scaled_change(step.before.value, step.after.value, metric.relative)
        )
        for back in range(place + 1, len(changes)):
            left = way * scaled_change(
                step.before.value, changes[back].after.value, metric.relative
            )
            if left <= floor:
                break
        else:
            continue
        index = changes[back].index
        changed[place] = replace(changed[place], undone=points[index])
        kind = PLATEAU if index - step.index <= _MOST_OF_PLATEAU else UNDONE
        for end in (place, back):
            if changed[end].kind == STEP:
                changed[end] = replace(changed[end], kind=kind)
    return changed


def _added_slow_steps(
    points: Sequence[SeriesPoint], slower: SeriesLevel, faster: SeriesLevel
) -> SlowSteps | None:
    """Returns the slow training steps in the runs of the slower level, if the runs of the faster
    level have no such steps; otherwise None.
    """
    before, after = (
        median_slow_steps([point.common_slow_steps for point in points[level.start : level.stop]])
        for level in (faster, slower)
    )
    return after if slow_step_cost_increase(before, after) > Policy.threshold else None


def changed_facts(before: SeriesPoint, after: SeriesPoint) -> tuple[ChangedFact, ...]:
    """Returns the recorded properties that differ between the runs of two points of a time series.
    Properties that affect speed are first.
    """
    sides = (_fact_texts(before), _fact_texts(after))
    names = [
        name
        for name in sorted({*sides[0], *sides[1]})
        if name not in _QUIET and sides[0].get(name) != sides[1].get(name)
    ]
    names.sort(key=lambda name: fact_rule(name).effect is not DifferenceEffect.BLOCKS)
    return tuple(
        ChangedFact(name, sides[0].get(name, "unknown"), sides[1].get(name, "unknown"))
        for name in names
    )


def _fact_texts(point: SeriesPoint) -> Mapping[str, str]:
    values_by_fact: dict[str, set[str]] = {}
    for run in point.runs:
        for name, value in run.facts.items():
            values_by_fact.setdefault(name, set()).add(value)
    return {name: alternatives(sorted(values)) for name, values in values_by_fact.items()}


@dataclass(frozen=True)
class SharedStep:
    """Level changes in one or more time series that were caused by the same commit.

    Attributes:
      first_bad: name of the first point of the new level in most of the time series.
      series: indices of the time series in the document's `series`, ascending.
      places: for each of the time series, the index of the level change in its `steps`.
      worse: whether the changes are regressions.
      stands: whether the changes have not been undone up to the last level.
      smallest, largest: the most negative and the most positive of the changes.
      steps: pairs of a time series and its level change.
    """

    json_keys: ClassVar[JsonKeys] = (
        Key("first_bad", "first_bad.title"),
        "series",
        Key("steps", "places"),
        "worse",
        "stands",
        "smallest",
        "largest",
    )

    first_bad: SeriesPoint
    series: tuple[int, ...]
    places: tuple[int, ...]
    worse: bool
    stands: bool
    smallest: float
    largest: float
    steps: tuple[tuple[Trend, LevelChange], ...]


def shared_steps(trends: Sequence[Trend]) -> list[SharedStep]:
    """Groups the level changes of all time series by the commit that caused them, in the order of
    the first time series of each group.

    Level changes form a group if all are regressions or all are gains, if all or none of them have
    been undone, and if the first point of one new level is in the 95 % ranges of all other changes.
    A group contains at most one level change of each time series.
    """
    left = [(trend, step) for trend in trends for step in trend.steps]
    places = {id(step): place for place, (_, step) in enumerate(left)}
    shared = []
    while left:
        kinds = Counter(_group_key(step, step.first_bad.name) for _, step in left)
        (kind, _), *_ = kinds.most_common(1)
        members: dict[int, tuple[Trend, LevelChange]] = {}
        exact = [
            candidate
            for candidate in left
            if _group_key(candidate[1], candidate[1].first_bad.name) == kind
        ]
        for trend, step in [*exact, *left]:
            if _group_key(step, kind[0]) == kind and kind[0] in _candidate_names(trend, step):
                members.setdefault(id(trend), (trend, step))
        steps = sorted(members.values(), key=lambda member: places[id(member[1])])
        changes = [step.change for _, step in steps]
        shared.append(
            SharedStep(
                exact[0][1].first_bad,
                tuple(trends.index(trend) for trend, _ in steps),
                tuple(trend.steps.index(step) for trend, step in steps),
                exact[0][1].worse,
                exact[0][1].stands,
                min(changes),
                max(changes),
                tuple(steps),
            )
        )
        taken = {id(step) for _, step in steps}
        left = [candidate for candidate in left if id(candidate[1]) not in taken]
    return sorted(shared, key=lambda shared_step: places[id(shared_step.steps[0][1])])


@dataclass(frozen=True)
class SharedOutlier:
    """Outliers at the same point, such as a commit, in one or more time series.

    Attributes:
      point: name of the point.
      series: indices of the time series in the document's `series`, ascending.
      smallest, largest: the most negative and the most positive of the changes.
    """

    json_keys: ClassVar[JsonKeys] = (Key("point", "point.title"), "series", "smallest", "largest")

    point: SeriesPoint
    series: tuple[int, ...]
    smallest: float
    largest: float


def shared_outliers(trends: Sequence[Trend]) -> list[SharedOutlier]:
    """Groups the outliers of all time series by their measured commit.

    Groups are in the order in which `trends` contains their first outlier.
    """
    outliers = [
        (number, trend.series.points[outlier.index], outlier.change)
        for number, trend in enumerate(trends)
        for outlier in trend.outliers
    ]
    shared = []
    for alike in group_by(outliers, lambda outlier: outlier[1].name).values():
        numbers, points, changes = zip(*alike, strict=True)
        shared.append(SharedOutlier(points[0], numbers, min(changes), max(changes)))
    return shared


def _group_key(step: LevelChange, name: str) -> tuple[str, bool, bool, bool]:
    return name, step.worse, step.stands, step.is_trend


def _candidate_names(trend: Trend, step: LevelChange) -> set[str]:
    """Returns the names of the points at which the new level may begin: the points of the 95 %
    range of the level change.
    """
    points = trend.series.points
    ends = (points.index(step.earliest), step.index, points.index(step.latest))
    return {point.name for point in points[min(ends) : max(ends) + 1]}
