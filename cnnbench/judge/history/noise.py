"""Noise of a series around its levels, and its kinds that are easily taken for steps.

A deviation counts at most as much as the change of level that is judged, because it moves a median
no further: a single outlier hides no step, and a machine with a fast and a slow state has the noise
of both states. Correlation of neighbours widens the noise, as it does the variance of a mean of an
autoregressive process (Bayley and Hammersley, "The effective number of independent observations in
an autocorrelated time series", Supplement to the Journal of the Royal Statistical Society 8, 1946).
A drift with one slope in all levels is neither noise nor correlation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cnnbench.base.stats.descriptive import median

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


@dataclass(frozen=True)
class TwoStates:
    """Runs of two speeds that alternate.

    Attributes:
      runs: number of runs in the rarer state.
      total: number of runs in both.
      change: of the rarer state from the other, as a share, or as a difference.
    """

    runs: int
    total: int
    change: float


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
      means: of the points of each level, without the parts of deviations that do not count.
      spread: standard deviation of a point.
      correlation: of neighbours, 0 to 0.8.
    """

    means: NDArray[np.float64]
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
      least: least standard deviation of a point.
    """

    def __init__(self, points: Sequence[Sequence[float]], relative: bool) -> None:
        """Takes the values of the runs of each point, at least one, positive if relative."""
        scaled = np.log if relative else np.asarray
        self.values: NDArray[np.float64] = scaled([median(runs) for runs in points])
        self.least = _LEAST_NOISE if relative else 0.0
        self._relative = relative
        self._runs: list[NDArray[np.float64]] = [scaled(runs) for runs in points]
        # Differences of a point's runs in the order of time, which its level does not change, in
        # the scale of means of its runs.
        scaled_down = (np.diff(runs) / math.sqrt(len(runs)) for runs in self._runs)
        self._differences = np.concatenate([np.zeros(0), *scaled_down])

    def deviations(self, cuts: Sequence[int]) -> NDArray[np.float64]:
        """Differences of the points from the medians of their levels."""
        medians = [median(level) for level in np.split(self.values, cuts[1:-1])]
        found: NDArray[np.float64] = self.values - np.repeat(medians, np.diff(cuts))
        return found

    def around(self, cuts: Sequence[int], reach: float) -> LevelNoise:
        """The noise around levels.

        Args:
          cuts: indices at which levels begin, and the number of points.
          reach: largest deviation from a level's median that counts.
        """
        count, levels = len(self.values), len(cuts) - 1
        sizes = np.diff(cuts)
        off = self.deviations(cuts)
        counted = self.values - off + np.clip(off, -reach, reach)
        means = np.add.reduceat(counted, cuts[:-1]) / sizes
        off = counted - np.repeat(means, sizes)
        along = np.concatenate([np.arange(size) - (size - 1) / 2 for size in sizes])
        off -= along * float(along @ off) / max(float(along @ along), 1.0)
        squares = float(off @ off)
        spread = math.sqrt(squares / max(count - levels - 1, 1)) * (
            1 + _CAUTION / max(count - 3, 1)
        )
        return LevelNoise(
            means, max(spread, self._of_runs(reach), self.least), _correlation(off, squares, cuts)
        )

    def _of_runs(self, reach: float) -> float:
        """Standard deviation of a point by those of its runs: the least, as sessions differ."""
        if not len(self._differences):
            return 0.0
        squares = np.minimum(np.abs(self._differences), reach) ** 2
        return math.sqrt(float(np.mean(squares)) / 2)

    def recognized(self, cuts: Sequence[int]) -> RecognizedNoise:
        """Kinds of noise around final levels."""
        noise = self.around(cuts, math.inf)
        levels = np.repeat(noise.means, np.diff(cuts))
        deviations = [runs - level for runs, level in zip(self._runs, levels, strict=True)]
        states = two_states(np.concatenate(deviations))
        if states is not None and self._relative:
            states = replace(states, change=math.expm1(states.change))
        certain = noise.correlation > _CERTAIN / math.sqrt(len(levels))
        return RecognizedNoise(
            states=states,
            correlation=noise.correlation if certain and len(levels) >= MIN_RECOGNIZED else None,
        )


def _correlation(off: NDArray[np.float64], squares: float, cuts: Sequence[int]) -> float:
    """First-order autocorrelation of deviations from the means of levels.

    Every mean lowers it by (1 + 3 r) / n (Kendall, "Note on bias in the estimation of
    autocorrelation", Biometrika 41, 1954), which is added.
    """
    products = np.delete(off[1:] * off[:-1], [cut - 1 for cut in cuts[1:-1]])
    if not squares or not len(products):
        return 0.0
    seen = float(np.mean(products)) / (squares / len(off))
    bias = len(cuts) * (1 + 3 * max(seen, 0.0)) / len(off)
    return min(max(seen + bias, 0.0), _MOST_CORRELATION)


def two_states(deviations: NDArray[np.float64]) -> TwoStates | None:
    """The two states of runs in the order of time; None if they are not clearly apart.

    They are the two groups with the least squares within them. They alternate: runs that differ
    only before or after some time have another level, not another state.
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
    if (
        difference <= _APART * inside
        or rarer < _LEAST_SHARE * count
        or np.count_nonzero(np.diff(upper)) < _LEAST_SWITCHES
    ):
        return None
    return TwoStates(rarer, count, difference if 2 * above <= count else -difference)
