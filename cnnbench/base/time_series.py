"""Finds levels and trends in a sequence of values with noise that may be autocorrelated.

The model: the series consists of segments. A segment is one level, or a trend: a level, then a
straight line to a second level. Deviations are noise; its standard deviation and its first-order
autocorrelation are the same for the whole series. `find_segments` chooses the segments in two
steps:

1. Candidates. Optimal partitioning (Jackson et al., "An algorithm for optimal partitioning of data
   on an interval", IEEE Signal Processing Letters 12, 2005) cuts the series where the sum of the
   absolute deviations from the segments' medians, plus a penalty for each segment, is smallest. It
   uses absolute deviations instead of squares, so that outliers are not mistaken for levels (Bardet
   and Dion, "Robust semi-parametric multiple change-points detection", Signal Processing 156,
   2019). The penalty is low: it results in too many candidates rather than too few.
2. Choice. Neighbouring candidates are replaced by a trend, or merged, if the logarithm of the
   likelihood does not decrease by more than the penalty of the parameters that this saves. The
   likelihood assumes Gaussian noise, and large deviations are limited to a number of standard
   deviations. It is maximised over the correlation separately for each hypothesis. A series that
   wanders because its noise is correlated is explained best by a correlation; a series with a
   change of level is explained best by this change, although the change correlates neighbours, too.
   This follows the gappy Schwarz criterion (Cho and Fryzlewicz, "Multiple change point detection
   under serial dependence", Journal of Time Series Analysis 45, 2024), and the choice among changes
   of level, trends and correlation follows Beaulieu and Killick ("Distinguishing trends and shifts
   from memory in climate data", Journal of Climate 31, 2018).
"""

from __future__ import annotations

import math
import sys
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from cnnbench.base.lazy_numpy import NDArray, np
from cnnbench.base.stats import MAD_TO_SIGMA, median, median_absolute_deviation

MIN_SEGMENT = 5
"""Minimum number of values in a segment. The median of five values ignores two outliers."""

MIN_TREND = 4
"""Minimum number of values in a trend. A shorter trend could be a sudden change of level."""

_DIGITS = 40
"""Number of bits of a deviation. Sums of millions of deviations are exact."""

_NEVER = 1 << 61
"""A cost that is higher than all possible costs."""

_CANDIDATE = 1.2
"""By how much a candidate must reduce the absolute deviations, in standard deviations * log n."""

_CHANGE, _EXCURSION, _TREND = 1.55, 2.7, 3.1
"""Minimum gains in log-likelihood: a change of level, two changes, a trend instead of changes.

The unit is log n + 2/3. For example, 1.55 units are 3.8 for 6 values, 6.8 for 40 and 8.5 for 120. A
trend instead of a level costs as much as two changes, because it has two ends.
"""

_SHORT = 4
"""A level with fewer values needs a higher gain, because outliers may come in pairs."""

_REACH = 4.0
"""Limit of deviations, in standard deviations."""

_CORRELATIONS = 17
_LARGEST_CORRELATION = 0.8

_MOST_JOINED = 12
"""Maximum number of candidates that are joined to one trend at a time."""

_MOST_KNOTS = 100
"""Maximum number of positions that are tried as the first or last value of a trend."""

_MOST_WITH_TRENDS, _AT_A_TIME = 100, 32
"""Limits that save time; only long series reach them."""


class Segment(NamedTuple):
    """Consecutive values of a time series that share one level, or follow a trend from one level to
    a second level.

    Attributes:
      start, stop: index of the first value, and the index after the last value.
      trend: index of the last value at the first level, and index of the first value at the second
        level; None if there is only one level.
    """

    start: int
    stop: int
    trend: tuple[int, int] | None = None

    def fit(
        self, values: NDArray[np.float64], clip_limit: float | None = None
    ) -> NDArray[np.float64]:
        """Fits one level or a trend to the values of the segment, and returns the fitted value at
        each index.

        Deviations are limited first, so that outliers have little effect.

        Args:
          values: all values of the series.
          clip_limit: deviations from the median, or from the least-squares line, are limited to
            this value. By default, it is four standard deviations, estimated from the median of the
            deviations.
        """
        own = values[self.start : self.stop]
        centre = median(own.tolist()) if self.trend is None else _fit_values(own, self)
        off = own - centre
        if clip_limit is None:
            clip_limit = _REACH * MAD_TO_SIGMA * median(abs(off).tolist())
        return _fit_values(centre + off.clip(-clip_limit, clip_limit), self)


