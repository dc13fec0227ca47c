"""How often an inconclusive comparison gets a verdict after the advised number of further runs.

Noise is normal. An experiment goes on as the command in its advice says, with all interim analyses
on the way, and so does a step of a bisection; a comparison of single processes gets as many more on
both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cnnbench.base.inference import AnalysisSchedule, InterimAnalysis, interim_analyses
from cnnbench.campaigns.ab.pairs import CLEAR, SMALLEST_CHANCE, verdict_probability
from cnnbench.campaigns.bisect import (
    BAD,
    GOOD,
    SKIP,
    BisectionStep,
    bisect_answer,
    follow_up_pairs,
    policy_for_middle_commit,
)
from cnnbench.judge.compare import (
    Judgement,
    MetricResult,
    TwoSamples,
    Verdict,
    judge,
    judge_all,
)
from cnnbench.judge.compare.estimate import is_too_many
from cnnbench.judge.metrics import THROUGHPUT
from validation.studies import POLICY, Generator, Study, Sums, all_kept, percent_of

SCATTERS = (0.01, 0.02, 0.03, 0.04, 0.05)
"""Standard deviations of the logarithms of quotients of pairs, or of processes."""

PLANNED = (8, 16)
"""Pairs that are planned, or processes of each side."""

KEPT = (0.75, 0.90)
"""Shares of the advised comparisons that are settled: the least and the largest."""

_TWICE = 2 * math.log1p(POLICY.threshold)
TRUTHS = {"equal": (0.0, Verdict.SAME), "twice the floor slower": (_TWICE, Verdict.SLOWER)}
"""Changes of the logarithms, and the verdicts that are right."""

_SURE = 3.0  # standard errors

Case = Callable[[Generator, float, float, int], tuple[bool, Verdict]]
"""Whether a number was advised, and the verdict with it."""


def _speeds(generator: Generator, scatter: float, truth: float, number: int) -> list[float]:
    found: list[float] = np.exp(generator.normal(-truth, scatter, number)).tolist()
    return found


def _advises(found: Judgement, measured: int, paired: bool) -> bool:
    return found.needed is not None and not is_too_many(found.needed - measured, paired)


class _Experiment:
    """A simulated experiment of `cnnbench ab`, which can be continued."""

    def __init__(
        self,
        generator: Generator,
        scatter: float,
        truth: float,
        planned: int,
        threshold: float = POLICY.threshold,
    ) -> None:
        self._drawn = generator, scatter, truth
        self._planned = planned
        self._policy = POLICY.replace(threshold=threshold)
        self._made: tuple[InterimAnalysis, ...] = ()
        self.new: list[float] = []

    def session(self, most: int) -> Judgement:
        """Continues until the verdict is clear or unlikely, or until `most` pairs are measured."""
        looks = interim_analyses(most, POLICY.alpha, planned=self._planned, made=self._made)
        for place, look in enumerate(looks, start=1):
            self.new += _speeds(*self._drawn, look.pairs - len(self.new))
            self._made = (*self._made, look)
            case = TwoSamples(
                base=[1.0] * len(self.new),
                new=self.new,
                paired=True,
                plan=AnalysisSchedule(POLICY.alpha, self._planned, self._made),
            )
            (found,) = judge_all([case], self._policy.replace(alpha=look.alpha))
            left = looks[place:]
            hopeless = left and verdict_probability(case, left, self._policy) < SMALLEST_CHANCE
            if found.verdict in CLEAR or hopeless:
                break
        return found

    def step(self, most: int) -> BisectionStep:
        """Like `session`, but returns a step of `cnnbench bisect`."""
        found = self.session(most)
        base = (1.0,) * len(self.new)
        result = MetricResult(metric=THROUGHPUT, base=base, new=(*self.new,), judgement=found)
        usual = POLICY.replace(alpha=self._made[-1].alpha)
        return BisectionStep(
            commit="",
            answer=bisect_answer(result, usual, about_work=False),
            judgement=found,
            pairs=len(self.new),
        )


def pairs(generator: Generator, scatter: float, truth: float, planned: int) -> tuple[bool, Verdict]:
    """Simulates `cnnbench ab`, and `ab --resume` up to the advised number of pairs."""
    experiment = _Experiment(generator, scatter, truth, planned)
    found = experiment.session(planned)
    if found.verdict in CLEAR or not _advises(found, len(experiment.new), True):
        return False, found.verdict
    return True, experiment.session(found.needed or 0).verdict


_VERDICTS = {GOOD: Verdict.SAME, BAD: Verdict.SLOWER, SKIP: Verdict.INCONCLUSIVE}


def _bisected(experiment: _Experiment, planned: int) -> tuple[bool, BisectionStep]:
    """Simulates a step of `cnnbench bisect` with up to twice as many pairs, and advised pairs."""
    most = 2 * planned
    step = experiment.step(planned)
    if step.is_undecided and (step.judgement.needed or most + 1) <= most:
        step = experiment.step(most)
    advised = follow_up_pairs([step], most) if step.is_undecided else 0
    return advised > 0, experiment.step(advised) if advised else step


def ends(generator: Generator, scatter: float, truth: float, planned: int) -> tuple[bool, Verdict]:
    """Simulates the step of `cnnbench bisect` that compares BAD with GOOD."""
    advised, step = _bisected(_Experiment(generator, scatter, truth, planned), planned)
    return advised, _VERDICTS[step.answer]


def between(
    generator: Generator, scatter: float, truth: float, planned: int
) -> tuple[bool, Verdict]:
    """Simulates a later step of `cnnbench bisect`; BAD is slower by twice the threshold."""
    bad = None
    while bad is None or bad.answer != BAD:
        _, bad = _bisected(_Experiment(generator, scatter, _TWICE, planned), planned)
    threshold = policy_for_middle_commit(bad, POLICY).threshold
    step = _Experiment(generator, scatter, truth, planned, threshold)
    advised, found = _bisected(step, planned)
    return advised, _VERDICTS[found.answer]


def processes(
    generator: Generator, scatter: float, truth: float, planned: int
) -> tuple[bool, Verdict]:
    """Simulates `cnnbench compare`, and a second comparison with the advised processes."""
    base, new = (_speeds(generator, scatter, one, planned) for one in (0.0, truth))
    found = judge(base, new, POLICY)
    if found.verdict in CLEAR or not _advises(found, planned, False):
        return False, found.verdict
    more = (found.needed or 0) - planned
    base += _speeds(generator, scatter, 0.0, more)
    new += _speeds(generator, scatter, truth, more)
    return True, judge(base, new, POLICY).verdict


KINDS: dict[str, Case] = {
    "pairs": pairs,
    "processes": processes,
    "pairs of bisect, BAD": ends,
    "pairs of bisect, a commit": between,
}


def draw(
    generator: Generator, kind: str, planned: int, truth: str, scatter: float
) -> dict[Any, float]:
    """Simulates a comparison: whether it gave advice, and whether following it led to a verdict."""
    shift, right = TRUTHS[truth]
    advised, verdict = KINDS[kind](generator, scatter, shift, planned)
    return {"advised": advised, "settled": advised and verdict is right}


def settled(found: Sums) -> float:
    """Share of comparisons with advice in which the advised number led to the right verdict."""
    return float(found["settled"] / max(found["advised"], 1))


def violation(found: Sums, kind: str, planned: int, truth: str, scatter: float) -> str:
    """Text about a share outside of the stated range; "" if the share is plausible."""
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
    draw=draw,
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
"""Shares that are settled, and how many of the draws had advice."""
