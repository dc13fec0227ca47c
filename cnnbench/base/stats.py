"""Functions for the mean, median and spread of samples, for Student's t distribution, and for the
speed in images per second.

Definitions, where ``t[i]`` is the wall time in seconds of step i after the warm-up, ``b`` is the
number of images in one step and ``s[i] = b / t[i]``:

* mean ``M = b / mean(t)``: total images divided by total time, not the mean of the speeds;
* uncertainty ``U = population standard deviation of s / sqrt(n)``;
* jitter ``J = 1.4826 * median|s - median(s)|``, a robust standard deviation.

With an EWMA weight ``a``, ``mean(t)`` is weighted by ``(1-a)**(n-1), ..., (1-a), 1`` (the newest
step weighs most); U and J stay unweighted.
"""

from __future__ import annotations

import math
from array import array
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

# Statistics of the speed, computed from step times as in tf_cnn_benchmarks.

K = TypeVar("K")
T = TypeVar("T")


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Groups items by a hashable key. The keys are in the order in which they first occur."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


# For normally distributed data, the median absolute deviation times this factor estimates the
# standard deviation.
MAD_TO_SIGMA = 1.4826

# Up to this many values are inserted one by one; beyond, sorting the whole array is faster.
_WORTH_SORTING = 100

FEWEST_FOR_P99 = 100
"""Smallest number of values whose 99th percentile (nearest rank) is not the maximum."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a run in images per second: its mean, the uncertainty of the mean, and the jitter of
    steps.
    """

    mean: float
    uncertainty: float
    jitter: float


class RunningSpeed:
    """Computes the speed of the steps so far. It can be read cheaply after every step.

    Adding a step takes O(1) time. Reading inserts the new steps into a sorted array of doubles, and
    then takes O(log n) time.
    """

    def __init__(self, images_per_step: int, ewma_alpha: float | None = None) -> None:
        """Creates an instance without steps. Raises ValueError if an argument is out of range.

        Args:
          images_per_step: images per step of all towers together, at least 1.
          ewma_alpha: weight of the newest step in the mean, 0..1. With None or 0, all weights are
            equal.
        """
        if images_per_step < 1:
            raise ValueError(f"images_per_step={images_per_step}: must be at least 1")
        alpha = ewma_alpha or 0.0
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"ewma_alpha={ewma_alpha}: must lie between 0 and 1")
        self._images = images_per_step
        self._keep = 1.0 - alpha
        self._weighted_time = 0.0
        self._weight = 0.0
        self._count = 0
        self._speed_mean = 0.0
        self._speed_squares = 0.0
        self._sorted = array("d")
        self._pending = array("d")

    def __len__(self) -> int:
        return self._count

    def add(self, *step_seconds: float) -> None:
        """Adds steps with their wall times in seconds. ValueError if a time is not positive."""
        # Local variables are faster than attributes, and histories add the steps of thousands of
        # records.
        keep, images, add = self._keep, self._images, self._pending.append
        count, mean, squares = self._count, self._speed_mean, self._speed_squares
        for seconds in step_seconds:
            if not seconds > 0.0:
                raise ValueError(f"step time {seconds}: must be positive")
            self._weighted_time = keep * self._weighted_time + seconds
            self._weight = keep * self._weight + 1.0
            # If the speeds are close to their mean, a plain sum of squares suffers from
            # cancellation; Welford's algorithm does not.
            speed = images / seconds
            count += 1
            delta = speed - mean
            mean += delta / count
            squares += delta * (speed - mean)
            add(speed)
        self._count, self._speed_mean, self._speed_squares = count, mean, squares

    def current(self) -> Speed:
        """The speed statistics of all steps that were added so far. ValueError if there are
        none.
        """
        if not self._count:
            raise ValueError("no step was timed")
        if len(self._pending) < _WORTH_SORTING:
            for speed in self._pending:
                insort(self._sorted, speed)
        else:
            self._sorted = array("d", sorted([*self._sorted, *self._pending]))
        del self._pending[:]
        variance = max(self._speed_squares, 0.0) / self._count
        return Speed(
            mean=self._images * self._weight / self._weighted_time,
            uncertainty=math.sqrt(variance / self._count),
            jitter=MAD_TO_SIGMA * _mad_of_ordered(self._sorted),
        )


def compute_speed(images_per_step: int, step_seconds: Iterable[float]) -> Speed:
    """Computes the speed statistics of a complete series of step times; see `RunningSpeed`."""
    running = RunningSpeed(images_per_step)
    running.add(*step_seconds)
    return running.current()


def median(values: Iterable[float]) -> float:
    """Median of at least one value, in any order. For an even number, it is the mean of the middle
    two.
    """
    return _sorted_median(sorted(values))


def median_absolute_deviation(values: Iterable[float]) -> float:
    """Median of |x - median(x)| over at least one value x, in any order."""
    return _mad_of_ordered(sorted(values))


