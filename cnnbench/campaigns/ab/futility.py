"""Whether the pairs that are left can still bring a verdict.

The pairs to come are drawn from those that were measured (a bootstrap), each draw is judged at
the interim analyses that are left, and counted is how often one of them is clear. That takes
the noise as it is, outliers included, and the change as it looks. To stop for it turns no
verdict red: it can only leave one out, and docs/methodology.md has how seldom that happens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cnnbench.base.stats.rank_tests import paired_bounds
from cnnbench.campaigns.ab.sequential import InterimAnalysis
from cnnbench.judge.compare.estimate import Case, limits, scaled
from cnnbench.judge.metrics.policy import Policy

SMALLEST_CHANCE = 0.05
"""An experiment whose chance of a verdict is smaller ends at an interim analysis."""

_DRAWS = 400
_SEED = 1


def chance(case: Case, left: Sequence[InterimAnalysis], policy: Policy) -> float:
    """The chance that an interim analysis to come is clear: faster, slower or same.

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
