"""Steps of a series: place, size, and facts that changed there.

The points' medians are split by penalised least absolute deviations, as the steps of a run are
(`cnnbench.base.stats.changepoints`), into segments of at least two points. A point is one value,
whatever its number of processes, because runs of one session are correlated. For relative metrics,
logarithms are split. Levels are joined if the noise around all levels (`noise`) explains their
difference, and if they differ by less than the threshold, the nearest first.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from cnnbench.base.stats.changepoints import change_points, growing_deviations, noise
from cnnbench.base.stats.descriptive import median
from cnnbench.base.stats.slow_steps import SlowSteps, shared_slow_steps
from cnnbench.judge.history.noise import NoisyPoints, RecognizedNoise, inflation
from cnnbench.judge.history.series import SeriesPoint, TimeSeries
from cnnbench.judge.metrics.comparable_facts import Effect, fact
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import Metric
from cnnbench.judge.metrics.speed import further_cost

MIN_POINTS = 2
"""Fewest points of a level; a single outlier is no level."""

MIN_SERIES = 6
"""Fewest points for an estimate of the noise."""

_CAUTION = 5.0
_CREDIBILITY = 0.95
_CORRELATION_ERRORS = 0.5
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
      slow: slow steps of runs that explain a change of speed: those that one level has and the
        other one lacks; None without.
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
    slow: SlowSteps | None = None


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
    noise: RecognizedNoise = field(default_factory=RecognizedNoise)

    @property
    def setbacks(self) -> tuple[LevelChange, ...]:
        """Steps for the worse that persist."""
        return tuple(step for step in self.steps if step.worse and step.stands)


def trend(series: TimeSeries, metric: Metric, threshold: float | None = None) -> Trend:
    """The levels of a series and the steps between them, by default with the metric's threshold."""
    values = [point.value for point in series.points]
    least = Policy().threshold_of(metric) if threshold is None else threshold
    runs = [point.values for point in series.points]
    levels = find_levels(runs, metric.relative, least)
    noisy = NoisyPoints(runs, metric.relative)
    steps = [
        _step(series.points, noisy, levels, number, metric, least)
        for number in range(1, len(levels))
    ]
    return Trend(
        series=series,
        levels=tuple(levels),
        steps=tuple(steps),
        enough=len(values) >= MIN_SERIES,
        outliers=_outliers(values, noisy, levels, metric, least),
        noise=noisy.recognized(_cuts(levels)) if levels else RecognizedNoise(),
    )


def _cuts(levels: Sequence[SeriesLevel]) -> list[int]:
    return [0, *(level.stop for level in levels)]


def _outliers(
    values: Sequence[float],
    noisy: NoisyPoints,
    levels: Sequence[SeriesLevel],
    metric: Metric,
    threshold: float,
) -> dict[int, float]:
    """Changes of points that differ from their level by more than threshold and noise.

    The noise is 1.4826 times the median absolute deviation (for normal noise, the standard one).
    """
    if len(values) < MIN_SERIES:
        return {}
    off = np.abs(noisy.deviations(_cuts(levels))).tolist()
    noise = 1.4826 * median(off) * (1 + _CAUTION / (len(values) - 3))
    changes = [
        _change(level.value, value, metric)
        for level in levels
        for value in values[level.start : level.stop]
    ]
    return {
        index: change
        for index, change in enumerate(changes)
        if abs(change) > threshold and off[index] > _OUTLYING * noise
    }


def find_levels(
    points: Sequence[Sequence[float]], relative: bool, threshold: float
) -> list[SeriesLevel]:
    """The levels of points in order.

    Levels are joined, the weakest change first, if noise explains the change, and then if it is
    below the threshold.

    Args:
      points: finite values of the runs of each point, of which there is at least one.
    """
    values = [median(runs) for runs in points]
    if not values:
        return []
    least = math.log1p(threshold) if relative else threshold
    noisy = NoisyPoints(points, relative)
    scaled = noisy.values.tolist()
    cuts = [0, len(values)]
    if len(values) >= MIN_SERIES:
        # Few values give a poor estimate of the noise, often too low.
        careful = noise(scaled)[0] * (1 + _CAUTION / (len(values) - 3))
        cuts[1:1] = change_points(scaled, max(careful, noisy.least), MIN_POINTS)
    _join(cuts, scaled, lambda gaps: [_strength(noisy, cuts, gaps, i) for i in range(len(gaps))])
    # Steps that are each below the threshold, but not together, are no noise around a level.
    _join(cuts, scaled, lambda gaps: [abs(gap) / (least or sys.float_info.min) for gap in gaps])
    return [SeriesLevel(a, b, _middle(values, a, b)) for a, b in pairwise(cuts)]


def _join(
    cuts: list[int],
    values: Sequence[float],
    strengths: Callable[[Sequence[float]], Sequence[float]],
) -> None:
    """Removes the cut with the smallest strength, as long as one is at most 1.

    Args:
      strengths: of changes of level, from their sizes.
    """
    while len(cuts) > 2:
        gaps = [b - a for a, b in pairwise(_middle(values, a, b) for a, b in pairwise(cuts))]
        found = strengths(gaps)
        weakest = min(range(len(gaps)), key=found.__getitem__)
        if found[weakest] > 1:
            break
        del cuts[weakest + 1]


