"""Rank tests with confidence intervals, and interim analyses of experiments.

A sample contains one value per process, so it is small, and ties are common (memory, accuracies).
Both tests are therefore permutation tests of midranks. They enumerate all rank sums that are
possible with the observed ties (the shift algorithm of Streitberg and Röhmel, 1986), so they are
exact even with ties, unlike tables and `scipy.stats`. Without ties, they are the Mann-Whitney U
test and the Wilcoxon signed-rank test; the unit tests compare them with SciPy. The estimates are
those of Hodges and Lehmann (1963), with the confidence intervals that invert these tests (Hollander
and Wolfe, Nonparametric Statistical Methods, sections 3.2, 3.3, 4.2 and 4.3). SciPy does not
compute these intervals, and importing it takes longer than a comparison.

For samples of more than `EXACT` values, the normal approximation is used.

An experiment with interim analyses is a group-sequential test. The probability that this or an
earlier analysis rejects a true hypothesis is a function of the number of pairs (Lan and DeMets,
Biometrika 70, 1983). Up to the planned number, it is a power of pairs / planned (Kim and DeMets,
Biometrika 74, 1987). A fifth of alpha is reserved for pairs beyond the planned number. After more
pairs than planned, a share of 1 - planned / pairs of this fifth may have been spent. So an
experiment that is continued repeatedly never spends more than alpha.

Given the absolute values of the differences, all combinations of signs are equally likely under the
null hypothesis, because the order of A and B in each pair is random. These combinations are the
joint distribution of the signed-rank statistics of all analyses. The boundary of an analysis is the
smallest statistic with which the combinations that cross this or an earlier boundary are at most
the share of alpha that may be spent by then. Up to `_ENUMERATED` differences, all combinations are
enumerated. The signs of further differences are drawn with a fixed seed, and each boundary has a
margin for the error of this simulation. The p-value is the smallest alpha at which the last
boundary is crossed. A confidence interval contains the shifts that this test does not reject.
All intervals together cover the true value with probability 1 - alpha (repeated confidence
intervals, Jennison and Turnbull, JRSS B 51, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

from cnnbench.base.lazy_numpy import NDArray, np

# Rank tests. They are exact for small samples, and use the normal approximation for large samples.

Values: TypeAlias = Sequence[float]
_Floats: TypeAlias = "NDArray[np.float64]"
# For a rank sum S: the arrays of P(S <= s) and of P(S >= s), indexed by s.
_Tails: TypeAlias = "tuple[_Floats, _Floats]"

EXACT = 40
"""Size of the largest sample whose null distribution is enumerated.

