"""Verdicts on processes with occasional pauses between steps, from simulated step times.

A process has 300 timed steps of 20 ms, 6 s in all. The standard deviation is 5 % between the steps
of a process, and 1.3 % between processes. Pauses between steps make B slower than A by a known
share of its speed. In addition, one process in eight of A and B may lose a second in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cnnbench.base.slow_steps import undisturbed_mean_seconds
from cnnbench.base.text import percent
from cnnbench.judge.compare import Samples, Verdict, judge
from validation.studies import POLICY, Case, Generator, Requirement, Study, Sums, percent_of
from validation.verdicts import QUIET

Times: TypeAlias = NDArray[np.float64]
"""Durations of steps in seconds, [processes, steps]."""

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
    **{
        f"every {number} step": _every(distance)
        for number, distance in (("2nd", 2), ("3rd", 3), ("5th", 5), ("10th", 10), ("50th", 50))
    },
    "one step in 20, at random": _at_random,
    "once per process": _once,
}
"""Functions that return the length of the pause at each step.

The sum of the lengths in a process is 1; for random pauses, its expected value is 1.
"""

COSTS = (0.02, 0.05, 0.10, 0.30)
"""Shares of its speed that B loses because of pauses."""

PAIRS = (8, 16)
_MOST = max(PAIRS)

JUDGED, MEDIAN, MEAN = "judged", "median step", "mean step"

METHODS: Mapping[str, Callable[[Times], Sequence[float]]] = {
    JUDGED: lambda times: [1 / seconds for seconds in undisturbed_mean_seconds(times.tolist())],
    MEDIAN: lambda times: (1 / np.median(times, axis=1)).tolist(),
    MEAN: lambda times: (1 / times.mean(axis=1)).tolist(),
}
"""Functions that compute the speed of each process in a comparison from its step times."""

_FOUND_COST, _FOUND_SHARE, _WRONG_SHARE = 0.10, 0.90, 0.01


def times_of(generator: Generator, count: int, shape: str, cost: float, disturbed: bool) -> Times:
    """Simulates the step times of several processes."""
    levels = SECONDS * np.exp(generator.normal(0.0, QUIET, (count, 1)))
    found: Times = levels * np.exp(generator.normal(0.0, _WITHIN, (count, STEPS)))
    if shape != EQUAL:
        found += SHAPES[shape](generator, count) * (1 / (1 - cost) - 1) * STEPS * SECONDS
    if disturbed:
        hit = generator.random((count, 1)) < DISTURBED
        found += _LOST_SECONDS * hit * _once(generator, count)
    return found


def simulate_pauses(
    generator: Generator, shape: str, cost: float, disturbed: bool
) -> dict[Any, float]:
    """Simulates pairs in which B has pauses; returns verdicts by method and number of pairs."""
    sides = [times_of(generator, _MOST, *of, disturbed) for of in ((EQUAL, 0.0), (shape, cost))]
    verdicts = []
    for method, speeds_of in METHODS.items():
        for pairs in PAIRS:
            speeds = speeds_of(np.concatenate([side[:pairs] for side in sides]))
            found = judge(Samples(speeds[:pairs], speeds[pairs:], paired=True), POLICY)
            verdicts.append((found.verdict, pairs, method))
    return dict.fromkeys(verdicts, 1)


def share(found: Sums, verdict: Verdict, pairs: int = _MOST, method: str = JUDGED) -> float:
    """Returns the share of simulations with `verdict`."""
    return float(found[verdict, pairs, method] / found["draws"])


def _cells(found: Sequence[Sums]) -> Iterator[str]:
    plain, disturbed = found
    columns = [(one, pairs, JUDGED) for one in found for pairs in PAIRS]
    columns += [(plain, _MOST, MEDIAN), (plain, _MOST, MEAN), (disturbed, _MOST, MEAN)]
    for column in columns:
        yield " · ".join(
            f"{100 * share(column[0], verdict, *column[1:]):.1f}".removesuffix(".0")
            for verdict in (Verdict.SLOWER, Verdict.SAME)
        )


def judged(found: Mapping[Case, Sums]) -> Iterator[Requirement]:
    """Yields the requirements that costly pauses are found, and that verdicts are not wrong."""
    costly = [
        (share(one, Verdict.SLOWER), shape)
        for (shape, cost, _), one in found.items()
        if cost >= _FOUND_COST
    ]
    bad = [f"{shape}: {percent_of(one)}" for one, shape in costly if one < _FOUND_SHARE]
    text = f"pauses that cost {percent(_FOUND_COST, 0)} or more: {_MOST} pairs slower in at least "
    least = f"least {percent_of(min(costly)[0])}"
    yield Requirement(f"{text}{percent(_FOUND_SHARE, 0)}", "; ".join(bad) or least, not bad)
    worst = max(
        share(one, verdict, pairs)
        for (shape, *_), one in found.items()
        for pairs in PAIRS
        for verdict in (Verdict.FASTER, Verdict.SLOWER)
        if shape == EQUAL or verdict is Verdict.FASTER
    )
    text = f"pauses, one process in eight disturbed: wrong in at most {percent(_WRONG_SHARE, 0)}"
    yield Requirement(text, f"at most {percent_of(worst)}", worst <= _WRONG_SHARE)


_PAUSED = [(EQUAL, 0.0), *((shape, cost) for shape in SHAPES for cost in COSTS)]

PAUSES = Study(
    header=(
        *("pauses of B", "cost", *(f"{n} pairs" for n in PAIRS)),
        *(f"{n}, one in eight disturbed" for n in PAIRS),
        *(f"{_MOST}, by {method}" for method in (MEDIAN, MEAN)),
        f"{_MOST}, one in eight disturbed, by {MEAN}",
    ),
    tables={
        "": {
            (shape, percent(cost, 0) if cost else "0"): [(shape, cost, False), (shape, cost, True)]
            for shape, cost in _PAUSED
        }
    },
    draw=simulate_pauses,
    cells=_cells,
    judge=judged,
    part=4,
)
"""Equal A and B, and pauses of every shape and cost, without and with disturbed processes."""
