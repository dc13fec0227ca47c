"""Simulates how often a second experiment (``--confirm``) confirms the verdict slower.

Both experiments use consecutive processes of one series, so that correlated noise disturbs both.
Verdicts depend only on estimates and confidence intervals, which are computed for many experiments
at once. Their levels are those of the boundaries for differences in random order. Stopping early
for futility only omits verdicts, so `cnnbench ab` has at most as many false positives as this
simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnnbench.base.inference import (
    InterimAnalysis,
    interim_analyses,
    nominal_levels,
    paired_shift_intervals,
)
from validation.studies import (
    POLICY,
    Case,
    Generator,
    Requirement,
    Series,
    Study,
    Sums,
    percent_of,
    surely_above,
    surely_below,
)
from validation.verdicts import NOISES

PAIRS = 16
"""Maximum number of pairs of the first experiment, the default of --pairs."""

TWICE = 2 * POLICY.threshold
TRUTHS = (0.0, TWICE, 0.10)
"""True slowdowns of B, as shares of the speed."""

LIMIT, POWER = 0.002, 0.9
"""Largest rate of false positives; smallest power on a quiet machine at twice the threshold."""

QUIET, BUSY = "normal, 1.3 %", "normal, 3 %"
_POWERS = {QUIET: POWER, BUSY: 0.85}
TOGETHER = 100
"""Number of experiments that are drawn together."""

_FLOOR = math.log1p(POLICY.threshold)


def outcomes(
    differences: Series, plan: Sequence[InterimAnalysis]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Returns whether each experiment has the verdict slower, and its number of pairs.

    Args:
      differences: logarithms of B's speed divided by A's speed, [experiments, pairs].
      plan: interim analyses. An experiment ends at the first clear analysis.
    """
    slower = np.zeros(len(differences), bool)
    used = np.full(len(differences), plan[-1].pairs)
    is_open = np.ones(len(differences), bool)
    for analysis, level in zip(plan, nominal_levels(plan, POLICY.alpha), strict=True):
        low, centre, high = paired_shift_intervals(differences[:, : analysis.pairs], 1 - level)
        is_slower = (high < 0) & (centre <= -_FLOOR)
        clear = is_open & (is_slower | (low >= -_FLOOR))
        slower |= clear & is_slower
        used[clear] = analysis.pairs
        is_open &= ~clear
    return slower, used


def simulate_experiments(generator: Generator, noise: str, truth: float) -> dict[Any, float]:
    """Simulates experiments; counts slower verdicts, their confirmations, and pairs."""
    series = np.log([NOISES[noise](generator, 4 * PAIRS) for _ in range(TOGETHER)])
    pairs = _differences(series, math.log1p(-truth), generator)
    slower, used = outcomes(pairs[:, :PAIRS], interim_analyses(PAIRS, POLICY.alpha))
    confirmed, again = 0, 0
    for number in np.unique(used[slower]).tolist():
        later = pairs[slower & (used == number), number : 2 * number]
        found, more = outcomes(later, interim_analyses(number, POLICY.alpha))
        confirmed, again = confirmed + int(found.sum()), again + int(more.sum())
    return {
        "experiments": len(used),
        "slower": int(slower.sum()),
        "confirmed": confirmed,
        "pairs": int(used.sum()),
        "more pairs": again,
    }


def _differences(series: Series, change: float, generator: Generator) -> Series:
    """Returns differences of pairs, [experiments, pairs], with A or B first at random."""
    first, second = series[:, 0::2], series[:, 1::2]
    coins = generator.integers(2, size=first.shape)
    found: Series = np.where(coins == 0, second - first, first - second) + change
    return found


def _share(found: Sums, name: str) -> float:
    return found[name] / found["experiments"]


def _cells(found: Sequence[Sums]) -> list[str]:
    shares = [percent_of(_share(one, name)) for one in found for name in ("slower", "confirmed")]
    _, twice, _ = found
    return [*shares, *(f"{_share(twice, name):.1f}" for name in ("pairs", "more pairs"))]


def judged(found: Mapping[Case, Sums]) -> list[Requirement]:
    """Returns the requirements for false positives (`LIMIT`) and for true regressions (`POWER`)."""
    equal = {noise: sums for (noise, truth), sums in found.items() if not truth}
    bad = "; ".join(
        f"{noise}: {percent_of(_share(sums, 'confirmed'))}"
        for noise, sums in equal.items()
        if surely_above(sums["confirmed"], sums["experiments"], LIMIT)
    )
    largest = percent_of(max(_share(one, "confirmed") for one in equal.values()))
    text = f"confirmed: equal sides fail in at most {percent_of(LIMIT)}"
    requirements = [Requirement(text, bad or f"at most {largest}", not bad)]
    for noise, least in _POWERS.items():
        power = found.get((noise, TWICE))
        if power is not None:
            text = f"confirmed: {percent_of(TWICE)} slower is found in {percent_of(least)}, {noise}"
            missed = surely_below(power["confirmed"], power["experiments"], least)
            share = percent_of(_share(power, "confirmed"))
            requirements.append(Requirement(text, share, not missed))
    return requirements


CONFIRMATIONS = Study(
    header=(
        *("noise", "equal: slower", "confirmed", "6 % slower: slower", "confirmed"),
        *("10 % slower: slower", "confirmed", "pairs at 6 %: first", "second"),
    ),
    tables={"": {(noise,): [(noise, truth) for truth in TRUTHS] for noise in NOISES}},
    draw=simulate_experiments,
    cells=_cells,
    judge=judged,
    part=10,
)
"""First experiments with at most `PAIRS` pairs, and second experiments after the verdict slower."""