def _strength(noisy: NoisyPoints, cuts: Sequence[int], gaps: Sequence[float], place: int) -> float:
    """The difference of means of two levels, as a multiple of what noise explains.

    Noise explains 2 sqrt(log n) standard errors, as by Schwarz's criterion with a doubled penalty;
    of a change that is undone before or after it, the square root of two times as much, because a
    short disturbance has two changes.
    """
    found = noisy.around(cuts, abs(gaps[place]))
    sizes = (cuts[i + 1] - cuts[i] for i in (place, place + 1))
    error = found.spread * math.sqrt(sum(1 / size for size in sizes) * inflation(found.correlation))
    undone = any(gap * gaps[place] < 0 for gap in gaps[max(place - 1, 0) : place + 2])
    explained = 2 * error * math.sqrt(math.log(len(noisy.values)) * (2 if undone else 1))
    difference = abs(float(found.means[place + 1] - found.means[place]))
    return difference / explained if explained else math.inf


def likely_starts(noisy: NoisyPoints, cuts: Sequence[int], number: int) -> tuple[int, int]:
    """The smallest interval that contains the start of a level with at least 95 % probability.

    From the posterior with a uniform prior and Laplace noise, exp(-deviations / scale), with the
    medians of both levels for each place. The scale is the spread of the points, 1.4 times that of
    Laplace noise of this spread, or more, up to one at which the points are not nearer to the other
    level than the posterior assumes: the mean of exp((deviation - deviation from the other level) /
    scale) is 1 at most (the adjustment coefficient of Cramér and Lundberg, which limits how far a
    sum of such differences goes astray). The correlation, and half a standard error of it, inflates
    it.
    """
    first, cut, stop = cuts[number - 1 : number + 2]
    there = noisy.values[first:stop].tolist()
    gap = median(there[cut - first :]) - median(there[: cut - first])
    found = noisy.around(cuts, abs(gap))
    off = noisy.deviations(cuts)
    nearer = [np.abs(off) - np.abs(off - move) for move in (gap, -gap)]
    scale = max(found.spread, 1e-12 * max(map(abs, there)), 1e-300)
    while scale < abs(gap) and any(
        np.mean(np.exp(np.minimum(one / scale, 700.0))) > 1 for one in nearer
    ):
        scale *= 1.05
    scale *= inflation(found.correlation + _CORRELATION_ERRORS / math.sqrt(len(off)))
    before = [*growing_deviations(there)]
    after = [*growing_deviations(there[::-1])][::-1]
    costs = [a + b for a, b in zip(before, after[1:], strict=False)]
    lowest = min(costs)
    weights = {
        place: math.exp(-(cost - lowest) / scale) for place, cost in enumerate(costs, first + 1)
    }
    total = sum(weights.values())
    low = high = cut
    held = weights[cut]
    while held < _CREDIBILITY * total:
        left = weights.get(low - 1, 0.0)
        right = weights.get(high + 1, 0.0)
        if left >= right and low - 1 in weights:
            low -= 1
            held += left
        elif high + 1 in weights:
            high += 1
            held += right
        else:
            break
    return low, high


def _step(
    points: Sequence[SeriesPoint],
    noisy: NoisyPoints,
    levels: Sequence[SeriesLevel],
    number: int,
    metric: Metric,
    threshold: float,
) -> LevelChange:
    before, after = levels[number - 1], levels[number]
    last_good, first_bad = points[after.start - 1], points[after.start]
    low, high = likely_starts(noisy, _cuts(levels), number)
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
        slow=_slow_steps(points, *((before, after) if rose else (after, before))),
    )


def _slow_steps(
    points: Sequence[SeriesPoint], slower: SeriesLevel, faster: SeriesLevel
) -> SlowSteps | None:
    """The slow steps of the slower of two levels, if the faster one lacks them."""
    before, after = (
        shared_slow_steps([point.slow for point in points[level.start : level.stop]])
        for level in (faster, slower)
    )
    return after if further_cost(before, after) > Policy.threshold else None


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


def _middle(values: Sequence[float], start: int, stop: int) -> float:
    return median(values[start:stop])


@dataclass(frozen=True)
class SharedStep:
    """Steps of several series that one commit explains.

    Attributes:
      first_bad: first point of the new level in most of the series.
      steps: the steps with their series, in the order of the series.
    """

    first_bad: SeriesPoint
    steps: tuple[tuple[Trend, LevelChange], ...]


def shared_steps(trends: Sequence[Trend]) -> list[SharedStep]:
    """All steps by the commit that explains them, in the order of their first series.

    Steps in the same direction belong together if all persist or none does, and if one name of a
    point begins the new level of one of them and lies in the 95 % ranges of the others. Each series
    has at most one step in a group.
    """
    left = [(found, step) for found in trends for step in found.steps]
    places = {id(step): place for place, (_, step) in enumerate(left)}
    shared = []
    while left:
        kinds = Counter(_kind(step, step.first_bad.name) for _, step in left)
        (kind, _), *_ = kinds.most_common(1)
        members: dict[int, tuple[Trend, LevelChange]] = {}
        exact = [one for one in left if _kind(one[1], one[1].first_bad.name) == kind]
        for found, step in [*exact, *left]:
            if _kind(step, kind[0]) == kind and kind[0] in _candidates(found, step):
                members.setdefault(id(found), (found, step))
        steps = sorted(members.values(), key=lambda one: places[id(one[1])])
        shared.append(SharedStep(exact[0][1].first_bad, tuple(steps)))
        taken = {id(step) for _, step in steps}
        left = [one for one in left if id(one[1]) not in taken]
    return sorted(shared, key=lambda one: places[id(one.steps[0][1])])


def _kind(step: LevelChange, name: str) -> tuple[str, bool, bool]:
    return name, step.worse, step.stands


def _candidates(found: Trend, step: LevelChange) -> set[str]:
    """Names of the points at which the new level may begin."""
    points = found.series.points
    ends = (points.index(step.earliest), step.index, points.index(step.latest))
    return {point.name for point in points[min(ends) : max(ends) + 1]}
