"""Levels, trends and the steady state of a sequence.

The model: the series consists of segments. A segment has one level, or a level, a straight line and
another level (a trend). Deviations from it are noise of one standard deviation and one first-order
autocorrelation. `segments` chooses the segments in two steps:

1. Candidates. Optimal partitioning (Jackson et al., "An algorithm for optimal partitioning of data
   on an interval", IEEE Signal Processing Letters 12, 2005) cuts the series where the sum of the
   absolute deviations from the segments' medians, plus a penalty for each segment, is smallest.
   Absolute deviations instead of squares keep outliers from being taken for levels (Bardet and
   Dion, "Robust semi-parametric multiple change-points detection", Signal Processing 156, 2019).
   The penalty is low, so there are too many candidates rather than too few.
2. Choice. Neighbouring candidates are replaced by a trend, or merged, if the logarithm of the
   likelihood does not decrease by more than the penalty of the parameters that this saves. The
   likelihood is that of Gaussian noise, with deviations that are limited to some standard
   deviations, and is maximised over the correlation anew for each hypothesis. A series that
   wanders because its noise is correlated is explained best by a correlation; a series with a step
   is explained best by the step, although the step correlates neighbours, too. This follows the
   gappy Schwarz criterion (Cho and Fryzlewicz, "Multiple change point detection under serial
   dependence", Journal of Time Series Analysis 45, 2024), and the choice among steps, trends and
   correlation follows Beaulieu and Killick ("Distinguishing trends and shifts from memory in
   climate data", Journal of Climate 31, 2018).

The method is that of Barrett, Bolz-Tereick, Killick, Mount and Tratt, "Virtual Machine Warmup Blows
Hot and Cold" (OOPSLA 2017): cut the series where its level changes; similar levels at its end are
the steady state, unless they are too small a part of the series. As in Traini, Cortellessa, Di
Pompeo and Tucci, "Towards effective assessment of steady state performance in Java software: are we
there yet?" (Empirical Software Engineering 28, 2023), levels within 5 % are similar. Levels are
medians, and the cuts are those of `cnnbench.base.time_series`, which takes outliers and
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
import sys
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from cnnbench.base.stats import MAD_TO_SIGMA, median, median_absolute_deviation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Changes of a noisy series: levels, trends between levels, and noise that may be correlated.

MIN_SEGMENT = 5
"""Values in the shortest segment: the median of five ignores two outliers."""

MIN_TREND = 4
"""Fewest values of a trend; a shorter one cannot be told from a step."""

_DIGITS = 40
"""Binary digits of a deviation; sums of millions are exact."""

_NEVER = 1 << 61
"""More than all costs."""

_CANDIDATE = 1.2
"""Reduction of the absolute deviations per candidate, in standard deviations times log n."""

_CHANGE, _EXCURSION, _TREND = 1.55, 2.7, 3.1
"""Loss of log-likelihood that justifies a change, two changes, and a trend instead of steps.