def change_points(values: Sequence[float], min_spread: float = 0.0) -> tuple[int, ...]:
    """Finds the indices at which a new level begins, ascending. Empty if the time series has only
    one level.

    A trend appears as several levels. The time is proportional to the square of the number of
    values.

    Args:
      values: finite.
      min_spread: lower bound of the noise's standard deviation; smaller changes are ignored.
    """
    cuts, segments = _choose_segments(values, lambda _: min_spread, MIN_SEGMENT, 0.0)
    trends = [segment for segment in segments if segment.trend is not None]
    starts = {segment.start for segment in segments[1:]}
    return tuple(
        cut
        for cut in cuts
        if cut in starts or any(segment.start < cut < segment.stop for segment in trends)
    )


def find_segments(
    values: Sequence[float],
    min_spread: Callable[[float], float],
    min_segment: int,
    least_trend: float,
) -> list[Segment]:
    """Divides a time series into segments, in order. The docstring of this module describes the
    method.

    Args:
      values: finite, at least one.
      min_spread: function from the limit of deviations to a lower bound of the noise's standard
        deviation.
      min_segment: minimum number of values in a segment.
      least_trend: the total change of a trend must be larger than this.
    """
    return _choose_segments(values, min_spread, min_segment, least_trend)[1]


def _choose_segments(
    values: Sequence[float],
    min_spread: Callable[[float], float],
    min_segment: int,
    least_trend: float,
) -> tuple[tuple[int, ...], list[Segment]]:
    """Divides a time series into segments. Also returns the indices of all candidate cuts,
    including the cuts that were not chosen.
    """
    count = len(values)
    if count < max(3, 2 * min_segment):
        return (), [Segment(0, count)]
    spread = max(_robust_deviation(values), min_spread(0.0))
    cuts = optimal_segmentation(values, _CANDIDATE * spread * math.log(count), min_segment)
    segments = [Segment(start, stop) for start, stop in pairwise((0, *cuts, count))]
    if not cuts:
        return cuts, segments
    choice = _SegmentationChoice(np.asarray(values, dtype=np.float64), segments, min_spread)
    merged = segments
    if len(segments) <= _MOST_WITH_TRENDS:
        merged = choice.merge_segments(choice.replace_by_trends(segments, least_trend))
    if len(merged) == 1 and merged[0].trend is None:
        # One trend in place of many candidate segments may hide a sudden change of level. So if the
        # choice with trends finds no change, the candidates are also merged without trends.
        merged = choice.merge_segments(segments)
    return cuts, choice.replace_by_trends(merged, least_trend)


def _robust_deviation(values: Sequence[float]) -> float:
    """Robust estimate of the standard deviation of a time series' noise, by the median absolute
    deviation.

    The result is the smaller of two estimates, because it results in more candidate segments.
    Changes of level enlarge the estimate from the values. If values alternate between two states,
    the estimate from the differences between neighbouring values is too large.
    """
    differences = [b - a for a, b in pairwise(values)]
    of_differences = median_absolute_deviation(differences) / math.sqrt(2)
    return MAD_TO_SIGMA * min(of_differences, median_absolute_deviation(values))


class _DeviationSums(NamedTuple):
    """Sums over a segment from which its likelihood is computed: squared deviations, and products
    of neighbouring deviations.

    `first` and `last` are the deviations at the ends of the segment.
    """

    squares: float
    products: float
    first: float
    last: float


class _SegmentReplacement(NamedTuple):
    """A possible replacement of the consecutive segments `start` to `stop` - 1 by one segment.

    `price`: the decrease of log-likelihood that is accepted because the new segment has fewer
    parameters, in multiples of `_weight`. `clip_limit`: the limit of deviations.
    """

    start: int
    stop: int
    segment: Segment
    price: float
    clip_limit: float

    def overlaps(self, other: _SegmentReplacement) -> bool:
        """Whether this replacement and the replacement `other` replace a common segment."""
        return self.start < other.stop and other.start < self.stop


