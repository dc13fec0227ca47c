"""Steps of a process that take longer than its others.

`slow_steps` divides the steps of a process into ordinary and slow ones; `shared_slow_steps` gives
the slow steps that the processes of a side have in common. They name what a median step hides:
input stalls, checkpoints, garbage collection, slow collectives.

`mean_step_seconds` is the time by which processes are judged: the mean of all steps, since all are
paid for, after rare disturbances are removed. A disturbance is rare if at most a quarter of all
processes have one as large, such as a second that one process lost to another program
(`rare_shares`). All processes of a comparison are taken together, so what is rare does not depend
on which side is called B, and tests remain exact.

The division is the maximum of the classification likelihood of two normal distributions of equal
variance (Symons, "Clustering criteria and multivariate normal mixtures", Biometrics 37, 1981) of
the logarithms. Unlike least squares (Otsu) its entropy term finds also few slow steps, and none in
a single distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnnbench.base.stats import median, nearest_rank

FEWEST = 10
"""Steps of the shortest series that is divided."""

_LEAST_NOISE = 1e-3  # of logarithms, below which times of steps do not differ
_REGULAR = 0.6


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """The slow steps of one process.

    Attributes:
      steps: number of all steps of the process.
      indices: indices of the slow steps from 0, ascending; at least one.
      extra: seconds that the mean slow step takes more than the mean of the others.
      cost: share of the time of all steps that the slow ones add: indices * extra / total.
    """

    steps: int
    indices: tuple[int, ...]
    extra: float
    cost: float

    @classmethod
    def of(
        cls, seconds: Sequence[float], slow: Iterable[int], ordinary: Iterable[int]
    ) -> SlowSteps | None:
        """The slow steps of a process, compared with its ordinary steps; None without either.

        Args:
          seconds: times of all steps of the process.
          slow: numbers of the slow steps from 0, ascending.
          ordinary: numbers of the ordinary steps; steps of neither kind only count in `steps`.
        """
        indices = tuple(slow)
        others = [seconds[step] for step in ordinary]
        if not indices or not others:
            return None
        extra = fmean(seconds[step] for step in indices) - fmean(others)
        return cls(len(seconds), indices, extra, len(indices) * extra / math.fsum(seconds))

    @property
    def share(self) -> float:
        """Slow steps as a share of all steps."""
        return len(self.indices) / self.steps

    @property
    def occurrences(self) -> int:
        """Number of groups of slow steps; consecutive ones are one group."""
        return 1 + sum(after - before > 1 for before, after in pairwise(self.indices))

    @property
    def distance(self) -> int | None:
        """Steps from one slow step to the next where that number is nearly constant; else None."""
        distances = [after - before for before, after in pairwise(self.indices)]
        if len(distances) < 2:
            return None
        typical = round(median(distances))
        regular = distances.count(typical) >= _REGULAR * len(distances)
        return typical if regular and typical > 1 else None


def slow_steps(seconds: Sequence[float]) -> SlowSteps | None:
    """The slow steps of a process from its step times in seconds, in their order.

    None for fewer than `FEWEST` steps, or where the steps are not distinctly of two kinds. Slow
    steps are at most half of all steps, rounded up: where a few steps are faster than all others,
    such as a first step whose input is ready, the others are divided again.
    """
    steps = [*range(len(seconds))]
    while slower := slower_steps([seconds[step] for step in steps]):
        steps = [steps[index] for index in slower]
        if 2 * len(steps) <= len(seconds) + 1:
            return SlowSteps.of(seconds, steps, sorted({*range(len(seconds))} - {*steps}))
    return None


def slower_steps(seconds: Sequence[float]) -> list[int]:
    """Numbers of the slower steps, ascending, of steps of two kinds; empty if they are of one."""
    count = len(seconds)
    if count < FEWEST:
        return []
    times = np.asarray(seconds, dtype=np.float64)
    order = np.argsort(times, kind="stable")
    logs = np.log(times[order])
    logs -= logs.mean()
    low, entropy = _divisions(count)
    sums = np.cumsum(logs)[:-1]
    # Squares within both classes, of a cut after each number of steps; the mean of all is 0.
    within = float((logs**2).sum()) - sums**2 * (1 / low + 1 / (count - low))
    variance = np.maximum(within / count, _LEAST_NOISE**2)
    likelihood = entropy - count / 2 * np.log(variance)
    single = -count / 2 * math.log(max(float(logs.var()), _LEAST_NOISE**2))
    best = int(np.argmax(likelihood))
    # By the Bayesian information criterion, for the second mean and the share.
    if likelihood[best] - single <= math.log(count):
        return []
    return sorted(order[best + 1 :].tolist())


@lru_cache(maxsize=16)
def _divisions(count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Numbers of ordinary steps, and minus the entropy of each division, times `count`."""
    low = np.arange(1, count)
    return low, low * np.log(low / count) + (count - low) * np.log(1 - low / count)


