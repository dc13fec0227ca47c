"""Steps of a series: place, size, and facts that changed there.

The points' medians are split by penalised least absolute deviations, as the steps of a run are
(`cnnbench.base.stats.changepoints`), into segments of at least two points. A point is one value,
whatever its number of processes, because runs of one session are correlated. For relative metrics,
logarithms are split. Levels that differ by less than the threshold are joined, the nearest first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cnnbench.base.stats.changepoints import change_points, noise
from cnnbench.base.stats.descriptive import median
from cnnbench.judge.history.series import SeriesPoint, TimeSeries
from cnnbench.judge.metrics.comparable_facts import Effect, fact
from cnnbench.judge.metrics.registry import Metric

MIN_POINTS = 2
"""Fewest points of a level; a single outlier is no level."""

MIN_SERIES = 6
"""Fewest points for an estimate of the noise."""

_LEAST_NOISE = 0.002
_CAUTION = 5.0
_CREDIBILITY = 0.95
_OUTLYING = 5.0
"""Standard deviations of an outlier from its level."""

_QUIET = {"hostname", "git_commit", "git_dirty", "git_changes", "git_unknown", "gpu_processes"}
"""Facts that are not named as changed at a step."""


@dataclass(frozen=True)
class SeriesLevel:
    """Consecutive points of one level.

    Attributes:
      start, stop: indices of the first point and behind the last one.
      value: median of the points.
    """

    start: int
    stop: int
    value: float


@dataclass(frozen=True)
class ChangedFact:
    """A fact that changed at a step.

    Attributes:
      fact: name of the fact.
      before, after: its values as text.
    """

    fact: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class LevelChange:
    """A change of level.

    Attributes:
      index: index of the first point of the new level.
      change: change as a share of `before`, or a difference.
      stands: whether the change persists in the last level.
      last_good, first_bad: the points before and after it, also of a change for the better.
      earliest, latest: the new level begins between these points with 95 % probability.
    """

    index: int
    before: SeriesLevel
    after: SeriesLevel
    change: float
    worse: bool
    stands: bool
    last_good: SeriesPoint
    first_bad: SeriesPoint
    earliest: SeriesPoint
    latest: SeriesPoint
    facts: tuple[ChangedFact, ...]


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A series with its levels and steps, and changes of points far from their level, by index.

    `enough`: whether there are enough points to find steps.
    """

    series: TimeSeries
    levels: tuple[SeriesLevel, ...]
    steps: tuple[LevelChange, ...]
    enough: bool
    outliers: Mapping[int, float] = field(default_factory=dict)

    @property
    def setbacks(self) -> tuple[LevelChange, ...]:
        """Steps for the worse that persist."""
        return tuple(step for step in self.steps if step.worse and step.stands)


def trend(series: TimeSeries, metric: Metric, threshold: float | None = None) -> Trend:
    """The levels of a series and the steps between them, by default with the metric's threshold."""
    values = [point.value for point in series.points]
    least = metric.threshold if threshold is None else threshold
    levels = find_levels(values, metric.relative, least)
    scaled = _scaled(values, metric.relative)
    steps = [
        _step(series.points, scaled, levels, number, metric, least)
        for number in range(1, len(levels))
    ]
    return Trend(
        series=series,
        levels=tuple(levels),
        steps=tuple(steps),
        enough=len(values) >= MIN_SERIES,
        outliers=_outliers(values, scaled, levels, metric, least),
    )


def _outliers(
    values: Sequence[float],
    scaled: Sequence[float],
    levels: Sequence[SeriesLevel],
    metric: Metric,
    threshold: float,
) -> dict[int, float]:
    """Changes of points that differ from their level by more than threshold and noise.

    The noise is 1.4826 times the median absolute deviation (for normal noise, the standard one).
    """
    if len(values) < MIN_SERIES:
        return {}
    level_of = {index: level for level in levels for index in range(level.start, level.stop)}
    middles = {level: _middle(scaled, level.start, level.stop) for level in levels}
    off = [abs(value - middles[level_of[index]]) for index, value in enumerate(scaled)]
    noise = 1.4826 * median(off) * (1 + _CAUTION / (len(values) - 3))
    changes = [_change(level_of[i].value, value, metric) for i, value in enumerate(values)]
    return {
        index: change
        for index, change in enumerate(changes)
        if abs(change) > threshold and off[index] > _OUTLYING * noise
    }


