"""How many pairs or processes a verdict needs, and which change they detect.

`runs_for_verdict` simulates future runs for increasing numbers of runs. Every interim analysis
is simulated, at the significance level of that analysis. Measured runs are included unchanged,
unless a new experiment begins. Few runs were measured, so the variance is drawn from its posterior
distribution.

Sums of values are simulated instead of single values: if values are normally distributed, sums
determine the Hodges-Lehmann estimate and its interval. The k-th smallest of n normal values is
about the normal quantile of (k - 0.375) / (n + 0.25) (Blom, Statistical Estimates and Transformed
Beta-Variables, 1958).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import NormalDist
from typing import TypeAlias

from cnnbench.base import inference
from cnnbench.base.inference import (
    MOST_PAIRS,
    MOST_PROCESSES,
    AnalysisSchedule,
    InterimAnalysis,
    interval_end_rank,
    nominal_levels,
    pair_counts_to_try,
)
from cnnbench.base.lazy_numpy import NDArray, np
from cnnbench.judge.compare.estimate import (
    Samples,
    SampleStatistics,
    from_test_scale,
    to_test_scale,
)
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.judge.metrics.policy import Policy
from cnnbench.records.metric import Metric

_DEFAULT = Policy()

# Probability (power) with which a test finds the change that `detectable_change` returns.
_POWER = 0.8

_FOUND_CHANCE = 0.9
"""The probability with which a test finds a change in every configuration of a suite."""

_CHANCE = 0.82
"""Minimum probability of a verdict with the recommended number of runs. Because the number is
rounded up to the next interim analysis, the probability becomes 0.8 to 0.87.
"""

_DRAWS = 1000
_VALUES = 101  # One number for the variance, and two for each of up to fifty interim analyses.
_SEED = 1
_PLAUSIBLE = 2.0  # The unit is standard errors.
_KNOWN = 2
"""Factor for the degrees of freedom in the posterior distribution of the variance. With a factor of
1, the recommended number of pairs would be twice as high as most experiments need, if few pairs
with little variation have been measured.
"""
# The Hodges-Lehmann estimate varies more than the mean; this is the ratio of the two variances.
_EFFICIENCY = math.pi / 3

_Floats: TypeAlias = "NDArray[np.float64]"
_Widths: TypeAlias = list[float]
"""Half of an interval's width, and the size of a significant change, in standard deviations."""


def processes_needed(
    policy: Policy,
    configurations: int = 1,
    paired: bool = False,
    metric: Metric = THROUGHPUT,
    share: float = 1.0,
) -> int:
    """Returns the minimum number of pairs (or processes in each of BASE and NEW) that can prove a
    change if `configurations` tests are made together.
    """
    needed = policy.min_processes
    alpha = share * policy.alpha_of(metric)
    while configurations * inference.smallest_p(needed, needed, paired) > alpha:
        needed += 1
    return needed


def processes_to_decide(configurations: int) -> int:
    """Returns how many processes each of BASE and NEW needs for a verdict on every configuration.

    With this number, a change in one configuration alone can be significant. A change in the only
    configuration can be significant even if one process contradicts it.
    """
    n = processes_needed(_DEFAULT, configurations)
    # Samples that do not overlap, except for one process: one value of the first sample is below
    # the second sample, and all other values of the first sample are above it.
    while inference.mann_whitney_p([-1.0, *range(n, 2 * n - 1)], range(n)) > _DEFAULT.alpha:
        n += 1
    return n


def processes_to_detect(change: float, scatter: float, configurations: int) -> int:
    """Estimates how many processes BASE and NEW need each to find a change in all of several
    configurations with 90 % power.

    Uses the normal approximation. The change must be significant even if no other configuration
    changed, and its whole interval must exceed the threshold.

    Args:
      change: relative change: -0.2 is 20 % slower. Raises ValueError if it is within the threshold.
      scatter: standard deviation of the logarithms of equal processes' speeds.
    """
    size, floor = abs(math.log1p(change)), math.log1p(_DEFAULT.threshold)
    if size <= floor:
        raise ValueError(f"change={change}: must exceed the threshold {_DEFAULT.threshold}")
    normal = NormalDist()
    chance = normal.inv_cdf(_FOUND_CHANCE ** (1 / configurations))
    certain = (normal.inv_cdf(1 - _DEFAULT.alpha / 2 / configurations) + chance) / size
    beyond = (normal.inv_cdf(1 - _DEFAULT.alpha / 2) + chance) / (size - floor)
    number = 2 * math.pi / 3 * (scatter * max(certain, beyond)) ** 2
    # The exact interval of few values is wider than estimated, so one process is added.
    return max(math.ceil(number) + 1, processes_needed(_DEFAULT, configurations))