def shared_slow_steps(found: Sequence[SlowSteps | None]) -> SlowSteps | None:
    """Those of the process of middle cost, of the `slow_steps` of some processes.

    None where at least half of the processes have none.
    """
    ordered = sorted(found, key=lambda one: 0.0 if one is None else one.cost)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def mean_step_seconds(processes: Sequence[Sequence[float]]) -> list[float]:
    """Mean seconds of a step of each process, after rare disturbances are removed.

    Args:
      processes: the positive times in seconds of at least one step of each process.
    """
    return [*map(weighted_mean, processes, step_weights(processes))]


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean by weights whose own mean is 1; exact where all values or all weights are equal."""
    first = values[0]
    further = (weight * (value - first) for value, weight in zip(values, weights, strict=True))
    return first + math.fsum(further) / len(values)


def step_weights(processes: Sequence[Sequence[float]]) -> list[list[float]]:
    """Weights of the steps of each process, with mean 1, that remove rare disturbances.

    The steps of a process have equal weights, except that a disturbance that is larger than the
    upper quartile (`rare_shares`) is reduced to that: its steps have less weight, and all others
    have equally more. The weights depend on whole steps only, so that the means of the parts of a
    step add up to the mean of the step. With up to three processes all weights of a process are
    equal: so few do not show what is rare.

    Args:
      processes: the positive times in seconds of at least one step of each process.
    """
    found = [*map(_disturbance, processes)]
    rare = rare_shares([share for share, _ in found])
    weights = []
    for seconds, (share, steps), removed in zip(processes, found, rare, strict=True):
        count = len(seconds)
        own = [1.0] * count
        if removed:
            part = removed / share
            others = 1 + part * len(steps) / (count - len(steps))
            own = [1 - part if step in steps else others for step in range(count)]
        weights.append(own)
    return weights


def rare_shares(shares: Sequence[float]) -> list[float]:
    """The part of each `disturbance_share` that exceeds the upper quartile (nearest rank) of all.

    Of up to three processes it is 0, since the quartile is the largest share.
    """
    limit = nearest_rank(shares, 0.75) if shares else 0.0
    return [max(0.0, share - limit) for share in shares]


def disturbance_share(seconds: Sequence[float]) -> float:
    """The largest disturbance of a process, as a share of the time of its steps, from 0 to 1.

    It is what the streak of consecutive steps with the largest sum of differences from the mean
    step (Bentley, "Programming Pearls", 1984) takes beyond as many of the other steps. Where slow
    steps recur, it is about one of them.
    """
    return _disturbance(seconds)[0]


def _disturbance(seconds: Sequence[float]) -> tuple[float, range]:
    """The `disturbance_share` of a process, and the numbers of its steps from 0."""
    times = np.asarray(seconds, dtype=np.float64)
    count, total = len(times), float(times.sum())
    sums = np.concatenate(([0.0], np.cumsum(times - total / count)))
    stop = int(np.argmax(sums - np.minimum.accumulate(sums)))
    length = stop - int(np.argmin(sums[: stop + 1]))
    steps = range(stop - length, stop)
    if not 0 < length < count:
        return 0.0, steps
    inside = float(times[steps.start : stop].sum())
    return max(0.0, inside - length * (total - inside) / (count - length)) / total, steps