In units of log n + 2/3: 1.55 of it is 3.8 for 6 values, 6.8 for 40 and 8.5 for 120. A trend in
place of a level has the price of two changes, its ends.
"""

_SHORT = 4
"""Levels of fewer values need more evidence, because outliers come in pairs, too."""

_REACH = 4.0
"""Standard deviations to which deviations are limited."""

_CORRELATIONS = 17
_LARGEST_CORRELATION = 0.8

_MOST_JOINED = 12
"""Most candidates that are joined to a trend at a time."""

_MOST_KNOTS = 100
"""Most places that are tried as the first or last value of a trend."""

_MOST_WITH_TRENDS, _AT_A_TIME = 100, 32
"""Limits that only long series reach, to save time."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive values with one level, or with a trend from one level to another.

    Attributes:
      start, stop: indices of the first value and behind the last one.
      trend: indices of the last value at the first level and of the first value at the second
        level; None for one level.
    """

    start: int
    stop: int
    trend: tuple[int, int] | None = None

    def fit(self, values: NDArray[np.float64], reach: float | None = None) -> NDArray[np.float64]:
        """The levels at each of its values: a mean, or a mean and a slope, of limited deviations.

        Args:
          values: all values of the series.
          reach: the largest deviation that counts, from the median or from the line by least
            squares; by default four standard deviations, by the median of the deviations.
        """
        own = values[self.start : self.stop]
        centre = median(own.tolist()) if self.trend is None else _least_squares(own, self)
        off = own - centre
        if reach is None:
            reach = _REACH * MAD_TO_SIGMA * median(abs(off).tolist())
        return _least_squares(centre + off.clip(-reach, reach), self)


def change_points(
    values: Sequence[float], min_spread: float = 0.0, min_segment: int = MIN_SEGMENT
) -> tuple[int, ...]:
    """The indices at which a new level begins, ascending; empty if there is one level.

    A trend is several levels. Takes time in proportion to the square of the number of values.

    Args:
      values: finite.
      min_spread: lower bound of the noise's standard deviation; smaller changes are ignored.
      min_segment: values in the shortest segment; a smaller number detects changes earlier, and
        takes fewer consecutive outliers for a level.
    """
    cuts, found = _chosen(values, lambda _: min_spread, min_segment, 0.0)
    trends = [one for one in found if one.trend is not None]
    starts = {one.start for one in found[1:]}
    return tuple(
        cut for cut in cuts if cut in starts or any(one.start < cut < one.stop for one in trends)
    )


def segments(
    values: Sequence[float],
    min_spread: Callable[[float], float],
    min_segment: int,
    least_trend: float,
) -> list[Segment]:
    """The segments of a series in order; see the head of this module.

    Args:
      values: finite, at least one.
      min_spread: lower bound of the noise's standard deviation, from the largest deviation that
        counts.
      min_segment: values in the shortest segment.
      least_trend: trends have a larger total.
    """
    return _chosen(values, min_spread, min_segment, least_trend)[1]


def _chosen(
    values: Sequence[float],
    min_spread: Callable[[float], float],
    min_segment: int,
    least_trend: float,
) -> tuple[tuple[int, ...], list[Segment]]:
    """The cuts between the candidates, and the chosen segments."""
    import numpy as np  # late: a refused flag loads no NumPy

    count = len(values)
    if count < max(3, 2 * min_segment):
        return (), [Segment(0, count)]
    spread = max(_spread(values), min_spread(0.0))
    cuts = partition(values, _CANDIDATE * spread * math.log(count), min_segment)
    found = [Segment(start, stop) for start, stop in pairwise((0, *cuts, count))]
    if not cuts:
        return cuts, found
    choice = _Choice(np.asarray(values, dtype=np.float64), found, min_spread)
    merged = found
    if len(found) <= _MOST_WITH_TRENDS:
        merged = choice.merged(choice.with_trends(found, least_trend))
    if len(merged) == 1 and merged[0].trend is None:
        # A trend in place of many candidates may have hidden a step among them.
        merged = choice.merged(found)
    return cuts, choice.with_trends(merged, least_trend)


def _spread(values: Sequence[float]) -> float:
    """Robust standard deviation of independent noise, by differences of neighbours or by values.

    Changes of level enlarge that of the values, values that alternate between two states that of
    the differences. The smaller one gives more candidates.
    """
    differences = [b - a for a, b in pairwise(values)]
    of_differences = median_absolute_deviation(differences) / math.sqrt(2)
    return MAD_TO_SIGMA * min(of_differences, median_absolute_deviation(values))


class _Sums(NamedTuple):
    """Sums over the deviations of a segment: squares, products of neighbours, and both ends."""

    squares: float
    products: float
    first: float
    last: float


class _Move(NamedTuple):
    """The replacement of the segments `start` to `stop` - 1 by one segment.

    `price`: loss of log-likelihood that the saved parameters justify, in units of `_weight`.
    `reach`: the largest deviation that counts.
    """

    start: int
    stop: int
    segment: Segment
    price: float
    reach: float

    def overlaps(self, other: _Move) -> bool:
        """Whether both replace the same segment."""
        return self.start < other.stop and other.start < self.stop


class _Choice:
    """Chooses among segmentations of a series by their likelihood."""

    def __init__(
        self,
        values: NDArray[np.float64],
        candidates: Sequence[Segment],
        min_spread: Callable[[float], float],
    ) -> None:
        import numpy as np

        self._values = values
        self._min_spread = min_spread
        self._weight = math.log(len(values)) + 2 / 3
        self._short = min(_SHORT, len(values) / 4)
        off = values - np.concatenate([one.fit(values) for one in candidates])
        spread = max(MAD_TO_SIGMA * median(np.abs(off).tolist()), min_spread(0.0))
        self._least_reach = max(_REACH * spread, sys.float_info.min)
        self._limited: dict[tuple[Segment, float], NDArray[np.float64]] = {}
        self._sums: dict[tuple[object, ...], _Sums] = {}
        self._trends: dict[tuple[int, int], Segment | None] = {}

    def with_trends(self, found: list[Segment], least: float) -> list[Segment]:
        """Replaces consecutive levels by trends where the likelihood allows it.

        Args:
          found: segments of the whole series.
          least: trends have a larger total.
        """
        moves = []
        for start in range(len(found) - 1):
            for stop in range(start + 2, min(len(found), start + _MOST_JOINED) + 1):
                moves += self._trend_instead(found, start, stop, least)
        losses = self._losses(found, moves)
        gains = [move.price * self._weight - loss for move, loss in zip(moves, losses, strict=True)]
        order = sorted(range(len(moves)), key=lambda index: -gains[index])
        return _replaced(found, [moves[index] for index in order if gains[index] > 0])

    def _trend_instead(
        self, found: Sequence[Segment], start: int, stop: int, least: float
    ) -> list[_Move]:
        """The best trend in place of levels that go one way, if there is one."""
        parts = found[start:stop]
        if any(part.trend is not None for part in parts):
            return []
        levels = [float(part.fit(self._values, self._least_reach)[0]) for part in parts]
        changes = [b - a for a, b in pairwise(levels)]
        total = levels[-1] - levels[0]
        against = max(-change * math.copysign(1.0, total) for change in changes)
        is_one_way = changes[0] * total > 0 and changes[-1] * total > 0 and against < abs(total)
        trend = self._best_trend(parts[0].start, parts[-1].stop)
        if abs(total) <= least or not is_one_way or trend is None:
            return []
        price = _CHANGE * len(changes) - _TREND
        return [_Move(start, stop, trend, price, self._reach(max(map(abs, changes))))]

    def merged(self, found: list[Segment]) -> list[Segment]:
        """Merges segments, the weakest change first, while the likelihood allows it."""
        while moves := self._merges(found):
            losses = self._losses(found, moves)
            strengths = [
                loss / (move.price * self._weight) for move, loss in zip(moves, losses, strict=True)
            ]
            order = sorted(range(len(moves)), key=strengths.__getitem__)
            # Of many segments several are merged at a time, which takes less time.
            weak = [i for i in order[: max(1, len(found) // _AT_A_TIME)] if strengths[i] <= 1]
            if not weak:
                break
            found = _replaced(found, [moves[i] for i in weak])
        return found

    def _merges(self, found: Sequence[Segment]) -> list[_Move]:
        """Segmentations without one trend, without one change, or without one level."""
        fits = [one.fit(self._values, self._least_reach) for one in found]
        gaps = [float(b[0] - a[-1]) for a, b in pairwise(fits)]
        prices = [self._price(one, 0 < i < len(found) - 1) for i, one in enumerate(found)]
        moves = []
        for i, (one, fit) in enumerate(zip(found, fits, strict=True)):
            if one.trend is not None:
                level, total = Segment(one.start, one.stop), float(fit[-1] - fit[0])
                moves.append(_Move(i, i + 1, level, _EXCURSION, self._reach(total)))
            for stop, price in ((i + 2, _CHANGE), (i + 3, _EXCURSION)):
                if stop <= len(found):
                    price += sum(prices[i:stop])
                    moves += self._merge(found, i, stop, price, gaps)
        return moves

    def _price(self, level: Segment, is_inner: bool) -> float:
        """Price of a short level, besides that of its changes."""
        shortness = max(1.0, self._short / (level.stop - level.start))
        return _EXCURSION * (shortness**2 - 1) if is_inner else _CHANGE * (shortness**0.5 - 1)

    def _merge(
        self, found: Sequence[Segment], start: int, stop: int, price: float, gaps: Sequence[float]
    ) -> list[_Move]:
        """The merger of neighbouring segments, into a trend if one of them is a trend."""
        first, last = found[start].start, found[stop - 1].stop
        new: Segment | None = Segment(first, last)
        if any(part.trend is not None for part in found[start:stop]):
            new = self._best_trend(first, last) if stop == start + 2 else None
        if new is None:
            return []
        reach = self._reach(max(map(abs, gaps[start : stop - 1])))
        return [_Move(start, stop, new, price, reach)]

    def _best_trend(self, start: int, stop: int) -> Segment | None:
        """The trend with the least squares; None if the values are too few."""
        if (start, stop) not in self._trends:
            self._trends[start, stop] = _best_trend(self._values, start, stop)
        return self._trends[start, stop]

    def _reach(self, gap: float) -> float:
        """The largest deviation that counts: the change that is judged.

        It is rounded up to a quarter of an octave, so sums can be used again.
        """
        quarters = 4 * math.log2(max(abs(gap) / self._least_reach, 1.0))
        return self._least_reach * math.pow(2.0, math.ceil(quarters) / 4)

    def _losses(self, found: Sequence[Segment], moves: Sequence[_Move]) -> list[float]:
        """Losses of log-likelihood by moves."""
        losses = [0.0] * len(moves)
        for reach in {move.reach for move in moves}:
            chosen = [index for index, move in enumerate(moves) if move.reach == reach]
            costs = self._costs(found, [moves[index] for index in chosen], reach)
            for index, cost in zip(chosen, costs[1:], strict=True):
                losses[index] = cost - costs[0]
        return losses

    def _costs(self, found: Sequence[Segment], moves: Sequence[_Move], reach: float) -> list[float]:
        """Minus the log-likelihood, without its constant, of the segments and after each move.

        The squares that a correlation r leaves are S - 2 r P + r^2 (S - a^2 - b^2), with the sum S
        of the squares of deviations, the sum P of the products of neighbours, and the first and
        last deviations a and b.
        """
        import numpy as np

        sums = [self._sums_of(one, (one,), reach) for one in found]
        # Neighbours across the borders of segments, and beyond both ends of the series.
        crossing = [0.0, *(a.last * b.first for a, b in pairwise(sums)), 0.0]
        squares = list(accumulate((one.squares for one in sums), initial=0.0))
        inside = list(accumulate((one.products for one in sums), initial=0.0))
        between = list(accumulate(crossing, initial=0.0))
        rows = [(squares[-1], inside[-1] + between[-1], sums[0].first, sums[-1].last)]
        for start, stop, segment, *_ in moves:
            new = self._sums_of(segment, found[start:stop], reach)
            lost = inside[stop] - inside[start] + between[stop + 1] - between[start]
            gained = new.products
            if start:
                gained += sums[start - 1].last * new.first
            if stop < len(sums):
                gained += new.last * sums[stop].first
            rows.append(
                (
                    squares[-1] - (squares[stop] - squares[start]) + new.squares,
                    rows[0][1] - lost + gained,
                    sums[0].first if start else new.first,
                    sums[-1].last if stop < len(sums) else new.last,
                )
            )
        total, products, first, last = np.array(rows).T[:, :, None]
        r = np.linspace(0.0, _LARGEST_CORRELATION, _CORRELATIONS)
        left = total - 2 * r * products + r**2 * (total - first**2 - last**2)
        count = len(self._values)
        least = max(count * self._min_spread(reach) ** 2, sys.float_info.min)
        degrees = max(count - len(found) - 1, 0)
        costs = degrees * np.log(np.maximum(left, least)) - np.log(1 - r**2)
        best: list[float] = (costs.min(axis=1) / 2).tolist()
        return best

    def _sums_of(self, segment: Segment, parts: Sequence[Segment], reach: float) -> _Sums:
        """Sums over the deviations from a segment of values limited around its parts."""
        import numpy as np

        key = segment, *parts, reach
        if key not in self._sums:
            values = np.concatenate([self._limited_values(part, reach) for part in parts])
            off = values - _least_squares(values, segment)
            products = float(off[1:] @ off[:-1])
            self._sums[key] = _Sums(float(off @ off), products, float(off[0]), float(off[-1]))
        return self._sums[key]

    def _limited_values(self, segment: Segment, reach: float) -> NDArray[np.float64]:
        """The values of a segment with deviations of at most `reach`."""
        key = segment, reach
        if key not in self._limited:
            fit = segment.fit(self._values, reach)
            off = self._values[segment.start : segment.stop] - fit
            self._limited[key] = fit + off.clip(-reach, reach)
        return self._limited[key]


def _replaced(found: Sequence[Segment], moves: Sequence[_Move]) -> list[Segment]:
    """The segments after moves, of which the first of two that overlap counts."""
    taken: list[_Move] = []
    for move in moves:
        if not any(move.overlaps(other) for other in taken):
            taken.append(move)
    new = list(found)
    for move in sorted(taken, reverse=True, key=lambda move: move.start):
        new[move.start : move.stop] = [move.segment]
    return new


def _best_trend(values: NDArray[np.float64], start: int, stop: int) -> Segment | None:
    """The trend with the least squares among those with at least `MIN_TREND` values."""
    import numpy as np

    size = stop - start
    if size <= MIN_TREND:
        return None
    own = values[start:stop] - values[start:stop].mean()
    places = np.unique(np.rint(np.linspace(0, size - 1, min(size, _MOST_KNOTS))).astype(int))
    pairs = np.nonzero(places[None, :] - places[:, None] >= MIN_TREND)
    first, last = places[pairs[0]], places[pairs[1]]
    # Regression on the share of the trend that is over: 0 until `first`, 1 from `last` on.
    sums = np.concatenate([[0.0], np.cumsum(own)])
    moments = np.concatenate([[0.0], np.cumsum(own * np.arange(size))])
    length, after = last - first, size - last
    inside = moments[last] - moments[first + 1] - first * (sums[last] - sums[first + 1])
    covariance = inside / length - sums[last]
    share = (length - 1) / 2 + after
    variance = (length - 1) * (2 * length - 1) / (6 * length) + after - share**2 / size
    explained = covariance**2 / np.maximum(variance, 1e-9)
    best = int(np.argmax(explained))
    return Segment(start, stop, (start + int(first[best]), start + int(last[best])))


def _least_squares(values: NDArray[np.float64], segment: Segment) -> NDArray[np.float64]:
    """The levels of a segment that fit its values with the least squares."""
    import numpy as np

    mean = float(values.mean())
    if segment.trend is None:
        return np.full(len(values), mean)
    share = np.interp(np.arange(segment.start, segment.stop), segment.trend, (0.0, 1.0))
    share -= share.mean()
    fitted: NDArray[np.float64] = mean + float(share @ values) / float(share @ share) * share
    return fitted


def growing_deviations(values: Iterable[float]) -> Iterator[float]:
    """Sums of the absolute deviations from the median: of the first value, of two, and so on."""
    cost = 0.0
    ordered: list[float] = []
    for size, value in enumerate(values):
        if size:
            # The sum of deviations grows by the distance to the median, or, of an
            # even number of values, to the interval of all medians.
            low, high = ordered[(size - 1) // 2], ordered[size // 2]
            if value < low:
                cost += low - value
            elif value > high:
                cost += value - high
        insort(ordered, value)
        yield cost


def partition(values: Sequence[float], penalty: float, min_segment: int) -> tuple[int, ...]:
    """Starts of all segments but the first that minimise deviations and penalties.

    The sum over all segments of the absolute deviations from its median, plus the penalty, is
    smallest; of several optima it is the one with the longest last segments. The best segments
    before each stop are kept for every value of the series as the level of the last one, which
    suffices, since a median is a value or lies between two of equal cost. Deviations are integers,
    whose sums are exact in whatever order they are formed.

    Args:
      values: finite.
      penalty: of a segment, in units of the values.
      min_segment: least number of values of a segment.
    """
    import numpy as np  # late: a refused flag loads no NumPy

    given = np.asarray(values, dtype=np.float64)
    given = given - np.median(given)
    exponent = int(np.frexp(np.abs(given).max())[1])
    unit = math.ldexp(1.0, max(exponent - _DIGITS, -1022))
    whole = np.rint(given / unit).astype(np.int64)
    price = round(min(penalty / unit, float(np.abs(whole).sum()) + 1))
    levels = np.unique(whole)
    costs = np.full(len(levels), _NEVER)  # of the last segment at each level and those before it
    starts = np.zeros(len(levels), dtype=np.int64)
    recent = np.zeros(len(levels), dtype=np.int64)  # deviations of the shortest last segment
    best, origin = [-price], [0]
    for stop, value in enumerate(whole.tolist(), start=1):
        off = np.abs(levels - value)
        costs += off
        recent += off
        start = stop - min_segment
        if start > 0:
            recent -= np.abs(levels - whole[start - 1])
        if start >= 0:
            fresh = recent + (best[start] + price)
            is_better = fresh < costs
            costs[is_better] = fresh[is_better]
            starts[is_better] = start
        least = int(costs.min())
        best.append(min(least, _NEVER))
        origin.append(int(starts[costs == least].min()))
    found = []
    stop = origin[-1]
    while stop:
        found.append(stop)
        stop = origin[stop]
    return tuple(reversed(found))


# Detects whether, and from which step on, a series of step times is steady.

TOLERANCE = 0.05
"""Relative difference below which levels are similar."""

MIN_SHARE = 0.25
"""Share of the series that must be steady, as in Barrett et al. (500 of 2000)."""

MIN_STEADY = 2 * MIN_SEGMENT
"""Least number of steady steps, however short the series is."""

MIN_STEPS = 2 * MIN_STEADY
"""Steps of the shortest series that is classified."""

_RESOLUTION = 150
_LEAST_RELATIVE_NOISE = 0.002
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
    cuts = change_points(medians, _LEAST_RELATIVE_NOISE * median(medians))
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