def _sorted_median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def _mad_of_ordered(ordered: Sequence[float]) -> float:
    """Median absolute deviation of values in ascending order, computed in O(log n) time.

    The deviations of the values below the median, read downwards, are an ascending sequence, and so
    are the deviations of the values above it. The median of both together is found by bisection.
    """
    centre = _sorted_median(ordered)
    count = len(ordered)
    high = _rank_deviation(ordered, centre, count // 2)
    if count % 2:
        return high
    return (_rank_deviation(ordered, centre, count // 2 - 1) + high) / 2


def _rank_deviation(ordered: Sequence[float], centre: float, rank: int) -> float:
    """Finds the absolute deviation from `centre` that has the given rank. Rank 0 is the smallest
    deviation.

    `ordered` contains the values in ascending order.

    The rank + 1 smallest deviations belong to a window of rank + 1 neighbouring values. It is the
    first window whose left neighbour is not closer to the centre than its right end.
    """
    low, high = 0, len(ordered) - rank - 1
    while low < high:
        left = (low + high) // 2
        if centre - ordered[left] > ordered[left + rank + 1] - centre:
            low = left + 1
        else:
            high = left
    return max(abs(centre - ordered[low]), abs(ordered[low + rank] - centre))


def nearest_rank_percentile(values: Sequence[float], share: float) -> float:
    """Percentile of at least one value, computed by nearest rank. `share` is from 0 to 1."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def p99(values: Sequence[float]) -> float | None:
    """The 99th percentile of the values by nearest rank; None for fewer than `FEWEST_FOR_P99`
    values.
    """
    return nearest_rank_percentile(values, 0.99) if len(values) >= FEWEST_FOR_P99 else None


def faster_half(seconds: Sequence[float]) -> list[int]:
    """Indices of the faster half of the steps. These steps are least affected by disturbances.

    The mean of whole steps equals the sum of the means of their operations and of the time between
    operations. A median does not have this property.
    """
    order = sorted(range(len(seconds)), key=lambda step: seconds[step])
    return order[: (len(seconds) + 1) // 2]


# Summaries of values from several processes: their median, its interval, and their range.

CONFIDENCE = 0.95
"""Minimum confidence of the intervals."""


@dataclass(frozen=True, slots=True)
class ValuesByProcess:
    """The values of one quantity in several processes, one per process, in the order of their
    start.

    Attributes:
      FEWEST: number of processes that an interval needs.
      INTERVAL: title of table columns that show intervals.
    """

    FEWEST: ClassVar[int] = 6
    INTERVAL: ClassVar[str] = f"{100 * CONFIDENCE:.0f} % interval"

    values: tuple[float, ...]

    @property
    def median(self) -> float | None:
        """The median of the values; None if there are no values."""
        return median(self.values) if self.values else None

    @property
    def range(self) -> tuple[float, float] | None:
        """The smallest and the largest value; None if all values are equal."""
        ends = (min(self.values), max(self.values)) if self.values else (0.0, 0.0)
        return ends if ends[0] < ends[1] else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Confidence interval of the median with level `CONFIDENCE`; None for fewer than `FEWEST`
        values.

        The interval inverts the sign test, so it is valid for
        every distribution (Hollander and Wolfe, Nonparametric Statistical Methods, section 3.6).
        """
        ordered = sorted(self.values)
        count = len(ordered)
        # Python integers are used, because binomial coefficients for 1,024 or more values exceed
        # the range of doubles.
        ways, tail, outside = 1, 1, 0
        while outside < count and 2 * tail / 2**count <= 1 - CONFIDENCE:
            outside += 1
            ways = ways * (count - outside + 1) // outside
            tail += ways
        return (ordered[outside - 1], ordered[count - outside]) if outside else None

    @property
    def relative_range(self) -> float | None:
        """Largest minus smallest value, divided by the median; None if there are fewer than two
        values.
        """
        if len(self.values) < 2 or not self.median:
            return None
        return (max(self.values) - min(self.values)) / self.median


# Student's t distribution, and confidence intervals of means


def student_tail(t: float, freedom: int) -> float:
    """P(T >= t) of Student's t distribution, for t >= 0 and `freedom`, at least 1 degree of
    freedom.

    Uses the finite series 26.7.3 and 26.7.4 of Abramowitz and Stegun.
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2 == 1
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for order in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= cosine**2 * (order + 1) / (order + 2)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, (1.0 - inside) / 2)


def student_quantile(tail: float, freedom: int) -> float:
    """The t that Student's t distribution exceeds with probability `tail`, which is in (0, 0.5]."""
    return quantile_by_bisection(lambda t: student_tail(t, freedom), tail)


def mean_interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Confidence interval of the mean by Student's t distribution, for independent values of about
    normal distribution. None for fewer than three values.
    """
    count = len(values)
    if count < 3:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    error = student_quantile((1 - confidence) / 2, count - 1) * math.sqrt(variance / count)
    return mean - error, mean + error


def quantile_by_bisection(tail_of: Callable[[float], float], tail: float) -> float:
    """Finds the t >= 0 at which a decreasing function has the value `tail`, by bisection."""
    low, high = 0.0, 1.0
    while tail_of(high) > tail and high < 1e9:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_of(middle) > tail else (low, middle)
    return high