The enumeration for two samples of this size takes about 50 ms.
"""

# Rounding errors can make probabilities differ by this much although they are mathematically equal.
_SLACK = 1e-12


class ShiftEstimate(NamedTuple):
    """A Hodges-Lehmann estimate with its confidence interval, in the unit of the values.

    The ends are None if the samples are too small for an interval of this confidence.
    """

    estimate: float
    low: float | None
    high: float | None


def mann_whitney_p(first: Values, second: Values) -> float:
    """Two-sided p-value of "both samples have the same distribution"; exact, even with ties."""
    ranks = _doubled_midranks([*first, *second])
    observed = int(ranks[: len(first)].sum())
    if max(len(first), len(second)) <= EXACT:
        key = tuple(sorted(ranks.tolist()))
        return _two_sided_p(_subset_sum_tails(key, len(first)), observed)
    count = len(ranks)
    deviations = float(((ranks - ranks.mean()) ** 2).sum())
    variance = len(first) * len(second) / (count * (count - 1)) * deviations
    return _normal_p(observed - len(first) * float(ranks.mean()), variance)


def signed_rank_p(differences: Values) -> float:
    """Two-sided p-value of "differences are symmetric about 0"; exact, even with ties.

    Differences of 0 are dropped.
    """
    kept = np.asarray([d for d in differences if d != 0.0])
    if not len(kept):
        return 1.0
    ranks = _doubled_midranks(np.abs(kept))
    observed = int(ranks[kept > 0].sum())
    if len(kept) <= EXACT:
        return _two_sided_p(_signed_sum_tails(tuple(sorted(ranks.tolist()))), observed)
    return _normal_p(observed - float(ranks.sum()) / 2, float((ranks**2).sum()) / 4)


def hodges_lehmann_shift(base: Values, new: Values, confidence: float) -> ShiftEstimate:
    """Hodges-Lehmann estimate of the shift from `base` to `new`: the median of all pairwise
    differences.

    Each sample has at least one finite value. The actual confidence is at least `confidence`, such
    as 0.95.
    """
    differences = np.sort(np.subtract.outer(np.asarray(new), np.asarray(base)).ravel())
    return _interval(differences, interval_end_rank((len(base), len(new)), confidence))


def paired_shift(differences: Values, confidence: float) -> ShiftEstimate:
    """Hodges-Lehmann estimate of the centre of paired differences (new - base), with its interval.

    The centre is the median of the means of all pairs of differences.
    """
    means = np.sort(_walsh_averages(np.asarray(differences)))
    return _interval(means, interval_end_rank([len(differences)], confidence))


def paired_shift_intervals(
    differences: _Floats, confidence: float
) -> tuple[_Floats, _Floats, _Floats]:
    """Computes `paired_shift` for many samples at once.

    Returns the lower ends, the estimates and the upper ends, three arrays [samples] for differences
    [samples, pairs].

    The ends are infinite if there are too few pairs.
    """
    means = np.sort(_walsh_averages(differences), axis=1)
    centres = _sorted_median(means)
    left_out = interval_end_rank([differences.shape[1]], confidence)
    if left_out < 1:
        ends = np.full(len(differences), np.inf)
        return -ends, centres, ends
    return means[:, left_out - 1], centres, means[:, -left_out]


def shift_intervals_of_counts(
    values: _Floats, counts: NDArray[np.int64], confidence: float
) -> tuple[_Floats, _Floats, _Floats]:
    """Computes `paired_shift` for many samples that contain the same values with different
    frequencies, such as bootstrap samples.

    Returns the same as `paired_shift_intervals`. The time does not depend on the size of the
    samples.

    Args:
      values: values of paired differences, [values].
      counts: how often each sample contains each value, [samples, values]. All samples have the
        same size.
    """
    rows, columns = np.triu_indices(len(values))
    means = (values[rows] + values[columns]) / 2
    order = np.argsort(means)
    rows, columns, means = rows[order], columns[order], means[order]
    weights = counts.take(rows, axis=1) * counts.take(columns, axis=1)
    # A value that occurs several times forms pairs with its copies, and each copy forms a pair with
    # itself.
    alike = rows == columns
    weights[:, alike] = (weights[:, alike] + counts[:, rows[alike]]) // 2
    size = int(counts[0].sum())
    last = size * (size + 1) // 2
    # The weights of each sample add up to `last`. So one array of cumulative sums, which is sorted,
    # serves all samples.
    ranks = np.cumsum(weights.ravel())
    before = last * np.arange(len(counts))

    def of_rank(rank: int) -> _Floats:
        found: _Floats = means[ranks.searchsorted(before + rank) % len(means)]
        return found

    centres = (of_rank((last + 1) // 2) + of_rank(last // 2 + 1)) / 2
    left_out = interval_end_rank([size], confidence)
    if left_out < 1:
        ends = np.full(len(counts), np.inf)
        return -ends, centres, ends
    return of_rank(left_out), centres, of_rank(last + 1 - left_out)


def interval_end_rank(sizes: Sequence[int], confidence: float) -> int:
    """Rank of the value that is the lower end of a confidence interval, among the sorted values.
    The upper end has the same rank from above.

    The result is 0 if the samples are too small for an interval of this confidence.

    With one size (number of paired differences), the ordered values are the means of all pairs of
    differences. With two sizes, they are the differences between all values of two samples.
    """
    paired, base, new = len(sizes) == 1, sizes[0], sizes[-1]
    if max(sizes) <= EXACT:
        if paired:
            lower, _ = _signed_sum_tails(tuple(range(1, base + 1)))
        else:
            lower, _ = _subset_sum_tails(tuple(range(1, base + new + 1)), base)
            lower = lower[base * (base + 1) // 2 :]  # The sum of `base` ranks cannot be smaller.
        return int(np.searchsorted(lower, (1 - confidence) / 2 * (1 + _SLACK), side="right"))
    if paired:
        values, variance = base * (base + 1) // 2, base * (base + 1) * (2 * base + 1) / 24
    else:
        values, variance = base * new, base * new * (base + new + 1) / 12
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return max(0, math.floor(values / 2 - z * math.sqrt(variance)))


def smallest_p(base: int, new: int, paired: bool = False) -> float:
    """The smallest p-value that samples of the given sizes can reach.

    The p-value of samples that do not overlap is 2 / binomial(base + new, base), or 2 / 2 ** pairs
    for the signed-rank test (`paired`).
    """
    if paired:
        return min(1.0, 2.0 ** (1 - min(base, new)))
    return min(1.0, 2 / math.comb(base + new, base))


def adjusted_p_values(p_values: Values, shares: Values) -> list[float]:
    """Adjusts p-values by the weighted method of Benjamini and Hochberg (Genovese, Roeder and
    Wasserman, Biometrika 93, 2006). Reject a hypothesis if its adjusted p-value is below alpha.

    If k hypotheses are rejected, the level of each test is alpha times its share times k, and at
    most alpha.

    Args:
      shares: share of alpha of each test, if only this test rejects. They add up to at most 1.
    """
    values, parts = np.asarray(p_values, float), np.asarray(shares, float)
    adjusted = np.ones(len(values))
    for rejected in range(1, len(values) + 1):
        # For each test, the alpha at which it would reject if exactly this many tests reject.
        alphas = values / np.minimum(1.0, parts * rejected)
        least = np.partition(alphas, rejected - 1)[rejected - 1]
        np.minimum(adjusted, np.maximum(alphas, least), out=adjusted)
    found: list[float] = adjusted.tolist()
    return found


def standard_deviation(values: Values) -> float:
    """Sample standard deviation (n - 1) of at least two finite values."""
    return float(np.std(np.asarray(values), ddof=1))


def _doubled_midranks(values: Values | _Floats) -> NDArray[np.int64]:
    """Returns the ranks of the values times 2, so that the midranks of ties are integers.

    Equal values all get the sum of their first and their last rank.
    """
    array = np.asarray(values)
    ordered = np.sort(array)
    before, last = (ordered.searchsorted(array, side) for side in ("left", "right"))
    shared: NDArray[np.int64] = before + last + 1
    return shared


@lru_cache(maxsize=256)
def _subset_sum_tails(ranks: tuple[int, ...], size: int) -> _Tails:
    """Both tails of the null distribution of the sum of `size` ranks that are drawn at random."""
    top = sum(sorted(ranks)[len(ranks) - size :])
    counts = np.zeros((size + 1, top + 1))
    counts[0, 0] = 1.0
    for rank in ranks:
        counts[1:, rank:] += counts[:-1, : top + 1 - rank].copy()
    return _tails(counts[size])


@lru_cache(maxsize=256)
def _signed_sum_tails(ranks: tuple[int, ...]) -> _Tails:
    """Both tails of the null distribution of the Wilcoxon signed-rank statistic, in which all signs
    are equally likely.
    """
    top = sum(ranks)
    counts = np.zeros(top + 1)
    counts[0] = 1.0
    for rank in ranks:
        counts[rank:] += counts[: top + 1 - rank].copy()
    return _tails(counts)


def _tails(counts: _Floats) -> _Tails:
    chances = counts / counts.sum()
    return np.cumsum(chances), np.cumsum(chances[::-1])[::-1]


def _two_sided_p(tails: _Tails, observed: int) -> float:
    return float(min(1.0, 2 * min(tail[observed] for tail in tails)))


def _walsh_averages(differences: _Floats) -> _Floats:
    """Means of all pairs of values along the last axis (Walsh averages). Each value also forms a
    pair with itself.
    """
    rows, columns = np.triu_indices(differences.shape[-1])
    means: _Floats = (differences[..., rows] + differences[..., columns]) / 2
    return means


def _sorted_median(ordered: _Floats) -> _Floats:
    """The median along the last axis, along which the values are sorted."""
    size = ordered.shape[-1]
    median: _Floats = (ordered[..., (size - 1) // 2] + ordered[..., size // 2]) / 2
    return median


def _interval(ordered: _Floats, left_out: int) -> ShiftEstimate:
    estimate = float(_sorted_median(ordered))
    if left_out < 1:
        return ShiftEstimate(estimate, None, None)
    return ShiftEstimate(estimate, float(ordered[left_out - 1]), float(ordered[-left_out]))


def _normal_p(deviation: float, variance: float) -> float:
    if variance == 0:
        return 1.0
    # Ranks are doubled, so they change in steps of 2, and the continuity correction is 1 instead of
    # 1/2.
    z = max(0.0, abs(deviation) - 1.0) / math.sqrt(variance)
    return min(1.0, 2 * NormalDist().cdf(-z))


# Schedules the interim analyses of an experiment: after how many pairs, and at which levels.

FIRST_ANALYSIS = 8
"""Pairs before the first interim analysis; eight pairs can reach the level 0.01 (p = 0.0078)."""

ANALYSIS_STEP = 4
"""Pairs between the first interim analyses. The distance later grows to a quarter of all pairs."""

MOST_PROCESSES, MOST_PAIRS = 100, 200
"""Largest numbers that advice suggests: of processes of each of A and B, and of pairs."""

_GROWTH = 1.25
_EXPONENT = 2
_PLANNED = 0.8


class InterimAnalysis(NamedTuple):
    """An interim analysis of an experiment: the number of pairs that it uses, and how much of alpha
    this and all earlier analyses may spend together.
    """

    pairs: int
    spent: float


def alpha_spent_by(pairs: int, planned: int) -> float:
    """Share of alpha that all interim analyses up to a number of pairs may spend together (the
    alpha spending function).

    `planned` is the number of pairs planned at the start of the experiment, even if it was
    continued later.
    """
    if pairs <= planned:
        return float(_PLANNED * (pairs / planned) ** _EXPONENT)
    return 1 - (1 - _PLANNED) * planned / pairs


def interim_analyses(
    pairs: int,
    alpha: float,
    sequential: bool = True,
    *,
    planned: int | None = None,
    made: Sequence[InterimAnalysis] = (),
) -> tuple[InterimAnalysis, ...]:
    """The interim analyses of an experiment that are still to be made; the last one uses all pairs.

    An analysis is omitted if even unanimous pairs could not be significant. If the last analysis in
    `made` already includes all pairs, it is returned.

    Args:
      alpha: significance level of the test with the smallest share, over all analyses.
      sequential: False for one analysis, which spends all of alpha.
      planned: number of pairs planned at the start of the experiment; None if it starts now.
      made: analyses that have already been made, in order.
    """
    if not sequential:
        return (InterimAnalysis(pairs, 1.0),)
    if made and made[-1].pairs >= pairs:
        return (made[-1],)
    planned = planned or pairs
    analyses: list[InterimAnalysis] = []
    measured = made[-1].pairs if made else 0
    number = FIRST_ANALYSIS
    while number < pairs:
        step = ANALYSIS_STEP * math.ceil(number / (4 * ANALYSIS_STEP))
        if number > planned and number + step > pairs:
            # An analysis so close to the end would save few pairs, but lower the level of the final
            # analysis.
            break
        spent = alpha_spent_by(number, planned)
        if number > measured and alpha * spent >= smallest_p(number, number, paired=True):
            analyses.append(InterimAnalysis(number, spent))
        number += step
    return (*analyses, InterimAnalysis(pairs, alpha_spent_by(pairs, planned)))


def analyses_until(analyses: Sequence[InterimAnalysis], pairs: int) -> tuple[InterimAnalysis, ...]:
    """Returns the interim analyses up to one that uses exactly `pairs` pairs. If this number
    differs from the number at the last analysis, all analyses together spend what the last one may
    spend.
    """
    if not analyses or not pairs:
        return ()
    before = (analysis for analysis in analyses if analysis.pairs < pairs)
    return (*before, InterimAnalysis(pairs, analyses[-1].spent))


class AnalysisSchedule(NamedTuple):
    """Describes when additional pairs will be analysed, in a continued experiment or in a new
    experiment.

    Attributes:
      alpha: significance level of the test with the smallest share, over all analyses.
      planned: number of pairs planned at the start of the experiment; None for a new experiment,
        which does not include existing pairs.
      made: analyses that have already been made.
    """

    alpha: float
    planned: int | None = None
    made: tuple[InterimAnalysis, ...] = ()

    @property
    def is_new_experiment(self) -> bool:
        """Whether the additional pairs form a new experiment, rather than continue an
        existing one.
        """
        return self.planned is None

    def analyses(self, pairs: int) -> tuple[InterimAnalysis, ...]:
        """The interim analyses that remain in the experiment if it ends after `pairs` pairs."""
        return interim_analyses(pairs, self.alpha, planned=self.planned, made=self.made)

    def significant_pair_counts(self, measured: int, alpha: float) -> Iterator[int]:
        """Yields, in ascending order, the total numbers of pairs at which the final analysis can be
        significant.

        `alpha` is the significance level of the test. In a continued experiment, all numbers are
        above `measured`.
        """
        first = FIRST_ANALYSIS if self.is_new_experiment else max(FIRST_ANALYSIS, measured + 1)
        for pairs in pair_counts_to_try(first, ANALYSIS_STEP, MOST_PAIRS):
            *before, last = (*self.made, *self.analyses(pairs))
            # An analysis that could not become significant has not spent any of alpha.
            spent = [
                alpha * analysis.spent
                for analysis in before
                if smallest_p(analysis.pairs, analysis.pairs, paired=True) <= alpha * analysis.spent
            ]
            left = alpha * last.spent - max(spent, default=0.0)
            if smallest_p(pairs, pairs, paired=True) <= left:
                yield pairs


def pair_counts_to_try(first: int, step: int, linear_span: int) -> Iterator[int]:
    """Yields numbers of pairs to consider: multiples of `step` from `first` to `first` +
    `linear_span`, and then multiples that grow by a quarter each.

    Only the last number exceeds `first` by `MOST_PAIRS` or more: advice does not suggest it.
    """
    number = step * math.ceil(first / step)
    yield number
    while number < first + MOST_PAIRS:
        many = number > first + linear_span
        number = step * math.ceil(number * _GROWTH / step) if many else number + step
        yield number


# Tests paired differences at several interim analyses.

_ENUMERATED = 16
"""Number of differences up to which all combinations of signs are enumerated."""

_COPIES = 2
"""Number of random combinations of the signs of further differences, for each enumerated one."""

_SEED, _FEWEST_DRAWN = 1, 64
_SURE = 3.0
"""Margin for the error of simulated numbers of combinations, in standard errors."""

_PRECISION = 1.002
"""Largest quotient of a p-value and an alpha at which the test does not reject."""

_Sums: TypeAlias = "NDArray[np.float32]"
# Signed-rank sums of doubled ranks, one for each combination of signs. They are whole numbers,
# which float32 represents exactly for up to 4,000 differences, and products of float32 matrices are
# fast.


def sequential_p(differences: Values, analyses: Sequence[InterimAnalysis]) -> float:
    """Two-sided p-value of "differences are symmetric about 0" at the last of several interim
    analyses: the smallest alpha at which this analysis rejects.

    The analyses are in order, and the last one uses all differences.
    """
    # This p-value belongs to the last analysis alone; together with earlier ones, the test cannot
    # reject at a smaller alpha.
    low = signed_rank_p(differences) / analyses[-1].spent
    if len(analyses) == 1:
        return min(1.0, low)
    sums, observed = _signed_rank_sums(np.asarray(differences, float), analyses)

    def rejects(alpha: float) -> bool:
        return observed >= _critical_sums(sums, analyses, alpha)[-1]

    high = low
    while high < 1 and not rejects(high):
        low, high = high, 2 * high
    if high >= 1:
        if low >= 1 or not rejects(1.0):
            return 1.0
        high = 1.0
    while high > low * _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if rejects(middle) else (middle, high)
    return high


def sequential_shift(
    differences: Values, analyses: Sequence[InterimAnalysis], alpha: float
) -> ShiftEstimate:
    """Hodges-Lehmann estimate of the centre of paired differences at the last of several interim
    analyses, with the interval of all centres that the test of `sequential_p` does not reject.

    To test a centre, the function subtracts it from the differences, and uses the absolute values
    of the results. The analyses are in order, and the last analysis uses all differences.
    """
    if len(analyses) == 1:
        return paired_shift(differences, 1 - alpha * analyses[0].spent)
    values = np.asarray(differences, float)
    averages = np.sort(_walsh_averages(values))
    ends = np.unique(averages)
    # The test's decision changes only at Walsh averages, so it is enough to test one centre between
    # any two neighbouring averages.
    centres = np.concatenate(([ends[0] - 1], (ends[:-1] + ends[1:]) / 2, [ends[-1] + 1]))

    def is_kept(centre: float) -> bool:
        sums, observed = _signed_rank_sums(values - centre, analyses)
        return observed < _critical_sums(sums, analyses, alpha)[-1]

    sums, _ = _signed_rank_sums(values, analyses)
    out = _ranks_left_out(len(values), _critical_sums(sums, analyses, alpha)[-1])
    estimate = float(_sorted_median(averages))
    # The test never rejects the estimate itself, so each search for an end can stop there.
    below, up_to = (int(np.searchsorted(ends, estimate, side)) for side in ("left", "right"))
    low = _first_true(lambda place: is_kept(centres[place]), out, up_to)
    high = _first_true(lambda place: is_kept(centres[-1 - place]), out, len(ends) - below)
    return ShiftEstimate(
        estimate,
        float(ends[low - 1]) if low else None,
        float(ends[-high]) if high else None,
    )


def nominal_levels(analyses: Sequence[InterimAnalysis], alpha: float) -> tuple[float, ...]:
    """Significance level that each of several interim analyses would have as the only analysis. The
    absolute values of the differences are in random order.
    """
    return _levels(tuple(analyses), alpha)


@lru_cache(maxsize=1024)
def _levels(analyses: tuple[InterimAnalysis, ...], alpha: float) -> tuple[float, ...]:
    order = np.random.default_rng(_SEED).permutation(analyses[-1].pairs)
    sizes = np.asarray(order + 1, np.float64)
    sums, _ = _signed_rank_sums(sizes, analyses)
    found = []
    for analysis, boundary in zip(analyses, _critical_sums(sums, analyses, alpha), strict=True):
        out, number = _ranks_left_out(analysis.pairs, boundary), analysis.pairs
        if number <= EXACT:
            lower, _ = _signed_sum_tails(tuple(range(1, number + 1)))
            found.append(2 * float(lower[out - 1]) if out else 0.0)
        else:
            variance = number * (number + 1) * (2 * number + 1) / 6
            found.append(2 * NormalDist().cdf(-(boundary / 2 - 1) / math.sqrt(variance)))
    return tuple(found)


def _ranks_left_out(pairs: int, boundary: int) -> int:
    """Returns how many Walsh averages are outside of each end of the interval without ties."""
    return max(0, (pairs * (pairs + 1) - boundary) // 4 + 1)


def _first_true(is_true: Callable[[int], bool], guess: int, most: int) -> int:
    """The first place from 0 to `most` at which a condition holds, which then holds at all further
    places. The search begins at `guess`; without any place, the result is `most`.
    """
    low, high, step = 0, most, 1
    place = min(guess, most - 1)
    while low < high:
        if is_true(place):
            high = place
            place = max(low, place - step) if low < place - step else (low + high) // 2
        else:
            low = place + 1
            place = place + step if place + step < high else (low + high) // 2
        step *= 2
    return low


def _signed_rank_sums(
    differences: _Floats, analyses: Sequence[InterimAnalysis]
) -> tuple[list[_Sums], int]:
    """Returns the absolute values of the signed-rank sums of all combinations of signs at each
    analysis, and that of the observed sum at the last analysis. Differences of 0 have the rank 0.

    Each combination of fewer signs has the same place in all copies of the shorter array.
    """
    pairs = analyses[-1].pairs
    ranks = np.zeros((len(analyses), pairs), np.float32)
    sums = []
    for row, analysis in zip(ranks, analyses, strict=True):
        row[: analysis.pairs] = _doubled_abs_ranks(differences[: analysis.pairs])
        sums.append(_sums_of_signs(row[: min(analysis.pairs, _ENUMERATED)]))
    later = [at for at, analysis in enumerate(analyses) if analysis.pairs > _ENUMERATED]
    if later:
        further = ranks[later, _ENUMERATED:] @ _random_signs(pairs - _ENUMERATED)
        for at, added in zip(later, further, strict=True):
            sums[at] = np.tile(sums[at], _COPIES) + added
    observed = abs(int(ranks[-1] @ np.sign(differences[:pairs])))
    return [np.abs(values, out=values) for values in sums], observed


def _doubled_abs_ranks(differences: _Floats) -> NDArray[np.int64]:
    """Returns the midranks, times 2, of the absolute values of all differences other than 0.
    Differences of 0 have the rank 0.
    """
    sizes = np.abs(differences)
    zeros = int(np.count_nonzero(sizes == 0))
    return np.where(sizes == 0, 0, _doubled_midranks(sizes) - 2 * zeros)


def _sums_of_signs(ranks: _Sums) -> _Sums:
    """Returns the sums of at most `_ENUMERATED` ranks for all combinations of signs. The first sign
    is always positive, because only absolute values of sums are used.
    """
    half = _ENUMERATED // 2
    first, second = (
        some @ _all_signs(half)[: len(some), : 1 << len(some)]
        for some in (ranks[1:half], ranks[half:])
    )
    sums: _Sums = np.add.outer(second, ranks[0] + first).ravel()
    return sums


@cache
def _all_signs(number: int) -> _Sums:
    """All combinations of the signs of `number` differences, [differences, combinations]. The first
    rows and columns contain the combinations of fewer differences.
    """
    is_negative = np.arange(1 << number) >> np.arange(number)[:, None] & 1
    return (1 - 2 * is_negative).astype(np.float32)


def _random_signs(number: int) -> _Sums:
    """Random signs [number, combinations] of differences after the enumerated ones. Arrays of
    different numbers begin with the same rows.
    """
    # The analyses of an experiment need many different numbers of rows. Drawing is slow, so more
    # rows are drawn and reused.
    return _draw_signs(max(_FEWEST_DRAWN, 1 << (number - 1).bit_length()))[:number]


@lru_cache(maxsize=2)
def _draw_signs(number: int) -> _Sums:
    size = (number, _COPIES << (_ENUMERATED - 1))
    drawn = np.random.default_rng(_SEED).integers(2, size=size, dtype=np.int8)
    return (1 - 2 * drawn).astype(np.float32)


def _critical_sums(
    sums: Sequence[_Sums], analyses: Sequence[InterimAnalysis], alpha: float
) -> list[int]:
    """Returns the smallest sum that each analysis rejects, if all analyses together spend alpha."""
    found: list[int] = []
    spent, before = 0.0, 1
    crossed: NDArray[np.intp] = np.empty(0, np.intp)  # Places of combinations that are rejected.
    for values, analysis in zip(sums, analyses, strict=True):
        combinations = len(values)
        copies = np.arange(0, combinations, before)
        crossed, before = np.add.outer(copies, crossed).ravel(), combinations
        open_values = values.copy()
        open_values[crossed] = -1.0
        is_simulated = analysis.pairs > _ENUMERATED
        most = max(0.0, alpha * analysis.spent - spent) * combinations * (1 + _SLACK)
        if is_simulated:  # Subtracts a margin for the error of the simulation.
            most = ((math.sqrt(_SURE**2 + 4 * most) - _SURE) / 2) ** 2
        boundary = _next_largest(open_values, int(most)) + 1
        crossing = np.flatnonzero(open_values >= boundary)
        number = len(crossing)
        spent += (number + _SURE * math.sqrt(number) * is_simulated) / combinations
        crossed = np.concatenate((crossed, crossing))
        found.append(boundary)
    return found


def _next_largest(sums: _Sums, number: int) -> int:
    """The largest sum after the `number` largest sums; -1 if there is none."""
    if number >= len(sums):
        return -1
    share = 2 * (number + 1) / len(sums)
    if share < 1:  # Saves time: only the largest sums, by the normal approximation, are searched.
        deviation = math.sqrt(float(sums @ sums) / len(sums))
        large = sums[sums >= deviation * NormalDist().inv_cdf(1 - share / 2)]
        sums = large if len(large) > number else sums
    place = len(sums) - 1 - number
    return int(np.partition(sums, place)[place])
