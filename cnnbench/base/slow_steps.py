"""Finds the steps of a process that take longer than its other steps, and removes rare
disturbances.

`find_slow_steps` divides the steps of a process into ordinary and slow steps. `median_slow_steps`
returns the slow steps that all processes of A or of B have in common. A median of the step times
hides such steps. Their causes are, for example, input stalls, checkpoints, garbage collection and
slow collectives.

`undisturbed_mean_seconds` is the time by which processes are compared: the mean of all steps
after rare disturbances are removed. It is a mean because the user waits for slow steps, too. A
disturbance is rare if at most a quarter of all processes have a disturbance of this size; for
example, if one process lost a second to another program (`excess_shares`). The limit is
computed from all processes of A and B together. So it does not depend on which of them is called A,
and tests remain exact.

To divide the steps, the logarithms of their times are modelled as two normal distributions of equal
variance. The division maximises the classification likelihood (Symons, "Clustering criteria and
multivariate normal mixtures", Biometrics 37, 1981). This likelihood has an entropy term, which
least squares (Otsu) does not have. Therefore it also finds a small number of slow steps, and finds
none if there is only one distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import fmean
from typing import Any

from cnnbench.base.lazy_numpy import NDArray, np
from cnnbench.base.stats import median, nearest_rank_percentile
from cnnbench.base.text import milliseconds, percent

FEWEST = 10
"""Minimum number of steps for a division into ordinary and slow steps."""

_LEAST_NOISE = 1e-3  # Minimum standard deviation of the logarithms of step times.
_REGULAR = 0.6

_ORDINALS = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_MANY = 0.3
_FEW = 3
"""Share of slow steps above which they have no useful mean distance."""


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """The steps of one process that take longer than its other, ordinary steps.

    Attributes:
      steps: number of all steps of the process.
      indices: indices of the slow steps from 0, ascending; at least one.
      extra: mean time of slow steps minus mean time of ordinary steps, in seconds.
      cost: share of the total time that slow steps add: number of slow steps * extra / total.
    """

    steps: int
    indices: tuple[int, ...]
    extra: float
    cost: float

    @classmethod
    def from_groups(
        cls, seconds: Sequence[float], slow: Iterable[int], ordinary: Iterable[int]
    ) -> SlowSteps | None:
        """Compares the slow steps of a process with its ordinary steps. Returns None if one of the
        two groups is empty.

        Args:
          seconds: times of all steps of the process.
          slow: numbers of the slow steps from 0, ascending.
          ordinary: numbers of the ordinary steps. Steps in neither list are included only in
            `steps`.
        """
        indices = tuple(slow)
        others = [seconds[step] for step in ordinary]
        if not indices or not others:
            return None
        extra = fmean(seconds[step] for step in indices) - fmean(others)
        return cls(len(seconds), indices, extra, len(indices) * extra / math.fsum(seconds))

    @property
    def share(self) -> float:
        """Number of slow steps divided by the number of all steps."""
        return len(self.indices) / self.steps

    @property
    def occurrences(self) -> int:
        """Number of times that slow steps occur. Consecutive slow steps count once."""
        return 1 + sum(after - before > 1 for before, after in pairwise(self.indices))

    @property
    def steps_between(self) -> int | None:
        """Number of steps from one slow step to the next; None if slow steps do not recur at
        regular distances.
        """
        distances = [after - before for before, after in pairwise(self.indices)]
        if len(distances) < 2:
            return None
        typical = round(median(distances))
        regular = distances.count(typical) >= _REGULAR * len(distances)
        return typical if regular and typical > 1 else None

    @property
    def text(self) -> str:
        """Describes the slow steps in words: "every third step takes 90 ms more (33.3 % of the
        steps)".
        """
        share = f"{percent(self.share)} of the steps"
        more = f"{milliseconds(self.extra)} ms more"
        if (distance := self.steps_between) is not None:
            which = _ORDINALS[distance - 2] if distance < len(_ORDINALS) + 2 else f"{distance}th"
            return f"every {which} step takes {more} ({share})"
        if self.occurrences == 1:
            steps = len(self.indices)
            what = "one step of a process takes"
            if steps > 1:
                what = f"{steps} consecutive steps of a process take"
            return f"{what} {milliseconds(steps * self.extra)} ms more"
        if self.share > _MANY:
            return f"{share} take {more}, at irregular distances"
        return f"one step in {1 / self.share:.0f} takes {more}, at irregular distances ({share})"


def find_slow_steps(seconds: Sequence[float]) -> SlowSteps | None:
    """Finds the slow steps of a process from the times of its steps in seconds, in order.

    Returns None for fewer than `FEWEST` steps, or if the steps do not form two distinct groups. At
    most half of the steps, rounded up, are slow. If the slower group is larger, because a few steps
    are very fast (such as a first step whose input is ready), the slower group is divided again.
    """
    steps = [*range(len(seconds))]
    while slower := slower_step_indices([seconds[step] for step in steps]):
        steps = [steps[index] for index in slower]
        if 2 * len(steps) <= len(seconds) + 1:
            return SlowSteps.from_groups(seconds, steps, sorted({*range(len(seconds))} - {*steps}))
    return None


def slower_step_indices(seconds: Sequence[float]) -> list[int]:
    """Divides steps into two groups by their times, and returns the numbers of the slower steps,
    ascending.

    The result is empty if the steps form only one group.
    """
    count = len(seconds)
    if count < FEWEST:
        return []
    times = np.asarray(seconds, dtype=np.float64)
    order = np.argsort(times, kind="stable")
    logs = np.log(times[order])
    logs -= logs.mean()
    low, entropy = _split_entropies(count)
    sums = np.cumsum(logs)[:-1]
    # For each possible size of the faster group: the sum of squares within the two groups of steps.
    within = float((logs**2).sum()) - sums**2 * (1 / low + 1 / (count - low))
    variance = np.maximum(within / count, _LEAST_NOISE**2)
    likelihood = entropy - count / 2 * np.log(variance)
    single = -count / 2 * math.log(max(float(logs.var()), _LEAST_NOISE**2))
    best = int(np.argmax(likelihood))
    # By the Bayesian information criterion, steps form two groups only if the likelihood increases
    # enough for two more parameters: the mean of the second group, and the share of slow steps.
    if likelihood[best] - single <= math.log(count):
        return []
    return sorted(order[best + 1 :].tolist())


@lru_cache(maxsize=16)
def _split_entropies(count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """For each division of `count` steps into two groups, ascending by the size of the faster
    group: returns this size, and the negative entropy of the division times `count`.
    """
    low = np.arange(1, count)
    return low, low * np.log(low / count) + (count - low) * np.log(1 - low / count)


def slow_step_cost_increase(before: SlowSteps | None, after: SlowSteps | None) -> float:
    """Cost of the slow steps `after` minus cost of the slow steps `before`, each as a share of the
    time of all steps of the process.
    """
    costs = [0.0 if estimate is None else estimate.cost for estimate in (before, after)]
    return costs[1] - costs[0]


def median_slow_steps(estimates: Sequence[SlowSteps | None]) -> SlowSteps | None:
    """Selects the process whose slow steps have the median cost among all processes, and returns
    these slow steps.

    Returns None if at least half of the processes have no slow steps.
    """
    ordered = sorted(estimates, key=lambda estimate: 0.0 if estimate is None else estimate.cost)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def undisturbed_mean_seconds(processes: Sequence[Sequence[float]]) -> list[float]:
    """Mean step time of each process in seconds, after rare disturbances are removed.

    Args:
      processes: the positive times in seconds of at least one step of each process.
    """
    return [*map(weighted_mean, processes, undisturbed_step_weights(processes))]


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted mean of values for weights that have the mean 1.

    The result is exact if all values or all weights are equal.
    """
    first = values[0]
    further = (weight * (value - first) for value, weight in zip(values, weights, strict=True))
    return first + math.fsum(further) / len(values)


