"""Number of processes per side that a suite needs, by the policy that judges it."""

from __future__ import annotations

import math
from statistics import NormalDist

from cnnbench.base.stats import rank_tests
from cnnbench.judge.compare.judge import processes_needed
from cnnbench.judge.metrics.policy import Policy

_DEFAULT = Policy()
_CHANCE = 0.9
"""That a change is found in every configuration."""


def processes_to_decide(configurations: int, policy: Policy = _DEFAULT) -> int:
    """Processes per side that allow a verdict on every configuration of a suite.

    The fewest that can prove a change in each of them (Holm), and still in one of them after one
    of its processes fell behind all of the other side's, as a neighbour makes it.
    """
    count = processes_needed(policy, configurations)
    while rank_tests.mann_whitney_p(*_one_astray(count)) > policy.alpha:
        count += 1
    return count


def processes_to_find(
    change: float, scatter: float, configurations: int, policy: Policy = _DEFAULT
) -> int:
    """Estimated processes per side that find a change in nine of ten experiments.

    By the normal approximation; rank tests need pi/3 times as many values as a t test (Hodges
    and Lehmann, 1956). It must be significant after Holm, and its interval beyond the floor.

    Args:
      change: as a share: -0.2 is 20 % slower; further from 0 than the floor.
      scatter: standard deviation of the logarithms of like processes.

    Raises:
      ValueError: the change is within the floor.
    """
    size, floor = abs(math.log1p(change)), math.log1p(policy.threshold)
    if size <= floor:
        raise ValueError(f"change={change}: is within the threshold {policy.threshold}")
    normal = NormalDist()
    chance = normal.inv_cdf(_CHANCE ** (1 / configurations))
    certain = (normal.inv_cdf(1 - policy.alpha / 2 / configurations) + chance) / size
    beyond = (normal.inv_cdf(1 - policy.alpha / 2) + chance) / (size - floor)
    count = 2 * math.pi / 3 * (scatter * max(certain, beyond)) ** 2
    # One more, because exact intervals of a few values are wider than the approximation.
    return max(math.ceil(count) + 1, processes_needed(policy, configurations))


def _one_astray(count: int) -> tuple[list[float], list[float]]:
    """Two samples in which all values of one exceed all of the other, except one."""
    upper = [float(count + place) for place in range(1, count)]
    return [-1.0, *upper], [float(place) for place in range(count)]
