"""The probability that further pairs of an experiment give a clear verdict.

An experiment ends early if this is improbable: it stops for futility.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from cnnbench.base.inference import (
    InterimAnalysis,
    nominal_levels,
    shift_intervals_of_counts,
)
from cnnbench.base.lazy_numpy import NDArray, np
from cnnbench.judge.compare import Comparison, Verdict
from cnnbench.judge.compare.estimate import Samples, log_or_value, smallest_relevant_change
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT
from cnnbench.judge.metrics.policy import Policy

SMALLEST_CHANCE = 0.05
"""An experiment ends at an interim analysis if a clear verdict is less probable than this."""

_POLICY = Policy()
_DRAWS = 400
_SEED = 1


def is_futile(comparison: Comparison, later: Sequence[InterimAnalysis]) -> bool:
    """Whether the analyses in `later` would hardly give a clear verdict on a requested metric."""
    chances = []
    for entry in comparison.entries:
        for result in entry.requested_results:
            # If throughput and CPU time are judged together, either can give the verdict.
            is_joint = result.metric is THROUGHPUT and result.is_joint
            others = [other for other in entry.results if is_joint and other.metric is CPU_TIME]
            tested = [one for one in (result, *others) if one.judgement.p is not None]
            if result.verdict is Verdict.INCONCLUSIVE and tested:
                chances.append(
                    max(clear_verdict_probability(one.samples, later, one.policy) for one in tested)
                )
    return min(chances, default=1.0) < SMALLEST_CHANCE


def clear_verdict_probability(
    samples: Samples, later_analyses: Sequence[InterimAnalysis], policy: Policy = _POLICY
) -> float:
    """The probability that a later interim analysis gives a clear verdict.

    Future pairs are drawn from the measured pairs (a bootstrap), which must all have usable values.
    Each draw is judged at the interim analyses in `later_analyses`. The result is the share of
    draws in which an analysis has a clear verdict. The draws include noise, outliers and the
    apparent change as measured. Stopping for futility cannot turn a verdict into a regression. It
    can only omit a regression, and docs/evidence.md says how rarely that happens.

    `samples` contains the measured pairs and the interim analyses so far.
    """
    metric = samples.metric
    pairs = zip(samples.base, samples.new, strict=True)
    so_far = np.asarray(
        [log_or_value(new, metric) - log_or_value(base, metric) for base, new in pairs]
    )
    floor = smallest_relevant_change(samples, policy)
    floor = log_or_value(1 + floor, metric) if metric.relative else floor
    alpha = policy.alpha_share * policy.alpha
    made = [analysis for analysis in samples.looks if analysis.pairs <= len(so_far)]
    levels = nominal_levels((*made, *later_analyses), alpha)[len(made) :]
    drawn = _bootstrap_counts(len(so_far), tuple(later_analyses))
    clear = np.zeros(_DRAWS, bool)
    for level, counts in zip(levels, drawn, strict=True):
        low, centre, high = shift_intervals_of_counts(so_far, counts, 1 - level)
        clear |= (low * high > 0) & (np.abs(centre) >= floor)
        is_excluded = {"higher": high <= floor, "lower": low >= -floor}
        names = [
            "lower" if (word == "slower") == metric.higher_is_better else "higher"
            for word in policy.questions
        ]
        clear |= np.all([is_excluded[name] for name in names], axis=0)
    return float(clear.mean())


@lru_cache(maxsize=8)
def _bootstrap_counts(
    measured: int, analyses: tuple[InterimAnalysis, ...]
) -> list[NDArray[np.int64]]:
    """Draws further pairs from `measured` pairs. For each analysis, returns how often each draw
    contains each measured pair, [draws, measured]: once as measured, and as often as it was drawn.
    """
    # The seed is fixed, so that the same pairs always give the same probability.
    generator = np.random.default_rng(_SEED)
    populations = generator.choice(measured, (_DRAWS, measured))
    size = (_DRAWS, max(0, analyses[-1].pairs - measured))
    further = np.take_along_axis(populations, generator.integers(measured, size=size), axis=1)
    # All draws are counted together, so the pairs of each draw get numbers of their own.
    further += measured * np.arange(_DRAWS)[:, None]
    drawn = []
    for analysis in analyses:
        number = max(0, analysis.pairs - measured)
        found = np.bincount(further[:, :number].ravel(), minlength=_DRAWS * measured)
        drawn.append(1 + found.reshape(_DRAWS, measured))
    return drawn