def least_runs(samples: Samples, policy: Policy, share: float) -> int:
    """Returns the minimum number of pairs (or processes in each of BASE and NEW) that can prove a
    change at the significance level `share` times alpha.
    """
    if samples.plan is None:
        return processes_needed(policy, 1, samples.paired, samples.metric, share)
    alpha = share * policy.alpha_of(samples.metric)
    return next(samples.plan.significant_pair_counts(samples.smaller_sample_size, alpha))


def detectable_change(statistics: SampleStatistics, number: int, alpha: float) -> float | None:
    """Returns the change that a test with `number` pairs (or processes in each of BASE and NEW)
    finds with 80 % power.

    Uses the normal approximation with the measured standard deviation. Rank tests need pi/3 times
    as many values as a t-test (Hodges and Lehmann, 1956). Returns None if the standard deviation
    is 0 or unknown.
    """
    if not statistics.scatter:
        return None
    normal = NormalDist()
    quantiles = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(_POWER)
    error = statistics.scatter * math.sqrt((1 if statistics.paired else 2) * math.pi / 3 / number)
    return from_test_scale(
        to_test_scale(statistics.floor, statistics.metric) + quantiles * error, statistics.metric
    )


def too_many_further(more: int, paired: bool) -> bool:
    """Whether `more` further pairs (or processes in each of BASE and NEW) are too many to
    recommend.
    """
    return more > (MOST_PAIRS if paired else MOST_PROCESSES)


def runs_for_verdict(statistics: SampleStatistics, alphas: tuple[float, float]) -> int | None:
    """Estimates the total number of pairs that a verdict needs. Without pairs, estimates the number
    of processes that BASE or NEW needs, whichever has fewer.

    With this number, the verdict is correct with 80 % power in two cases: "same" or "not slower" if
    nothing changed; "slower" or "faster" if the change is twice the smallest relevant change or, if
    larger, the estimate less its standard error. A case more than `_PLAUSIBLE` standard errors from
    the estimate is ignored. If this excludes both, the estimate is the only case. Returns None if
    the deviation or the smallest relevant change is 0 or unknown.

    Args:
      statistics: its plan defines how further pairs are judged.
      alphas: levels of the interval and of the test, over all interim analyses.
    """
    floor = to_test_scale(statistics.floor, statistics.metric)
    change = to_test_scale(statistics.change, statistics.metric)
    if not (statistics.scatter and floor and math.isfinite(change)):
        return None
    estimate, scatter = abs(change), statistics.scatter
    is_worse = (change < 0) == statistics.metric.higher_is_better
    smaller = statistics.smaller_sample_size
    sizes = (smaller,) if statistics.paired else (len(statistics.base), len(statistics.new))
    error = scatter * math.sqrt(_EFFICIENCY * sum(1 / size for size in sizes))
    plan, afresh = statistics.plan, statistics.needs_new_experiment
    if afresh and not statistics.paired:
        # The difference within a pair varies sqrt(2) times as much as a single value.
        sizes, scatter = (smaller,), scatter * math.sqrt(2)
    truths = [0.0] if estimate <= _PLAUSIBLE * error else []
    if estimate >= floor or estimate + _PLAUSIBLE * error >= 2 * floor:
        truths.append(max(2 * floor, estimate - error))

    def chance(truth: float, analyses: Sequence[InterimAnalysis], widths: list[_Widths]) -> float:
        simulated = _simulate(sizes, estimate, scatter, truth, afresh, analyses)
        found = np.zeros(_DRAWS, bool)
        for (width, certain), (centre, deviation) in zip(widths, simulated, strict=True):
            if truth >= floor:
                least = centre - width * deviation * (not statistics.paired)
                found |= (least >= floor) & (centre > certain * deviation)
            else:
                worst = (centre if is_worse else -centre) + width * deviation
                found |= worst <= floor
        return float(found.mean())

    def is_enough(number: int) -> bool:
        later = _later_analyses(plan, number, sizes, alphas)
        return all(chance(truth, *later) >= _CHANCE for truth in truths or [estimate])

    if plan is None:
        numbers = pair_counts_to_try(smaller + 1, 1, MOST_PROCESSES)
    else:
        numbers = plan.significant_pair_counts(smaller, alphas[1])
    choices = list(numbers)
    return choices[min(bisect_left(choices, True, key=is_enough), len(choices) - 1)]


