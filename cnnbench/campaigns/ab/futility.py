"""Chance that the remaining pairs bring a verdict.

Future pairs are drawn from the measured ones (a bootstrap). Each draw is judged at the remaining
interim analyses; the chance is the share of draws in which one of them is clear. The draws include
noise and outliers as measured, and the apparent change. Stopping for futility cannot turn a verdict
into a regression; it can only omit one, and docs/methodology.md has how seldom that happens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cnnbench.base.stats.rank_tests import paired_bounds
from cnnbench.campaigns.ab.sequential import InterimAnalysis
from cnnbench.judge.compare.estimate import TwoSamples, limits, scaled
from cnnbench.judge.metrics.policy import Policy

SMALLEST_CHANCE = 0.05
"""An experiment whose chance of a verdict is smaller ends at an interim analysis."""

_DRAWS = 400
_SEED = 1


def chance(case: TwoSamples, left: Sequence[InterimAnalysis], policy: Policy) -> float:
    """The chance that a later interim analysis is clear: faster, slower or same.

    Args:
      case: the pairs so far, their values usable, as many on each side.
      left: the interim analyses to come, by number of pairs.
      policy: the constants, but for alpha.
    """
    metric = case.metric
    pairs = zip(case.base, case.new, strict=True)
    so_far = np.asarray([scaled(new, metric) - scaled(base, metric) for base, new in pairs])
    floor, margin = (
        scaled(1 + limit, metric) if metric.relative else limit for limit in limits(case, policy)
    )
    # The same pairs give the same answer, also when records are judged again.
    generator = np.random.default_rng(_SEED)
    to_come = generator.choice(so_far, (_DRAWS, max(0, left[-1].pairs - len(so_far))))
    drawn = np.hstack([np.tile(so_far, (_DRAWS, 1)), to_come])
    clear = np.zeros(_DRAWS, bool)
    for analysis in left:
        low, high = paired_bounds(drawn[:, : analysis.pairs], 1 - analysis.alpha)
        clear |= (low > floor) | (high < -floor) | ((-margin <= low) & (high <= margin))
    return float(clear.mean())
