"""Detects whether, and from which step on, a series of step times is steady.

The method is that of Barrett, Bolz-Tereick, Killick, Mount and Tratt, "Virtual Machine Warmup Blows
Hot and Cold" (OOPSLA 2017): cut the series where its level changes; similar levels at its end are
the steady state, unless they are too small a part of the series. As in Traini, Cortellessa, Di
Pompeo and Tucci, "Towards effective assessment of steady state performance in Java software: are we
there yet?" (Empirical Software Engineering 28, 2023), levels within 5 % are similar. Levels are
medians, and the cuts are those of `cnnbench.base.stats.changepoints`, which takes outliers and
correlation into account.

Other methods: a fixed number of steps does not fit all runs (in 24 runs of one small network, load
by others decided between step 0, step 94 and never); similar adjacent windows, as in pyperf, occur
by chance in any noise and say nothing about the end of a series; the run-sequence, lag and
autocorrelation plots of Kalibera and Jones ("Rigorous benchmarking in reasonable time", ISMM 2013)
need visual inspection.

It does not detect changes of less than 5 %, nor a change in the noise alone.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cnnbench.base.stats.changepoints import MIN_SEGMENT, change_points
from cnnbench.base.stats.descriptive import MAD_TO_SIGMA, median, median_absolute_deviation

TOLERANCE = 0.05
"""Relative difference below which levels are similar."""

MIN_SHARE = 0.25
"""Share of the series that must be steady, as in Barrett et al. (500 of 2000)."""

MIN_STEADY = 2 * MIN_SEGMENT
"""Least number of steady steps, however short the series is."""

MIN_STEPS = 2 * MIN_STEADY
"""Steps of the shortest series that is classified."""

_RESOLUTION = 150
_LEAST_NOISE = 0.002
_OUTLIER_SIGMAS = 5.0


class Shape(enum.Enum):
    """Classification of a series, in the terms of Barrett et al."""

    FLAT = "flat"
    WARM_UP = "warm-up"
    SLOWDOWN = "slowdown"
    NOT_STEADY = "no steady state"
    TOO_SHORT = "too short"


@dataclass(frozen=True, slots=True)
class StepTimeLevel:
    """Steps `start` to `stop` - 1 of the series and their median time in seconds."""

    start: int
    stop: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The steady state of a series of `steps` steps, the first `warmup_steps` of which warm up.

    Attributes:
      start: index of its first step; None if it was not reached or the series is too short.
      shape: FLAT: steady from the first step; WARM_UP: slower before; SLOWDOWN: faster at some time
        before; NOT_STEADY; TOO_SHORT.
      levels: levels of the series in order; consecutive ones may be similar.
    """

    start: int | None
    shape: Shape
    levels: tuple[StepTimeLevel, ...]
    steps: int
    warmup_steps: int = 0

    @property
    def reached(self) -> bool:
        """Whether the series ends in a steady state."""
        return self.start is not None

    @property
    def unsteady_timed_steps(self) -> int | None:
        """Steps after the warm-up and before the steady state; None if it was not reached."""
        return None if self.start is None else max(0, self.start - self.warmup_steps)


def steady_state(seconds: Sequence[float], warmup_steps: int = 0) -> SteadyState:
    """Finds the steady state of a series of step times, oldest first.

    Of more than 150 steps the medians of batches are searched first, and then the steps around the
    beginning of the steady state; that bounds the time (10 ms). Values that are not positive and
    finite are ignored and keep their index; the steady state does not begin with one.
    """
    known = [i for i, value in enumerate(seconds) if math.isfinite(value) and value > 0]
    values = [seconds[i] for i in known]
    steps = len(seconds), warmup_steps
    if len(values) < MIN_STEPS:
        return SteadyState(None, Shape.TOO_SHORT, (), *steps)
    levels = _levels(values, 0, len(values))
    last = levels[-1].seconds
    start = _beginning(levels, last)
    if start is not None:
        start = _refine(values, start, last)
        # A single slow first step, which compiles, is too short for a level of its own.
        noise = MAD_TO_SIGMA * median_absolute_deviation(values[start:])
        reach = max(TOLERANCE * last, _OUTLIER_SIGMAS * noise)
        while start < len(values) and abs(values[start] - last) > reach:
            start += 1
    shown = tuple(
        StepTimeLevel(known[one.start], known[one.stop - 1] + 1, one.seconds) for one in levels
    )
    if start is None or len(values) - start < max(MIN_STEADY, MIN_SHARE * len(values)):
        return SteadyState(None, Shape.NOT_STEADY, shown, *steps)
    return SteadyState(known[start], _shape(levels, start, last), shown, *steps)


def _levels(values: Sequence[float], first: int, end: int) -> list[StepTimeLevel]:
    size = math.ceil((end - first) / _RESOLUTION)
    edges = [*range(first, end - size + 1, size), end]
    medians = [median(values[a:b]) for a, b in pairwise(edges)]
    cuts = change_points(medians, _LEAST_NOISE * median(medians))
    starts = [edges[cut] for cut in (0, *cuts)]
    return [StepTimeLevel(a, b, median(values[a:b])) for a, b in pairwise([*starts, end])]


def _beginning(levels: Sequence[StepTimeLevel], last: float) -> int | None:
    """Start of the similar levels at the end; None if the last one differs."""
    start = None
    for level in reversed(levels):
        if not _alike(level.seconds, last):
            break
        start = level.start
    return start


def _refine(values: Sequence[float], start: int, last: float) -> int:
    """The exact first step, where the series was searched in batches."""
    size = math.ceil(len(values) / _RESOLUTION)
    while size > 1:
        first = max(0, start - MIN_SEGMENT * size)
        end = min(len(values), start + MIN_SEGMENT * size)
        found = _beginning(_levels(values, first, end), last)
        if found is None:
            break
        start, size = found, math.ceil((end - first) / _RESOLUTION)
    return start


def _shape(levels: Sequence[StepTimeLevel], start: int, last: float) -> Shape:
    if start == 0:
        return Shape.FLAT
    before = [level.seconds for level in levels if level.stop <= start]
    faster = any(seconds < last and not _alike(seconds, last) for seconds in before)
    return Shape.SLOWDOWN if faster else Shape.WARM_UP


def _alike(seconds: float, last: float) -> bool:
    return abs(seconds - last) <= TOLERANCE * last
