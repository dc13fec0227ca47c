"""Simulates how often the advised number of further runs leads to a verdict.

The advice is given for inconclusive comparisons. Noise is normal. An experiment is continued with
the command in the advice, including all interim analyses. A comparison without pairs gets as many
further processes of each of A and B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from cnnbench.base.inference import AnalysisSchedule, InterimAnalysis, interim_analyses
from cnnbench.campaigns.ab.futility import SMALLEST_CHANCE, clear_verdict_probability
from cnnbench.judge.compare import Judgement, Samples, Verdict, judge
from cnnbench.judge.compare.power import too_many_further
from validation.studies import POLICY, Generator, Study, Sums, all_kept, percent_of
from validation.verdicts import CLEAR, PASSES

SCATTERS = (0.01, 0.02, 0.03, 0.04, 0.05)
"""Standard deviations of the logarithms of pairs' quotients, or of processes' speeds."""

PLANNED = (8, 16)
"""Numbers of planned pairs, or of processes of each of A and B."""

KEPT = (0.75, 0.90)
"""Smallest and largest share of advised comparisons in which the advice leads to the right verdict.
"""

_TWICE = 2 * math.log1p(POLICY.threshold)
TRUTHS: dict[str, tuple[float, Collection[Verdict]]] = {
    "equal": (0.0, PASSES),
    "twice the floor slower": (_TWICE, (Verdict.SLOWER,)),
}
"""True changes of the logarithm of speed, each with the right verdicts."""

_SURE = 3.0  # Tolerance of shares, in standard errors.

Case = Callable[[Generator, float, float, int], tuple[bool, Verdict]]
"""Function that returns whether further runs were advised, and the verdict after these runs."""


def _speeds(generator: Generator, scatter: float, truth: float, number: int) -> list[float]:
    found: list[float] = np.exp(generator.normal(-truth, scatter, number)).tolist()
    return found


def _advises(found: Judgement, measured: int, paired: bool) -> bool:
    if found.needed is None:
        return False
    return not too_many_further(found.needed - measured, paired)


class _Experiment:
    """A simulated experiment of `cnnbench ab`, which can be continued."""

    def __init__(self, generator: Generator, scatter: float, truth: float, planned: int) -> None:
        self._drawn = generator, scatter, truth
        self._planned = planned
        self._made: tuple[InterimAnalysis, ...] = ()
        self.new: list[float] = []

    def session(self, most: int) -> Judgement:
        """Continues until a verdict is clear or has little chance, or `most` pairs are measured."""
        analyses = interim_analyses(most, POLICY.alpha, planned=self._planned, made=self._made)
        for number, analysis in enumerate(analyses, start=1):
            self.new += _speeds(*self._drawn, analysis.pairs - len(self.new))
            self._made = (*self._made, analysis)
            samples = Samples(
                base=[1.0] * len(self.new),
                new=self.new,
                paired=True,
                looks=self._made,
                plan=AnalysisSchedule(POLICY.alpha, self._planned, self._made),
            )
            found = judge(samples, POLICY)
            left = analyses[number:]
            chance = clear_verdict_probability(samples, left, POLICY) if left else 1.0
            hopeless = chance < SMALLEST_CHANCE
            if found.verdict in CLEAR or hopeless:
                break
        return found


def pairs(generator: Generator, scatter: float, truth: float, planned: int) -> tuple[bool, Verdict]:
    """Simulates `cnnbench ab`, and `ab --resume` up to the advised number of pairs."""
    experiment = _Experiment(generator, scatter, truth, planned)
    found = experiment.session(planned)
    if found.verdict in CLEAR or not _advises(found, len(experiment.new), True):
        return False, found.verdict
    return True, experiment.session(found.needed or 0).verdict


def processes(
    generator: Generator, scatter: float, truth: float, planned: int
) -> tuple[bool, Verdict]:
    """Simulates `cnnbench compare`, and a second comparison with the advised processes."""
    base, new = (_speeds(generator, scatter, one, planned) for one in (0.0, truth))
    found = judge(Samples(base, new), POLICY)
    if found.verdict in CLEAR or not _advises(found, planned, False):
        return False, found.verdict
    more = (found.needed or 0) - planned
    base += _speeds(generator, scatter, 0.0, more)
    new += _speeds(generator, scatter, truth, more)
    return True, judge(Samples(base, new), POLICY).verdict


KINDS: dict[str, Case] = {
    "pairs": pairs,
    "processes": processes,
}


def simulate_comparison(
    generator: Generator, kind: str, planned: int, truth: str, scatter: float
) -> dict[Any, float]:
    """Simulates a comparison; returns whether runs were advised, and whether they settled it."""
    shift, right = TRUTHS[truth]
    advised, verdict = KINDS[kind](generator, scatter, shift, planned)
    return {"advised": advised, "settled": advised and verdict in right}


def settled(found: Sums) -> float:
    """Returns the share of comparisons with advice in which the advice led to the right verdict."""
    return float(found["settled"] / max(found["advised"], 1))


def violation(found: Sums, kind: str, planned: int, truth: str, scatter: float) -> str:
    """Returns a text about a share outside of the stated range, or "" if the share is plausible."""
    low, high = KEPT
    error = _SURE * math.sqrt(low * (1 - low) / max(found["advised"], 1))
    if low - error <= settled(found) <= high + error:
        return ""
    return f"{planned} {kind}, {truth}, {percent_of(scatter)}: {percent_of(settled(found))}"


ADVICE = Study(
    header=("measured, truth", *(f"scatter {percent_of(one)}" for one in SCATTERS)),
    tables={
        "": {
            (f"{planned} {kind}, {truth}",): [(kind, planned, truth, one) for one in SCATTERS]
            for kind in KINDS
            for planned in PLANNED
            for truth in TRUTHS
        }
    },
    draw=simulate_comparison,
    cells=lambda found: [
        f"{percent_of(settled(one))} of {one['advised']}" if one["advised"] else "-"
        for one in found
    ],
    judge=all_kept(
        f"advice: settles {100 * KEPT[0]:g} to {100 * KEPT[1]:g} % of what it is given for",
        violation,
        "in all rows",
    ),
    part=10,
)
"""Shares of comparisons in which advice led to the right verdict, and numbers with advice."""