def undisturbed_step_weights(processes: Sequence[Sequence[float]]) -> list[list[float]]:
    """Computes weights of the steps of each process, so that a weighted mean contains no rare
    disturbances. The mean of the weights is 1.

    Without rare disturbances, the steps of a process have equal weights. A disturbance that is
    larger than the upper quartile of all processes (`excess_shares`) is reduced to the
    quartile: its steps have less weight, and all other steps have more weight, which is the same
    for all of them.

    Weights apply to whole steps, so the means of the parts of a step add up to the mean of the
    step. With up to three processes, weights are equal, because three processes cannot show what is
    rare.

    Args:
      processes: the positive times in seconds of at least one step of each process.
    """
    if len(processes) <= _FEW:
        return [[1.0] * len(seconds) for seconds in processes]
    disturbances = [*map(largest_disturbance, processes)]
    rare = excess_shares([share for share, _ in disturbances])
    weights = []
    for seconds, (share, steps), removed in zip(processes, disturbances, rare, strict=True):
        count = len(seconds)
        own = [1.0] * count
        if removed:
            part = removed / share
            others = 1 + part * len(steps) / (count - len(steps))
            own = [1 - part if step in steps else others for step in range(count)]
        weights.append(own)
    return weights


def excess_shares(shares: Sequence[float]) -> list[float]:
    """For each process: how much the share of time lost to its largest disturbance exceeds the
    upper quartile of this share over all processes.

    The quartile is computed by nearest rank.

    With up to three processes, all results are 0, because the quartile is the largest share.
    """
    limit = nearest_rank_percentile(shares, 0.75) if shares else 0.0
    return [max(0.0, share - limit) for share in shares]


def largest_disturbance(seconds: Sequence[float]) -> tuple[float, range]:
    """Finds the disturbance of a process that costs the most time. Returns its cost as a share of
    the time of all steps, and the disturbed steps.

    A disturbance is the streak of consecutive steps with the largest sum of differences from the
    mean step (Bentley, "Programming Pearls", 1984). Its size is the time of these steps minus the
    mean time of the same number of other steps. If slow steps recur, the size is approximately the
    extra time of one slow step.

    Returns:
      The size as a share of the time of all steps, from 0 to 1, and the steps, counted from 0.
    """
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
