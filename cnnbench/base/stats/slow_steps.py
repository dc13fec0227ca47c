"""Slow steps that recur, and speeds of processes without rare disturbances.

`slow_steps` divides the steps of a process into ordinary and slow ones; `shared_slow_steps` gives
the slow steps that the processes of a side have in common. They name what a median step hides:
input stalls, checkpoints, garbage collection, slow collectives.

`mean_step_seconds` is the time by which processes are judged, that of all steps, since it is paid
for. What a single process lost once, such as a second to another program, is
told apart by the other processes: its largest disturbance counts as far as more than a quarter of
all processes have one as large (`rare_shares`). All processes of a comparison are taken together,
so what is rare does not depend on which side is called B, and tests remain exact.

The division is the maximum of the classification likelihood of two normal distributions of equal
variance (Symons, "Clustering criteria and multivariate normal mixtures", Biometrics 37, 1981) of
the logarithms. Unlike least squares (Otsu) its entropy term finds also few slow steps, and none in
a single distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnnbench.base.stats.descriptive import median, nearest_rank

FEWEST = 10
"""Steps of the shortest series that is divided."""

_FEWEST_OF_RARE = 4
"""Fewer processes do not show what is rare."""

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
    def of(cls, seconds: Sequence[float], indices: list[int]) -> SlowSteps | None:
        """The slow steps with some indices, of a process by its step times; None without any."""
        is_slow = np.zeros(len(seconds), dtype=bool)
        is_slow[indices] = True
        times = np.asarray(seconds, dtype=np.float64)
        if is_slow.all() or not is_slow.any():
            return None
        extra = float(times[is_slow].mean() - times[~is_slow].mean())
        cost = len(indices) * extra / float(times.sum())
        return cls(len(seconds), tuple(map(int, np.flatnonzero(is_slow))), extra, cost)

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

    None for fewer than `FEWEST` steps, or where the steps are not distinctly of two kinds.
    """
    count = len(seconds)
    if count < FEWEST:
        return None
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
        return None
    return SlowSteps.of(seconds, order[best + 1 :].tolist())


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
    """Mean seconds of a step of processes, without what is rare among them; see `rare_shares`.

    Args:
      processes: the positive times in seconds of at least one step of each process.
    """
    means = [*map(_mean, processes)]
    if len(processes) < _FEWEST_OF_RARE:
        return means
    rare = rare_shares([*map(disturbance_share, processes)])
    return [(1 - share) * mean for mean, share in zip(means, rare, strict=True)]


def _mean(seconds: Sequence[float]) -> float:
    """The mean, without rounding where all values are equal."""
    first = seconds[0]
    return first + math.fsum(one - first for one in seconds) / len(seconds)


def rare_shares(shares: Sequence[float]) -> list[float]:
    """The part of each `disturbance_share` that exceeds the upper quartile (nearest rank) of all.

    Of up to three processes it is 0: they do not show what is rare.
    """
    limit = nearest_rank(shares, 0.75) if shares else 0.0
    return [max(0.0, share - limit) for share in shares]


def disturbance_share(seconds: Sequence[float]) -> float:
    """The largest disturbance of a process, as a share of the time of its steps, from 0 to 1.

    It is what the run of consecutive steps with the largest sum of differences from the mean step
    (Bentley, "Programming Pearls", 1984) takes beyond as many of the other steps. Where slow steps
    recur, it is about one of them.
    """
    times = np.asarray(seconds, dtype=np.float64)
    count, total = len(times), float(times.sum())
    sums = np.concatenate(([0.0], np.cumsum(times - total / count)))
    stop = int(np.argmax(sums - np.minimum.accumulate(sums)))
    length = stop - int(np.argmin(sums[: stop + 1]))
    if not 0 < length < count:
        return 0.0
    inside = float(times[stop - length : stop].sum())
    return max(0.0, inside - length * (total - inside) / (count - length)) / total
