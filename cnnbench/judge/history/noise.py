"""Noise of a series around its levels, and its kinds that are easily taken for steps.

A deviation counts at most as much as the change of level that is judged, because it moves a median
no further: a single outlier hides no step, and a machine with a fast and a slow state has the noise
of both states. Correlation of neighbours widens the noise, as it does the variance of a mean of an
autoregressive process (Bayley and Hammersley, "The effective number of independent observations in
an autocorrelated time series", Supplement to the Journal of the Royal Statistical Society 8, 1946).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cnnbench.base.stats.descriptive import MAD_TO_SIGMA, median

MIN_RECOGNIZED = 8
"""Fewest values by which a kind of noise is recognized."""

_LEAST_NOISE = 0.002
_CAUTION = 1.5
_MOST_CORRELATION = 0.8
_CERTAIN = 2.5
"""Standard errors of a correlation that is named."""

_APART = 7.0
"""Distance of two states in standard deviations within them; 2.7 for halves of normal values."""

_LEAST_SHARE, _LEAST_RUNS, _LEAST_SWITCHES = 0.15, 2, 3

_ALTERNATING = 0.5
"""Least number of switches, as a share of those of runs in random order."""

_MACHINE_ERRORS = 5.0

TWO_STATES, TWO_MACHINES = "two_states", "two_machines"


@dataclass(frozen=True)
class SeriesLevel:
    """Consecutive points of one level, or those between the two levels of a trend.

    Attributes:
      start, stop: indices of the first point and behind the last one.
      value: median of the points; next to a trend, the value of its line.
      slope: change from one point to the next, as a share or as a difference like that of a step;
        0 except within a trend.
    """

    start: int
    stop: int
    value: float
    slope: float = 0.0

    def at(self, index: int, relative: bool) -> float:
        """The value at a point; `relative` if the slope is a share."""
        along = index - (self.start + self.stop - 1) / 2
        return (
            self.value * (1 + self.slope) ** along if relative else self.value + self.slope * along
        )


@dataclass(frozen=True)
class TwoStates:
    """Runs of two speeds that alternate: of one machine, or of machines of a pool.

    Attributes:
      runs: number of runs in the rarer state.
      total: number of runs in both.
      change: of the rarer state from the other, as a share, or as a difference.
      kind: TWO_STATES of one machine, or TWO_MACHINES of a pool.
      hosts: names of the hosts in the rarer state, where machines differ.
    """

    runs: int
    total: int
    change: float
    kind: str = TWO_STATES
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecognizedNoise:
    """Kinds of noise that are easily taken for steps.

    Attributes:
      states: two states of the machine; None if none were recognized.
      correlation: of neighbouring points; None if it may be 0.
    """

    states: TwoStates | None = None
    correlation: float | None = None


@dataclass(frozen=True)
class LevelNoise:
    """Noise around the levels.

    Attributes:
      spread: standard deviation of a point.
      correlation: of neighbours, 0 to 0.8.
    """

    spread: float
    correlation: float


def inflation(correlation: float) -> float:
    """Variance of a mean of many correlated points, as a multiple of that of independent ones."""
    known = min(correlation, _MOST_CORRELATION)
    return (1 + known) / (1 - known)


class NoisyPoints:
    """Points of a series as medians of their runs; logarithms if changes are relative.

    Attributes:
      values: one per point.
    """

    def __init__(self, points: Sequence[Sequence[float]], relative: bool) -> None:
        """Takes the values of the runs of each point, at least one, positive if relative."""
        scaled = np.log if relative else np.asarray
        self._scaled = scaled
        self._relative = relative
        self.values: NDArray[np.float64] = scaled([median(runs) for runs in points])
        self._least = _LEAST_NOISE if relative else 0.0
        self._runs: list[NDArray[np.float64]] = [scaled(runs) for runs in points]
        # Differences of a point's runs in the order of time, which its level does not change, in
        # the scale of means of its runs.
        scaled_down = (np.diff(runs) / math.sqrt(len(runs)) for runs in self._runs)
        self._differences = np.concatenate([np.zeros(0), *scaled_down])

    def deviations(self, levels: Sequence[SeriesLevel]) -> NDArray[np.float64]:
        """Differences of the points from their levels."""
        found: NDArray[np.float64] = self.values - self._fitted(levels)
        return found

    def _fitted(self, levels: Sequence[SeriesLevel]) -> NDArray[np.float64]:
        values = np.repeat([one.value for one in levels], [one.stop - one.start for one in levels])
        for one in levels:
            if one.slope:
                within = range(one.start, one.stop)
                values[one.start : one.stop] = [one.at(place, self._relative) for place in within]
        fitted: NDArray[np.float64] = self._scaled(values)
        return fitted

    def least_spread(self, reach: float) -> float:
        """The least standard deviation of a point: by that of its runs, as sessions differ.

        Args:
          reach: the largest difference of runs that counts.
        """
        if not len(self._differences):
            return self._least
        squares = np.minimum(np.abs(self._differences), reach) ** 2
        return max(self._least, math.sqrt(float(np.mean(squares)) / 2))

    def around(self, levels: Sequence[SeriesLevel], reach: float) -> LevelNoise:
        """The noise around levels.

        Args:
          reach: the largest deviation from a level that counts.
        """
        count, starts = len(self.values), [one.start for one in levels]
        sizes = np.diff([*starts, count])
        off = np.clip(self.deviations(levels), -reach, reach)
        off -= np.repeat(np.add.reduceat(off, starts) / sizes, sizes)
        squares = float(off @ off)
        spread = math.sqrt(squares / max(count - len(levels) - 1, 1)) * (
            1 + _CAUTION / max(count - 3, 1)
        )
        return LevelNoise(max(spread, self.least_spread(reach)), _correlation(off, squares, starts))

    def recognized(
        self, levels: Sequence[SeriesLevel], hosts: Sequence[Sequence[str]], least: float
    ) -> RecognizedNoise:
        """Kinds of noise around final levels.

        Args:
          hosts: names of the hosts of each point's runs; "" or none where they are unknown.
          least: smallest difference of two machines that counts, of logarithms if relative.
        """
        noise = self.around(levels, math.inf)
        fitted = self._fitted(levels)
        deviations = np.concatenate(
            [runs - level for runs, level in zip(self._runs, fitted, strict=True)]
        )
        names = [host for some in hosts for host in some]
        states = two_machines(deviations, names, least) or two_states(deviations)
        if states is not None and self._relative:
            states = replace(states, change=math.expm1(states.change))
        count = len(self.values)
        certain = noise.correlation > _CERTAIN / math.sqrt(count)
        return RecognizedNoise(
            states=states,
            correlation=noise.correlation if certain and count >= MIN_RECOGNIZED else None,
        )


def _correlation(off: NDArray[np.float64], squares: float, starts: Sequence[int]) -> float:
    """First-order autocorrelation of deviations from the means of levels.

    Every mean lowers it by (1 + 3 r) / n (Kendall, "Note on bias in the estimation of
    autocorrelation", Biometrika 41, 1954), which is added.
    """
    products = np.delete(off[1:] * off[:-1], [start - 1 for start in starts[1:]])
    if not squares or not len(products):
        return 0.0
    seen = float(np.mean(products)) / (squares / len(off))
    bias = (len(starts) + 1) * (1 + 3 * max(seen, 0.0)) / len(off)
    return min(max(seen + bias, 0.0), _MOST_CORRELATION)


def two_machines(
    deviations: NDArray[np.float64], hosts: Sequence[str], least: float
) -> TwoStates | None:
    """The machines of a pool that are slower or faster than the others, if they take turns.

    The hosts are divided where their medians are farthest apart. The difference has to exceed
    `least` and, as means of independent values, five standard errors.
    """
    known = {host for host in hosts if hosts.count(host) >= _LEAST_RUNS}
    if len(hosts) != len(deviations) or len(known) < 2 or len(known) * _LEAST_RUNS > len(hosts):
        return None
    is_of = {host: np.array([one == host for one in hosts]) for host in known}
    middles = {host: median(deviations[chosen].tolist()) for host, chosen in is_of.items()}
    order = sorted(known, key=middles.__getitem__)
    place = max(range(1, len(order)), key=lambda i: middles[order[i]] - middles[order[i - 1]])
    upper = np.any([is_of[host] for host in order[place:]], axis=0)
    lower = np.any([is_of[host] for host in order[:place]], axis=0)
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


def two_states(deviations: NDArray[np.float64]) -> TwoStates | None:
    """The two states of runs in the order of time; None if they are not clearly apart.

    They are the two groups with the least squares within them. They alternate, at least half as
    often as in random order: runs that differ for some time have another level, not another state.
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
