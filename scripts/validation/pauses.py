"""Verdicts on processes whose steps pause now and then, by simulated times of steps.

A process has 300 timed steps of 20 ms, 6 s in all. Steps scatter by 5 % within a process, processes
by 1.3 %. On side B steps pause, so that B is slower by a known share of its speed; independently of
the sides, one process in eight may lose a second in one step.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cnnbench.base.slow_steps import mean_step_seconds
from cnnbench.judge.compare import Verdict, judge
from validation.rules import POLICY, Generator
from validation.simulation import QUIET

Times = NDArray[np.float64]
"""Seconds of steps, [processes, steps]."""

STEPS, SECONDS = 300, 0.02
_WITHIN = 0.05
_OFTEN = 0.05
DISTURBED, _LOST_SECONDS = 1 / 8, 1.0


def _every(distance: int) -> Callable[[Generator, int], Times]:
    places = (np.arange(STEPS) % distance == distance - 1).astype(np.float64)
    return lambda generator, count: np.tile(places / places.sum(), (count, 1))


def _at_random(generator: Generator, count: int) -> Times:
    lengths: Times = generator.exponential(1.0, (count, STEPS))
    return np.where(generator.random((count, STEPS)) < _OFTEN, lengths / _OFTEN / STEPS, 0.0)


def _once(generator: Generator, count: int) -> Times:
    found = np.zeros((count, STEPS))
    found[np.arange(count), generator.integers(STEPS, size=count)] = 1.0
    return found


EQUAL = "equal"

SHAPES: Mapping[str, Callable[[Generator, int], Times]] = {
    "every 2nd step": _every(2),
    "every 3rd step": _every(3),
    "every 5th step": _every(5),
    "every 10th step": _every(10),
    "every 50th step": _every(50),
    "one step in 20, at random": _at_random,
    "once per process": _once,
}
"""Lengths of the pauses at each step, with a sum of 1 per process, at random in the mean."""

COSTS = (0.02, 0.05, 0.10, 0.30)
"""Shares of its speed that B loses."""

PAIRS = (8, 16)

JUDGED, MEDIAN, MEAN = "judged", "median step", "mean step"

METHODS: Mapping[str, Callable[[Times], Sequence[float]]] = {
    JUDGED: lambda times: [1 / seconds for seconds in mean_step_seconds(times.tolist())],
    MEDIAN: lambda times: (1 / np.median(times, axis=1)).tolist(),
    MEAN: lambda times: (1 / times.mean(axis=1)).tolist(),
}
"""Speeds of processes that are judged together."""


@dataclass(frozen=True)
class PauseRates:
    """Frequencies of the verdicts on one shape of pauses.

    Attributes:
      shape: one of `SHAPES`, or `EQUAL`.
      cost: share of its speed that B loses.
      disturbed: whether one process in eight loses a second.
      verdicts: counts by method and number of pairs.
    """

    shape: str
    cost: float
    disturbed: bool
    verdicts: Mapping[tuple[str, int], Counter[Verdict]]

    def share(self, verdict: Verdict, pairs: int, method: str = JUDGED) -> float:
        """Share of the draws."""
        found = self.verdicts[method, pairs]
        return found[verdict] / found.total()


def times_of(generator: Generator, count: int, shape: str, cost: float, disturbed: bool) -> Times:
    """Times of the steps of some processes."""
    levels = SECONDS * np.exp(generator.normal(0.0, QUIET, (count, 1)))
    found: Times = levels * np.exp(generator.normal(0.0, _WITHIN, (count, STEPS)))
    if shape != EQUAL:
        found += SHAPES[shape](generator, count) * (1 / (1 - cost) - 1) * STEPS * SECONDS
    if disturbed:
        hit = generator.random((count, 1)) < DISTURBED
        found += _LOST_SECONDS * hit * _once(generator, count)
    return found


def simulate(shape: str, cost: float, disturbed: bool, draws: int, seed: int) -> PauseRates:
    """Judges pairs of which B has pauses; the same seed gives the same rates."""
    generator = np.random.default_rng([seed, zlib.crc32(f"{shape} {cost} {disturbed}".encode())])
    verdicts: dict[tuple[str, int], Counter[Verdict]] = {
        (method, pairs): Counter() for method in METHODS for pairs in PAIRS
    }
    for _ in range(draws):
        sides = [
            times_of(generator, max(PAIRS), *of, disturbed) for of in ((EQUAL, 0.0), (shape, cost))
        ]
        for method, pairs in verdicts:
            speeds = METHODS[method](np.concatenate([side[:pairs] for side in sides]))
            found = judge(speeds[:pairs], speeds[pairs:], POLICY, paired=True)
            verdicts[method, pairs][found.verdict] += 1
    return PauseRates(shape, cost, disturbed, verdicts)


def all_rates(draws: int, seed: int) -> Iterator[PauseRates]:
    """Equal sides and every shape at every cost, without and with disturbed processes."""
    for disturbed in (False, True):
        yield simulate(EQUAL, 0.0, disturbed, draws, seed)
        for shape in SHAPES:
            for cost in COSTS:
                yield simulate(shape, cost, disturbed, draws, seed)