class _SegmentationChoice:
    """Chooses among possible divisions of a time series into segments by their likelihood."""

    def __init__(
        self,
        values: NDArray[np.float64],
        candidates: Sequence[Segment],
        min_spread: Callable[[float], float],
    ) -> None:
        self._values = values
        self._min_spread = min_spread
        self._weight = math.log(len(values)) + 2 / 3
        self._short = min(_SHORT, len(values) / 4)
        off = values - np.concatenate([segment.fit(values) for segment in candidates])
        spread = max(MAD_TO_SIGMA * median(np.abs(off).tolist()), min_spread(0.0))
        self._least_reach = max(_REACH * spread, 2.0**-500)
        self._limited: dict[tuple[Segment, float], NDArray[np.float64]] = {}
        self._sums: dict[tuple[object, ...], _DeviationSums] = {}
        self._trends: dict[tuple[int, int], Segment | None] = {}

    def replace_by_trends(self, segments: list[Segment], least: float) -> list[Segment]:
        """Replaces consecutive levels by trends wherever the likelihood allows it.

        Args:
          segments: segments of the whole series.
          least: the total change of a trend must be larger than this.
        """
        moves = []
        for start in range(len(segments) - 1):
            for stop in range(start + 2, min(len(segments), start + _MOST_JOINED) + 1):
                moves += self._propose_trend(segments, start, stop, least)
        losses = self._losses(segments, moves)
        gains = [move.price * self._weight - loss for move, loss in zip(moves, losses, strict=True)]
        order = sorted(range(len(moves)), key=lambda index: -gains[index])
        return _apply_moves(segments, [moves[index] for index in order if gains[index] > 0])

    def _propose_trend(
        self, segments: Sequence[Segment], start: int, stop: int, least: float
    ) -> list[_SegmentReplacement]:
        """Proposes to replace the segments `start` to `stop` - 1, levels that rise or fall, by the
        best-fitting trend. Empty if no trend is possible.
        """
        parts = segments[start:stop]
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
        return [
            _SegmentReplacement(start, stop, trend, price, self._clip_limit(max(map(abs, changes))))
        ]

    def merge_segments(self, segments: list[Segment]) -> list[Segment]:
        """Merges segments as long as the likelihood allows it, starting with the weakest change."""
        while moves := self._possible_merges(segments):
            losses = self._losses(segments, moves)
            strengths = [
                loss / (move.price * self._weight) for move, loss in zip(moves, losses, strict=True)
            ]
            order = sorted(range(len(moves)), key=strengths.__getitem__)
            # Several segments are merged at a time; one by one would take too long in a long
            # series.
            weak = [i for i in order[: max(1, len(segments) // _AT_A_TIME)] if strengths[i] <= 1]
            if not weak:
                break
            segments = _apply_moves(segments, [moves[i] for i in weak])
        return segments

    def _possible_merges(self, segments: Sequence[Segment]) -> list[_SegmentReplacement]:
        """Lists all replacements of segments that remove one trend, one change of level, or one
        level.
        """
        fits = [segment.fit(self._values, self._least_reach) for segment in segments]
        gaps = [float(b[0] - a[-1]) for a, b in pairwise(fits)]
        prices = [
            self._penalty(segment, 0 < i < len(segments) - 1) for i, segment in enumerate(segments)
        ]
        moves = []
        for i, (segment, fit) in enumerate(zip(segments, fits, strict=True)):
            if segment.trend is not None:
                level, total = Segment(segment.start, segment.stop), float(fit[-1] - fit[0])
                moves.append(
                    _SegmentReplacement(i, i + 1, level, _EXCURSION, self._clip_limit(total))
                )
            for stop, price in ((i + 2, _CHANGE), (i + 3, _EXCURSION)):
                if stop <= len(segments):
                    price += sum(prices[i:stop])
                    moves += self._propose_merge(segments, i, stop, price, gaps)
        return moves

    def _penalty(self, level: Segment, is_inner: bool) -> float:
        """Penalty for a level of few values, in addition to the penalty for the changes of level at
        its ends.
        """
        shortness = max(1.0, self._short / (level.stop - level.start))
        return _EXCURSION * (shortness**2 - 1) if is_inner else _CHANGE * (shortness**0.5 - 1)

    def _propose_merge(
        self,
        segments: Sequence[Segment],
        start: int,
        stop: int,
        price: float,
        gaps: Sequence[float],
    ) -> list[_SegmentReplacement]:
        """Proposes to replace the segments `start` to `stop` - 1 by one segment. Empty if this is
        impossible.

        The new segment is a trend if one of the old segments is a trend, otherwise a level.
        """
        first, last = segments[start].start, segments[stop - 1].stop
        new: Segment | None = Segment(first, last)
        if any(part.trend is not None for part in segments[start:stop]):
            new = self._best_trend(first, last) if stop == start + 2 else None
        if new is None:
            return []
        clip_limit = self._clip_limit(max(map(abs, gaps[start : stop - 1])))
        return [_SegmentReplacement(start, stop, new, price, clip_limit)]

    def _best_trend(self, start: int, stop: int) -> Segment | None:
        """Returns the trend that fits the values `start` to `stop` - 1 best, from a cache if
        possible; None if there are too few values.
        """
        if (start, stop) not in self._trends:
            self._trends[start, stop] = _best_trend(self._values, start, stop)
        return self._trends[start, stop]

    def _clip_limit(self, gap: float) -> float:
        """Limit to which larger deviations are clipped in a test of a change of level by `gap`.

        The limit is the size of the change, rounded up to a power of 2 ** (1/4), so that cached
        sums can be used again.
        """
        quarters = 4 * math.log2(max(abs(gap) / self._least_reach, 1.0))
        return self._least_reach * math.pow(2.0, math.ceil(quarters) / 4)

    def _losses(
        self, segments: Sequence[Segment], moves: Sequence[_SegmentReplacement]
    ) -> list[float]:
        """Computes by how much each of the replacements `moves` decreases the log-likelihood of the
        time series.
        """
        losses = [0.0] * len(moves)
        for clip_limit in {move.clip_limit for move in moves}:
            chosen = [index for index, move in enumerate(moves) if move.clip_limit == clip_limit]
            costs = self._log_costs(segments, [moves[index] for index in chosen], clip_limit)
            for index, cost in zip(chosen, costs[1:], strict=True):
                losses[index] = cost - costs[0]
        return losses

    def _log_costs(
        self, segments: Sequence[Segment], moves: Sequence[_SegmentReplacement], clip_limit: float
    ) -> list[float]:
        """Computes the negative log-likelihood of the time series, first with the given segments,
        and then with each of the replacements `moves`.

        A constant term is left out.

        With correlation r, the residual sum of squares is S - 2 r P + r^2 (S - a^2 - b^2). S is the
        sum of the squared deviations, P is the sum of the products of neighbours, and a and b are
        the first and the last deviation.
        """
        sums = [self._deviation_sums(segment, (segment,), clip_limit) for segment in segments]
        # A segment boundary also counts: the product of the last deviation before it and the first
        # deviation after it.
        crossing = [0.0, *(a.last * b.first for a, b in pairwise(sums)), 0.0]
        squares = list(accumulate((segment_sums.squares for segment_sums in sums), initial=0.0))
        inside = list(accumulate((segment_sums.products for segment_sums in sums), initial=0.0))
        between = list(accumulate(crossing, initial=0.0))
        rows = [(squares[-1], inside[-1] + between[-1], sums[0].first, sums[-1].last)]
        for start, stop, segment, *_ in moves:
            new = self._deviation_sums(segment, segments[start:stop], clip_limit)
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
        least = max(count * self._min_spread(clip_limit) ** 2, sys.float_info.min)
        degrees = max(count - len(segments) - 1, 0)
        costs = degrees * np.log(np.maximum(left, least)) - np.log(1 - r**2)
        best: list[float] = (costs.min(axis=1) / 2).tolist()
        return best

    def _deviation_sums(
        self, segment: Segment, parts: Sequence[Segment], clip_limit: float
    ) -> _DeviationSums:
        """Sums over the deviations from a segment that replaces the segments `parts`.

        Values far from the replaced segments are clipped first.
        """
        key = segment, *parts, clip_limit
        if key not in self._sums:
            values = np.concatenate([self._clipped_values(part, clip_limit) for part in parts])
            off = values - _fit_values(values, segment)
            products = float(off[1:] @ off[:-1])
            self._sums[key] = _DeviationSums(
                float(off @ off), products, float(off[0]), float(off[-1])
            )
        return self._sums[key]

    def _clipped_values(self, segment: Segment, clip_limit: float) -> NDArray[np.float64]:
        """The values of a segment. Deviations from the fitted level or trend are clipped to
        `clip_limit`.
        """
        key = segment, clip_limit
        if key not in self._limited:
            fit = segment.fit(self._values, clip_limit)
            off = self._values[segment.start : segment.stop] - fit
            self._limited[key] = fit + off.clip(-clip_limit, clip_limit)
        return self._limited[key]


def _apply_moves(
    segments: Sequence[Segment], moves: Sequence[_SegmentReplacement]
) -> list[Segment]:
    """Applies replacements to segments. If two replacements overlap, only the first of them is
    applied.
    """
    taken: list[_SegmentReplacement] = []
    for move in moves:
        if not any(move.overlaps(other) for other in taken):
            taken.append(move)
    new = list(segments)
    for move in sorted(taken, reverse=True, key=lambda move: move.start):
        new[move.start : move.stop] = [move.segment]
    return new


def _best_trend(values: NDArray[np.float64], start: int, stop: int) -> Segment | None:
    """Finds the trend with the smallest sum of squared deviations, among all trends of at least
    `MIN_TREND` values.
    """
    size = stop - start
    if size <= MIN_TREND:
        return None
    own = values[start:stop] - values[start:stop].mean()
    places = np.unique(np.rint(np.linspace(0, size - 1, min(size, _MOST_KNOTS))).astype(int))
    pairs = np.nonzero(places[None, :] - places[:, None] >= MIN_TREND)
    first, last = places[pairs[0]], places[pairs[1]]
    # The regressor, the shape of a trend: 0 up to the index `first`, then rising linearly, 1 from
    # the index `last`.
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


def _fit_values(values: NDArray[np.float64], segment: Segment) -> NDArray[np.float64]:
    """Fits a level or trend to the values of a segment by least squares, and returns the fitted
    value at each index.
    """
    mean = float(values.mean())
    if segment.trend is None:
        return np.full(len(values), mean)
    share = np.interp(np.arange(segment.start, segment.stop), segment.trend, (0.0, 1.0))
    share -= share.mean()
    fitted: NDArray[np.float64] = mean + float(share @ values) / float(share @ share) * share
    return fitted


def prefix_deviation_sums(values: Iterable[float]) -> Iterator[float]:
    """Yields for the first value, the first two values, and so on: the sum of their absolute
    deviations from their median.
    """
    cost = 0.0
    ordered: list[float] = []
    for size, value in enumerate(values):
        if size:
            # A new value adds its distance to the median of the earlier values. If their number is
            # even, any value between the middle two is a median, so the distance to the nearer of
            # them counts.
            low, high = ordered[(size - 1) // 2], ordered[size // 2]
            if value < low:
                cost += low - value
            elif value > high:
                cost += value - high
        insort(ordered, value)
        yield cost


def optimal_segmentation(
    values: Sequence[float], penalty: float, min_segment: int
) -> tuple[int, ...]:
    """Cuts a time series so that the sum of the absolute deviations from the segments' medians,
    plus a penalty for each segment, is the smallest.

    Returns the index at which each segment begins, except the first segment.

    The result minimises the sum, over all segments, of the absolute deviations from the segment's
    median plus the penalty. With ties, the last segments are as long as possible.

    For each value of the series as the level of the last segment, the best segmentation up to the
    current position is stored. Other levels are not needed: a median is a value, or lies between
    two values with equal cost. Deviations are integers, so their sums are exact in any order.

    Args:
      values: finite.
      penalty: penalty for each segment, in the unit of the values.
      min_segment: minimum number of values in a segment.
    """
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers - median(values)
    exponent = int(np.frexp(np.abs(numbers).max())[1])
    unit = math.ldexp(1.0, max(exponent - _DIGITS, -1022))
    whole = np.rint(numbers / unit).astype(np.int64)
    price = round(min(penalty / unit, float(np.abs(whole).sum()) + 1))
    levels = np.unique(whole)
    # costs[i]: the lowest cost of all segments so far if the level of the last one is levels[i].
    costs = np.full(len(levels), _NEVER)
    starts = np.zeros(len(levels), dtype=np.int64)
    # recent[i]: the sum of deviations from levels[i] in the last segment if it is as short as
    # allowed.
    recent = np.zeros(len(levels), dtype=np.int64)
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
    stops = []
    stop = origin[-1]
    while stop:
        stops.append(stop)
        stop = origin[stop]
    return tuple(reversed(stops))
