"""Detects whether the step times of a run become steady, and at which step.

The method is that of Barrett, Bolz-Tereick, Killick, Mount and Tratt, "Virtual Machine Warmup Blows
Hot and Cold" (OOPSLA 2017): cut the series where its level changes; similar levels at its end are
the steady state, unless they are too small a part of the series. As in Traini, Cortellessa, Di
Pompeo and Tucci, "Towards effective assessment of steady state performance in Java software: are we
there yet?" (Empirical Software Engineering 28, 2023), levels that differ by at most 5 % are
similar. In this module, levels are medians, and the cuts are found as described above, which takes
outliers and correlation into account.

Other methods have disadvantages. A fixed number of warm-up steps does not fit all runs: in 24 runs
of a small network, the steady state began at step 0, at step 94 or never, depending on other load.
Similar adjacent windows, as in pyperf, occur by chance in any noise and say nothing about the end
of a series; the run-sequence, lag and autocorrelation plots of Kalibera and Jones ("Rigorous
benchmarking in reasonable time", ISMM 2013) need visual inspection.

It does not detect changes of less than 5 %, nor a change in the noise alone.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from cnnbench.base.stats import MAD_TO_SIGMA, median, median_absolute_deviation
from cnnbench.base.time_series import MIN_SEGMENT, change_points

TOLERANCE = 0.05
"""Maximum relative difference of similar levels."""


MIN_SHARE = 0.25
"""Minimum share of the series that must be steady, as in Barrett et al. (500 of 2000)."""


MIN_STEADY = 2 * MIN_SEGMENT
"""Minimum number of steady steps, even in a short series."""


MIN_STEPS = 2 * MIN_STEADY
"""Minimum number of steps in a series that is classified."""


_RESOLUTION = 150


_LEAST_RELATIVE_NOISE = 0.002


_OUTLIER_SIGMAS = 5.0


class SeriesShape(enum.Enum):
    """Classification of a series of step times, with the terms of Barrett et al."""

    FLAT = "flat"
    WARM_UP = "warm-up"
    SLOWDOWN = "slowdown"
    NOT_STEADY = "no steady state"
    TOO_SHORT = "too short"


class StepTimeLevel(NamedTuple):
    """Consecutive steps of a run with similar times: the steps `start` to `stop` - 1, and their
    median time in seconds.
    """

    start: int
    stop: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The steady state of the step times of a run, in which the first `warmup_steps` steps are the
    warm-up.

    Attributes:
      start: index of the first steady step; None if the state was not reached or the series is too
        short.
      shape: FLAT: steady from the first step; WARM_UP: all earlier levels were slower; SLOWDOWN: an
        earlier level was faster; NOT_STEADY; TOO_SHORT.
      levels: levels of the series in order. Consecutive levels may be similar.
    """

    start: int | None
    shape: SeriesShape
    levels: tuple[StepTimeLevel, ...]
    steps: int
    warmup_steps: int = 0

    @property
    def reached(self) -> bool:
        """Whether the series of step times ends in a steady state."""
        return self.start is not None

    @property
    def unsteady_timed_steps(self) -> int | None:
        """Number of steps between the end of the warm-up and the steady state; None if the steady
        state was not reached.
        """
        return None if self.start is None else max(0, self.start - self.warmup_steps)


def find_steady_state(seconds: Sequence[float], warmup_steps: int = 0) -> SteadyState:
    """Finds the steady state in the step times of a run, in seconds, from the first step to the
    last step.

    With more than 150 steps, medians of batches are searched first, and then the steps around the
    beginning of the steady state. This limits the time to about 10 ms. Values that are not positive
    and finite are ignored, but are included in indices. The steady state does not begin at such a
    value.
    """
    known = [i for i, value in enumerate(seconds) if math.isfinite(value) and value > 0]
    values = [seconds[i] for i in known]
    steps = len(seconds), warmup_steps
    if len(values) < MIN_STEPS:
        return SteadyState(None, SeriesShape.TOO_SHORT, (), *steps)
    levels = _find_levels(values, 0, len(values))
    last = levels[-1].seconds
    start = _final_start(levels, last)
    if start is not None:
        start = _refine_start(values, start, last)
        # A single slow first step, which compiles the graph, is too short to be a level of its own,
        # so it is skipped here.
        noise = MAD_TO_SIGMA * median_absolute_deviation(values[start:])
        reach = max(TOLERANCE * last, _OUTLIER_SIGMAS * noise)
        while start < len(values) and abs(values[start] - last) > reach:
            start += 1
    shown = tuple(
        StepTimeLevel(known[level.start], known[level.stop - 1] + 1, level.seconds)
        for level in levels
    )
    if start is None or len(values) - start < max(MIN_STEADY, MIN_SHARE * len(values)):
        return SteadyState(None, SeriesShape.NOT_STEADY, shown, *steps)
    return SteadyState(known[start], _classify_shape(levels, start, last), shown, *steps)


def _find_levels(values: Sequence[float], first: int, end: int) -> list[StepTimeLevel]:
    size = math.ceil((end - first) / _RESOLUTION)
    edges = [*range(first, end - size + 1, size), end]
    medians = [median(values[a:b]) for a, b in pairwise(edges)]
    cuts = change_points(medians, _LEAST_RELATIVE_NOISE * median(medians))
    starts = [edges[cut] for cut in (0, *cuts)]
    return [StepTimeLevel(a, b, median(values[a:b])) for a, b in pairwise([*starts, end])]


def _final_start(levels: Sequence[StepTimeLevel], last: float) -> int | None:
    """Finds the index at which the final levels that are similar to `last` begin. Returns None if
    not even the final level is similar.
    """
    start = None
    for level in reversed(levels):
        if not _is_close(level.seconds, last):
            break
        start = level.start
    return start


def _refine_start(values: Sequence[float], start: int, last: float) -> int:
    """Finds the exact first steady step near `start`, which was found from medians of batches of
    steps.
    """
    size = math.ceil(len(values) / _RESOLUTION)
    while size > 1:
        first = max(0, start - MIN_SEGMENT * size)
        end = min(len(values), start + MIN_SEGMENT * size)
        refined = _final_start(_find_levels(values, first, end), last)
        if refined is None:
            break
        start, size = refined, math.ceil((end - first) / _RESOLUTION)
    return start


def _classify_shape(levels: Sequence[StepTimeLevel], start: int, last: float) -> SeriesShape:
    if start == 0:
        return SeriesShape.FLAT
    before = [level.seconds for level in levels if level.stop <= start]
    faster = any(seconds < last and not _is_close(seconds, last) for seconds in before)
    return SeriesShape.SLOWDOWN if faster else SeriesShape.WARM_UP


def _is_close(seconds: float, last: float) -> bool:
    return abs(seconds - last) <= TOLERANCE * last
