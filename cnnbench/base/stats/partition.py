"""Optimal partitions of long series into levels, for `cnnbench.base.stats.changepoints`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_DIGITS = 40
"""Binary digits of a deviation; sums of millions are exact, in whatever order they are formed."""

_CELLS = 1 << 22
"""Cells of a list of neighbours; 32 MiB for both."""


def partition(values: Sequence[float], penalty: float, min_segment: int) -> tuple[int, ...]:
    """Starts of all segments but the first that minimise deviations and penalties.

    The sum over all segments of the absolute deviations from its median, plus the penalty, is
    smallest. Takes n^2 operations on whole columns of numbers, and memory in proportion to n.

    Args:
      values: finite.
      penalty: of a segment, in units of the values.
      min_segment: least number of values of a segment.
    """
    given = np.asarray(values, dtype=np.float64)
    count = len(given)
    given = given - np.median(given)
    unit = 2.0 ** (np.frexp(np.abs(given).max())[1] - _DIGITS)
    whole = np.rint(given / unit).astype(np.int64)
    order = np.argsort(whole, kind="stable")
    rank = np.empty(count, dtype=np.int32)
    rank[order] = np.arange(count)
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    origin = np.zeros(count + 1, dtype=np.int64)
    width = max(64, _CELLS // (count + 1))
    for first in range(1, count + 1, width):
        columns = _Windows(whole[order], rank, range(first, min(first + width, count + 1)))
        for start in range(columns.stops[-1]):
            here = slice(max(0, start + min_segment - first), None)
            costs = best[start] + penalty + columns.costs[here] * unit
            stops = slice(first + here.start, columns.stops[-1] + 1)
            is_better = costs < best[stops]
            best[stops][is_better] = costs[is_better]
            origin[stops][is_better] = start
            columns.remove(start)
    found = []
    stop = int(origin[count])
    while stop:
        found.append(stop)
        stop = int(origin[stop])
    return tuple(reversed(found))


class _Windows:
    """Windows of a series with a common start, one for each of some stops, as sorted lists.

    A list is doubly linked, by ranks of the values, so that its first value in time is removed, and
    its median moved by one place, without a search. The rank `count` is before all and behind all.

    Attributes:
      stops: stops of the windows.
      costs: sums of absolute deviations from the median of each window.
    """

    def __init__(self, ordered: NDArray[np.int64], rank: NDArray[np.int32], stops: range) -> None:
        count, width = len(rank), len(stops)
        self.stops = stops
        self.costs = np.zeros(width, dtype=np.int64)
        self._ordered, self._rank = ordered, rank
        self._after = np.full((count + 1, width), count, dtype=np.int32)
        self._before = np.full((count + 1, width), count, dtype=np.int32)
        self._low = np.zeros(width, dtype=np.int32)
        self._high = np.zeros(width, dtype=np.int32)
        is_there = np.zeros(count, dtype=bool)
        is_there[rank[: stops[0] - 1]] = True
        for column, stop in enumerate(stops):
            is_there[rank[stop - 1]] = True
            ranks = np.flatnonzero(is_there)
            self._after[ranks[:-1], column] = ranks[1:]
            self._before[ranks[1:], column] = ranks[:-1]
            self._low[column], self._high[column] = ranks[(stop - 1) // 2], ranks[stop // 2]
            there = ordered[ranks]
            self.costs[column] = there[(stop + 1) // 2 :].sum() - there[: stop // 2].sum()

    def remove(self, start: int) -> None:
        """Removes the value of this index, the first one, from all windows with two or more."""
        first = max(0, start + 2 - self.stops[0])
        columns = np.arange(first, len(self.costs))
        rank = self._rank[start]
        low, high = self._low[first:], self._high[first:]
        odd = (self.stops[0] + first - start + 1) % 2  # first column with an odd number of values
        middle, there = low[odd::2].copy(), columns[odd::2]
        low[odd::2] = np.where(rank < middle, middle, self._before[middle, there])
        high[odd::2] = np.where(rank > middle, middle, self._after[middle, there])
        even = slice(1 - odd, None, 2)
        low[even] = high[even] = np.where(rank <= low[even], high[even], low[even])
        value = self._ordered[rank]
        beyond = np.maximum(self._ordered[low] - value, value - self._ordered[high])
        self.costs[first:] -= np.maximum(beyond, 0)
        before, after = self._before[rank, first:], self._after[rank, first:]
        self._after[before, columns] = after
        self._before[after, columns] = before
