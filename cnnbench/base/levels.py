"""Finds the levels in a time series of measured commits, estimates the noise, and finds the commit
at which each level begins.

A point of the series is one measured commit, with the values of its runs. Noise is estimated from
the deviations of the points from their levels. Each deviation is limited to the size of the change
of level that is tested, because a larger deviation does not move a median further. So a single
outlier cannot hide a change, and if a machine alternates between a fast and a slow state, the noise
includes both states. Correlation of neighbouring points increases the noise, in the same way as it
increases the variance of the mean of an autoregressive process (Bayley and Hammersley, "The
effective number of independent observations in an autocorrelated time series", Supplement to the
Journal of the Royal Statistical Society 8, 1946).

The medians of the points are divided into levels and trends (`cnnbench.base.time_series`) with at
least two points in each level. A point counts as one value even if it has many runs, because runs
of one session are correlated. If changes are relative, the logarithms of the values are used.
Finally, levels that differ by less than the threshold are joined, starting with the most similar
ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from cnnbench.base.lazy_numpy import NDArray, np
from cnnbench.base.stats import MAD_TO_SIGMA, median
from cnnbench.base.time_series import Segment, find_segments, prefix_deviation_sums

MIN_POINTS = 2
"""Minimum number of commits in a level; a single outlier is not a level."""

MIN_SERIES = 6
"""Minimum number of commits for an estimate of the noise."""

_CAUTION = 5.0
_OUTLYING = 4.5
"""An outlier is at least this many standard deviations from its level."""

_CREDIBILITY = 0.95
_CORRELATION_ERRORS = 0.5

MIN_RECOGNIZED = 8
"""Minimum number of values for recognizing a kind of noise."""

_LEAST_NOISE = 0.002
_NOISE_CAUTION = 1.5
_MOST_CORRELATION = 0.8
_CERTAIN = 2.5
"""A correlation is reported if it is at least this many standard errors."""

_APART = 7.0
"""Minimum distance of two states, in standard deviations. The lower and the upper half of normal
data have a distance of 2.7.
"""

_LEAST_SHARE, _LEAST_RUNS, _LEAST_SWITCHES = 0.15, 2, 3

_ALTERNATING = 0.5
"""Minimum number of switches between states, relative to runs in random order."""

_MACHINE_ERRORS = 5.0

TWO_STATES, TWO_MACHINES = "two_states", "two_machines"


@dataclass(frozen=True)
class SeriesLevel:
    """Consecutive commits in a time series whose values share one level, or form a trend between
    two levels.

    Attributes:
      start, stop: index of the first commit, and index after the last commit.
      value: median of the commits' values; next to a trend, the value at the trend's end.
      slope: change from one commit to the next in a trend, relative or absolute like other changes;
        0 in a level.
    """

    start: int
    stop: int
    value: float
    slope: float = 0.0

    def at(self, index: int, relative: bool) -> float:
        """The value of the level or trend at the commit with the given index. If `relative`, the
        slope is a relative change.
        """
        if not self.slope:
            return self.value
        along = index - (self.start + self.stop - 1) / 2
        return (
            self.value * (1 + self.slope) ** along if relative else self.value + self.slope * along
        )


@dataclass(frozen=True)
class TwoStates:
    """Noise in which runs alternate between two speeds, on one machine or on different machines in
    a pool.

    Attributes:
      runs: number of runs in the rarer state.
      total: number of runs in both states.
      change: change from the more frequent to the rarer state, relative or absolute.
      kind: TWO_STATES for one machine, or TWO_MACHINES for a pool.
      hosts: names of the hosts in the rarer state, for TWO_MACHINES.
    """

    runs: int
    total: int
    change: float
    kind: str = TWO_STATES
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecognizedNoise:
    """Noise in a time series that could be mistaken for changes of its level.

    Attributes:
      states: two states of the machine; None if none were recognized.
      correlation: correlation of consecutive commits; None if it is not significant.
    """

    states: TwoStates | None = None
    correlation: float | None = None


class LevelNoise(NamedTuple):
    """The noise of a time series around its levels: standard deviation and autocorrelation.

    Attributes:
      spread: standard deviation of a commit's value from its level.
      correlation: correlation of consecutive commits, from 0 to 0.8.
    """

    spread: float
    correlation: float


def variance_inflation(correlation: float) -> float:
    """The factor by which a correlation of neighbouring values increases the variance of their
    mean.
    """
    known = min(correlation, _MOST_CORRELATION)
    return (1 + known) / (1 - known)


class CommitTimeSeries:
    """A time series of measured commits, with the values of the runs of each commit.

    If changes are relative, all values are logarithms.

    Attributes:
      values: median over the runs of each commit.
    """

    def __init__(self, points: Sequence[Sequence[float]], relative: bool) -> None:
        """Stores the measured commits. Each point, a commit, is a list of the values of its runs,
        at least one.

        If `relative`, changes are relative, and all values must be positive.
        """
        scaled = np.log if relative else np.asarray
        self._scaled = scaled
        self._relative = relative
        self.values: NDArray[np.float64] = scaled([median(runs) for runs in points])
        self._least = _LEAST_NOISE if relative else 0.0
        self._runs: list[NDArray[np.float64]] = [scaled(runs) for runs in points]
        # Differences between consecutive runs of a commit contain the noise but not the level of
        # the commit. Dividing by sqrt(runs) gives the noise of the mean of the runs.
        scaled_down = (np.diff(runs) / math.sqrt(len(runs)) for runs in self._runs)
        self._differences = np.concatenate([np.zeros(0), *scaled_down])

    def deviations(self, levels: Sequence[SeriesLevel]) -> NDArray[np.float64]:
        """The value of each commit minus the level at this commit."""
        deviations: NDArray[np.float64] = self.values - self._fitted_values(levels)
        return deviations

    def _fitted_values(self, levels: Sequence[SeriesLevel]) -> NDArray[np.float64]:
        values = np.repeat(
            [level.value for level in levels], [level.stop - level.start for level in levels]
        )
        for level in levels:
            if level.slope:
                within = range(level.start, level.stop)
                values[level.start : level.stop] = [
                    level.at(place, self._relative) for place in within
                ]
        fitted: NDArray[np.float64] = self._scaled(values)
        return fitted

    def noise_lower_bound(self, clip_limit: float) -> float:
        """Lower bound of the noise of a commit's value (standard deviation), computed from
        differences between runs of the same commit.

        Args:
          clip_limit: larger differences are limited to this value.
        """
        if not len(self._differences):
            return self._least
        squares = np.minimum(np.abs(self._differences), clip_limit) ** 2
        return max(self._least, math.sqrt(float(np.mean(squares)) / 2))

    def estimate_noise(self, levels: Sequence[SeriesLevel], clip_limit: float) -> LevelNoise:
        """Estimates the standard deviation and the autocorrelation of the time series around its
        levels.

        Args:
          clip_limit: larger deviations from a level are limited to this value.
        """
        count, starts = len(self.values), [level.start for level in levels]
        sizes = np.diff([*starts, count])
        off = np.clip(self.deviations(levels), -clip_limit, clip_limit)
        off -= np.repeat(np.add.reduceat(off, starts) / sizes, sizes)
        squares = float(off @ off)
        spread = math.sqrt(squares / max(count - len(levels) - 1, 1)) * (
            1 + _NOISE_CAUTION / max(count - 3, 1)
        )
        return LevelNoise(
            max(spread, self.noise_lower_bound(clip_limit)), _autocorrelation(off, squares, starts)
        )

    def find_outliers(
        self, levels: Sequence[SeriesLevel], threshold: float
    ) -> list[tuple[int, float]]:
        """Finds commits whose value differs from its level by more than the threshold and by more
        than noise.

        The noise is estimated by the median absolute deviation, scaled to a standard deviation.

        Args:
          threshold: smallest change that is reported; a share if changes are relative.

        Returns:
          Index and change of each outlier, in order; empty for fewer than `MIN_SERIES` commits.
        """
        count = len(self.values)
        if count < MIN_SERIES:
            return []
        off = self.deviations(levels)
        noise = MAD_TO_SIGMA * median(np.abs(off).tolist()) * (1 + _CAUTION / (count - 3))
        changes = (np.expm1(off) if self._relative else off).tolist()
        return [
            (index, change)
            for index, change in enumerate(changes)
            if abs(change) > threshold and abs(off[index]) > _OUTLYING * noise
        ]

    def recognize_noise(
        self, levels: Sequence[SeriesLevel], hosts: Sequence[Sequence[str]], least: float
    ) -> RecognizedNoise:
        """Detects noise around the levels that is not independent: alternation between two speeds,
        and autocorrelation.

        Args:
          hosts: host name for each run of each commit; "" or empty if unknown.
          least: minimum difference between two machines; of logarithms if changes are relative.
        """
        noise = self.estimate_noise(levels, math.inf)
        fitted = self._fitted_values(levels)
        deviations = np.concatenate(
            [runs - level for runs, level in zip(self._runs, fitted, strict=True)]
        )
        names = [host for some in hosts for host in some]
        states = detect_host_groups(deviations, names, least) or detect_two_states(deviations)
        if states is not None and self._relative:
            states = replace(states, change=math.expm1(states.change))
        certain = noise.correlation > _CERTAIN / math.sqrt(len(self.values))
        return RecognizedNoise(
            states=states,
            correlation=noise.correlation if certain else None,
        )


def _autocorrelation(off: NDArray[np.float64], squares: float, starts: Sequence[int]) -> float:
    """First-order autocorrelation of the deviations `off` of a time series from its levels.

    Subtracting a mean lowers the estimate by (1 + 3 r) / n (Kendall, "Note on bias in the
    estimation of autocorrelation", Biometrika 41, 1954). This bias is corrected.
    """
    products = np.delete(off[1:] * off[:-1], [start - 1 for start in starts[1:]])
    if not squares or not len(products):
        return 0.0
    seen = float(np.mean(products)) / (squares / len(off))
    bias = (len(starts) + 1) * (1 + 3 * max(seen, 0.0)) / len(off)
    return min(max(seen + bias, 0.0), _MOST_CORRELATION)


def detect_host_groups(
    deviations: NDArray[np.float64], hosts: Sequence[str], least: float
) -> TwoStates | None:
    """Detects that the machines in a pool have two different speeds. Returns None if they have the
    same speed.

    The hosts, sorted by their medians, are divided at the largest gap. The difference must be
    larger than `least` and than five standard errors of means of independent values.
    """
    runs_by_host: dict[str, list[float]] = {}
    for host, value in zip(hosts, deviations.tolist(), strict=False):
        runs_by_host.setdefault(host, []).append(value)
    middles = {
        host: median(runs) for host, runs in runs_by_host.items() if len(runs) >= _LEAST_RUNS
    }
    if len(hosts) != len(deviations) or len(middles) < 2:
        return None
    order = sorted(middles, key=middles.__getitem__)
    place = max(range(1, len(order)), key=lambda i: middles[order[i]] - middles[order[i - 1]])
    lower, upper = (
        np.array([host in part for host in hosts])
        for part in (frozenset(order[:place]), frozenset(order[place:]))
    )
    sides = [deviations[chosen] for chosen in (lower, upper)]
    centres = [median(side.tolist()) for side in sides]
    inside = np.concatenate([side - centre for side, centre in zip(sides, centres, strict=True)])
    spread = MAD_TO_SIGMA * median(np.abs(inside).tolist())
    difference = centres[1] - centres[0]
    error = spread * math.sqrt(sum(1 / len(side) for side in sides))
    switches = np.count_nonzero(np.diff(upper[upper | lower]))
    if difference <= max(least, _MACHINE_ERRORS * error) or switches < _LEAST_SWITCHES:
        return None
    rarer = int(len(sides[1]) > len(sides[0]))
    names = order[:place] if rarer else order[place:]
    runs = len(sides[0] if rarer else sides[1])
    change = -difference if rarer else difference
    return TwoStates(runs, len(hosts), change, TWO_MACHINES, tuple(sorted(names)))


def detect_two_states(deviations: NDArray[np.float64]) -> TwoStates | None:
    """Detects that a machine alternates between two speeds. Returns None if the machine has only
    one speed.

    `deviations` contains the deviation of each run from the level at its commit, in order of time.

    The runs are divided into the two groups with the smallest sum of squares. The groups must
    alternate at least half as often as in random order; otherwise they are levels rather than
    states.
    """
    count = len(deviations)
    if count < MIN_RECOGNIZED:
        return None
    ordered = np.sort(deviations)
    lower = np.arange(_LEAST_RUNS, count - _LEAST_RUNS + 1)
    sums = np.cumsum(ordered)[lower - 1]
    low, high = sums / lower, (ordered.sum() - sums) / (count - lower)
    within = ordered @ ordered - lower * low**2 - (count - lower) * high**2
    best = int(np.argmin(within))
    difference = float(high[best] - low[best])
    inside = math.sqrt(max(float(within[best]), 0.0) / (count - 2))
    upper = deviations > ordered[lower[best] - 1]
    above = int(upper.sum())
    rarer = min(above, count - above)
    expected = 2 * above * (count - above) / count
    switches = np.count_nonzero(np.diff(upper))
    if (
        difference <= _APART * inside
        or rarer < _LEAST_SHARE * count
        or switches < max(_LEAST_SWITCHES, _ALTERNATING * expected)
    ):
        return None
    return TwoStates(rarer, count, difference if 2 * above <= count else -difference)


def scaled_threshold(relative: bool, threshold: float) -> float:
    """Converts a threshold to the unit of `scaled_change`: to a difference of logarithms
    if `relative`.
    """
    return math.log1p(threshold) if relative else threshold


def scaled_change(before: float, after: float, relative: bool) -> float:
    """The change from `before` to `after`: a difference of logarithms if `relative`, otherwise a
    difference.
    """
    return math.log(after / before) if relative else after - before


def find_levels(
    points: Sequence[Sequence[float]], relative: bool, threshold: float
) -> list[SeriesLevel]:
    """Divides a time series of measured commits into levels and trends whose changes exceed the
    threshold.

    Levels next to a trend may differ by less than the threshold.

    Args:
      points: finite values of the runs of each commit; at least one commit.
    """
    if not points:
        return []
    noisy = CommitTimeSeries(points, relative)
    floor = scaled_threshold(relative, threshold)
    parts = [Segment(0, len(points))]
    if len(points) >= MIN_SERIES:
        parts = find_segments(noisy.values.tolist(), noisy.noise_lower_bound, MIN_POINTS, floor)
    values = [median(runs) for runs in points]

    def level_of_segment(part: Segment) -> SeriesLevel:
        return SeriesLevel(part.start, part.stop, median(values[part.start : part.stop]))

    def total_change(part: Segment) -> float:
        fit = part.fit(noisy.values)
        return abs(float(fit[-1] - fit[0]))

    parts = [
        part if total_change(part) > floor else Segment(part.start, part.stop) for part in parts
    ]
    while True:
        medians = [level_of_segment(part).value for part in parts]
        gaps = {
            place: abs(scaled_change(medians[place], medians[place + 1], relative))
            for place, (a, b) in enumerate(pairwise(parts))
            if a.trend is None and b.trend is None
        }
        nearest = min(gaps, key=gaps.__getitem__, default=None)
        if nearest is None or gaps[nearest] > floor:
            break
        parts[nearest : nearest + 2] = [Segment(parts[nearest].start, parts[nearest + 1].stop)]
    levels: list[SeriesLevel] = []
    for part in parts:
        if part.trend is None:
            levels.append(level_of_segment(part))
            continue
        fit = part.fit(noisy.values)
        first, last = part.trend
        ends = np.array([fit[0], (fit[0] + fit[-1]) / 2, fit[-1]])
        slope = float(fit[-1] - fit[0]) / (last - first)
        if relative:
            ends, slope = np.exp(ends), math.expm1(slope)
        before, middle, after = ends.tolist()
        levels += [
            SeriesLevel(part.start, first + 1, before),
            SeriesLevel(first + 1, last, middle, slope),
            SeriesLevel(last, part.stop, after),
        ]
    return levels


def level_start_interval(
    series: CommitTimeSeries, levels: Sequence[SeriesLevel], level_index: int
) -> tuple[int, int]:
    """The smallest interval of commits that contains the first commit of a level with at least 95 %
    probability.

    `level_index` is the index of the level in `levels`.

    The interval is computed from the posterior distribution of the start, with a uniform prior and
    Laplace noise: the likelihood of a start is exp(-sum of absolute deviations / scale), with the
    medians of both levels for this start.

    The scale is at least the standard deviation of the noise, which is 1.4 times the scale of
    Laplace noise with this standard deviation. It is increased until the mean of exp((deviation -
    deviation from the other level) / scale) is at most 1. This is the adjustment coefficient of
    Cramér and Lundberg, which limits how far a sum of such differences can stray. Finally, the
    scale is increased for the correlation of neighbours plus half its standard error.
    """
    before, after = levels[level_index - 1], levels[level_index]
    first, cut = before.start, after.start
    there = series.values[first : after.stop].tolist()
    gap = median(there[cut - first :]) - median(there[: cut - first])
    noise = series.estimate_noise(levels, abs(gap))
    off = series.deviations(levels)
    nearer = [np.abs(off) - np.abs(off - move) for move in (gap, -gap)]
    scale = max(noise.spread, 1e-12 * max(map(abs, there)), 1e-300)
    while scale < abs(gap) and any(
        np.mean(np.exp(np.minimum(distances / scale, 700.0))) > 1 for distances in nearer
    ):
        scale *= 1.05
    scale *= variance_inflation(noise.correlation + _CORRELATION_ERRORS / math.sqrt(len(off)))
    until = [*prefix_deviation_sums(there)]
    since = [*prefix_deviation_sums(there[::-1])][::-1]
    costs = [a + b for a, b in zip(until, since[1:], strict=False)]
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