def find_levels(values: Sequence[float], relative: bool, threshold: float) -> list[SeriesLevel]:
    """The levels of finite values in order; those closer than the threshold are joined."""
    if not values:
        return []
    scaled = _scaled(values, relative)
    cuts = [0, len(values)]
    if len(values) >= MIN_SERIES:
        # Few values give a poor estimate of the noise, often too low.
        careful = noise(scaled)[0] * (1 + _CAUTION / (len(values) - 3))
        least = _LEAST_NOISE if relative else 0.0
        cuts[1:1] = change_points(scaled, max(careful, least), MIN_POINTS)
    while len(cuts) > 2:
        medians = [_middle(scaled, a, b) for a, b in pairwise(cuts)]
        gaps = [abs(b - a) for a, b in pairwise(medians)]
        smallest = min(range(len(gaps)), key=gaps.__getitem__)
        if gaps[smallest] > (math.log1p(threshold) if relative else threshold):
            break
        del cuts[smallest + 1]
    return [SeriesLevel(a, b, _middle(values, a, b)) for a, b in pairwise(cuts)]


def likely_starts(values: Sequence[float], first: int, cut: int, stop: int) -> tuple[int, int]:
    """The smallest interval that contains the start of a level with 95 % probability.

    The level before is values[first:cut], the one after values[cut:stop]. From the posterior with a
    uniform prior and Laplace noise around the two medians: exp(-deviations / scale).
    """
    before, after = _middle(values, first, cut), _middle(values, cut, stop)
    deviations = [
        abs(v - (before if i < cut else after)) for i, v in enumerate(values[first:stop], first)
    ]
    scale = max(
        sum(deviations) / len(deviations), 1e-12 * max(map(abs, values[first:stop])), 1e-300
    )
    places = range(first + 1, stop)
    costs = {first: 0.0}
    # Moving the cut by one place moves one value from a level to the other.
    for place in places:
        value = values[place - 1]
        costs[place] = costs[place - 1] + abs(value - before) - abs(value - after)
    lowest = min(costs[place] for place in places)
    weights = {place: math.exp(-(costs[place] - lowest) / scale) for place in places}
    total = sum(weights.values())
    low = high = cut
    while sum(weights[place] for place in range(low, high + 1)) < _CREDIBILITY * total:
        left = weights.get(low - 1, 0.0)
        right = weights.get(high + 1, 0.0)
        if left >= right and low - 1 in weights:
            low -= 1
        elif high + 1 in weights:
            high += 1
        else:
            break
    return low, high


def _step(
    points: Sequence[SeriesPoint],
    scaled: Sequence[float],
    levels: Sequence[SeriesLevel],
    number: int,
    metric: Metric,
    threshold: float,
) -> LevelChange:
    before, after = levels[number - 1], levels[number]
    last_good, first_bad = points[after.start - 1], points[after.start]
    low, high = likely_starts(scaled, before.start, after.start, after.stop)
    rose = after.value > before.value
    now = _change(before.value, levels[-1].value, metric)
    return LevelChange(
        index=after.start,
        before=before,
        after=after,
        change=_change(before.value, after.value, metric),
        worse=rose != metric.higher_is_better,
        stands=abs(now) > threshold and (now > 0) == rose,
        last_good=last_good,
        first_bad=first_bad,
        earliest=points[low],
        latest=points[high],
        facts=changed_facts(last_good, first_bad),
    )


def changed_facts(before: SeriesPoint, after: SeriesPoint) -> tuple[ChangedFact, ...]:
    """Facts that differ between two points, those that affect speed first."""
    sides = (_facts(before), _facts(after))
    names = [
        name
        for name in sorted({*sides[0], *sides[1]})
        if name not in _QUIET and sides[0].get(name) != sides[1].get(name)
    ]
    names.sort(key=lambda name: fact(name).effect is not Effect.BLOCKS)
    return tuple(
        ChangedFact(name, sides[0].get(name, "unknown"), sides[1].get(name, "unknown"))
        for name in names
    )


def _facts(point: SeriesPoint) -> Mapping[str, str]:
    found: dict[str, set[str]] = {}
    for run in point.runs:
        for name, value in run.facts.items():
            found.setdefault(name, set()).add(value)
    return {name: " or ".join(sorted(values)) for name, values in found.items()}


def _change(before: float, after: float, metric: Metric) -> float:
    return after / before - 1 if metric.relative else after - before


def _scaled(values: Sequence[float], relative: bool) -> list[float]:
    return [math.log(value) for value in values] if relative else list(values)


def _middle(values: Sequence[float], start: int, stop: int) -> float:
    return median(values[start:stop])