def _later_analyses(
    plan: AnalysisSchedule | None, number: int, sizes: Sequence[int], alphas: tuple[float, float]
) -> tuple[Sequence[InterimAnalysis], list[_Widths]]:
    """Returns the interim analyses that follow up to `number` pairs and, for each of them, half of
    the width of the confidence interval at both levels in `alphas`.

    `sizes` contains the number of measured pairs, or of measured values in BASE and in NEW.
    """
    if plan is None:
        analyses: tuple[InterimAnalysis, ...] = (InterimAnalysis(number, 1.0),)
        levels = [alphas]
    else:
        analyses = plan.analyses(number)
        every = (*plan.made, *analyses)
        both = (nominal_levels(every, alpha)[len(plan.made) :] for alpha in alphas)
        levels = list(zip(*both, strict=True))
    widths = []
    for analysis, of_analysis in zip(analyses, levels, strict=True):
        then = [size + analysis.pairs - min(sizes) for size in sizes]
        widths.append([_half_width(then, level) for level in of_analysis])
    return analyses, widths


def _half_width(sizes: Sequence[int], alpha: float) -> float:
    """Returns half of the width of the Hodges-Lehmann confidence interval at level 1 - alpha,
    divided by the standard deviation of a value.

    `sizes` contains the number of pairs, or the numbers of processes in BASE and NEW. The result is
    infinite if there are too few values.
    """
    left_out = interval_end_rank(sizes, 1 - alpha)
    if left_out < 1:
        return math.inf
    pairs = len(sizes) == 1
    count = sizes[0] * (sizes[0] + 1) // 2 if pairs else math.prod(sizes)
    quantile = NormalDist().inv_cdf(1 - (left_out - 0.375) / (count + 0.25))
    return quantile * (math.sqrt(0.5) if pairs else math.sqrt(2.0))


@cache
def _normal_draws() -> _Floats:
    """Returns standard normal random numbers with a fixed seed, shape [_VALUES, _DRAWS]."""
    return np.random.default_rng(_SEED).standard_normal((_VALUES, _DRAWS))


def _chi_square(freedom: int, normal: _Floats) -> _Floats:
    """Converts standard normal numbers to chi-square numbers (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * freedom)
    quantile: _Floats = freedom * np.maximum(1 - part + normal * math.sqrt(part), 0.02) ** 3
    return quantile


def _simulate(
    sizes: Sequence[int],
    centre: float,
    scatter: float,
    truth: float,
    afresh: bool,
    analyses: Sequence[InterimAnalysis],
) -> Iterator[tuple[_Floats, _Floats]]:
    """Simulates later interim analyses for many random draws. Yields the estimated change and its
    standard deviation at each analysis, shape [draws].

    Args:
      sizes: the number of measured pairs, or the numbers of measured values in BASE and NEW.
      centre, scatter: estimates from the measured values.
      truth: centre of all future values.
      afresh: whether later analyses exclude the measured values.
    """
    sides = len(sizes)
    freedom = sum(sizes) - sides
    measured_squares = scatter**2 * freedom
    first, *normals = _normal_draws()
    drawn = np.sqrt(_KNOWN * measured_squares / _chi_square(_KNOWN * freedom, first))
    # Without pairs, two sample sizes count as their harmonic mean.
    count, measured = sides / sum(1 / size for size in sizes), min(sizes)
    if afresh:
        count, centre, measured_squares, freedom, measured = 0.0, 0.0, 0.0, 0, 0
    estimate, squares = np.full(_DRAWS, centre), np.full(_DRAWS, measured_squares)
    for index, analysis in enumerate(analyses):
        more = analysis.pairs - measured
        measured = analysis.pairs
        normal, other = normals[2 * index : 2 * index + 2]
        mean = truth + drawn * math.sqrt(_EFFICIENCY * sides / more) * normal
        within = sides * more - 1
        squares = squares + drawn**2 * (_chi_square(within, other) if within else 0.0)
        squares = squares + count * more / (count + more) * (mean - estimate) ** 2 / sides
        estimate = (count * estimate + more * mean) / (count + more)
        freedom += sides * more - (not count) * sides
        count += more
        yield estimate, np.sqrt(squares / freedom)
