"""How often an inconclusive comparison is settled by the number of further runs that it advises.

Noise is normal. An experiment goes on as the command in its advice says, with all interim analyses
on the way, and so does a step of a bisection; a comparison of single processes gets as many more on
both sides.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from cnnbench.base.inference import Continuation, InterimAnalysis, interim_analyses
from cnnbench.campaigns.ab.pairs import CLEAR, SMALLEST_CHANCE, chance
from cnnbench.campaigns.bisect import BAD, GOOD, SKIP, Step, answer, policy_between, settling_pairs
from cnnbench.judge.compare import (
    Judgement,
    MetricResult,
    TwoSamples,
    Verdict,
    judge,
    judge_all,
)
from cnnbench.judge.compare.estimate import too_many
from cnnbench.judge.metrics.measurement import THROUGHPUT
from validation.rules import POLICY, Generator
from validation.tables import Requirement, percent_of, table

SCATTERS = (0.01, 0.02, 0.03, 0.04, 0.05)
"""Standard deviations of the logarithms of quotients of pairs, or of processes."""

PLANNED = (8, 16)
"""Pairs that are planned, or processes of each side."""

KEPT = (0.75, 0.90)
"""Shares of the advised comparisons that are settled: the least and the largest."""

CASES = 1000
"""Largest number of advised comparisons of a kind."""

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
    return found.needed is not None and not too_many(found.needed - measured, paired)


class _Experiment:
    """An experiment of `cnnbench ab`; it goes on with all interim analyses on the way."""

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
        """Goes on until the verdict is clear, hopeless, or that of this many pairs."""
        looks = interim_analyses(most, POLICY.alpha, planned=self._planned, made=self._made)
        for place, look in enumerate(looks, start=1):
            self.new += _speeds(*self._drawn, look.pairs - len(self.new))
            self._made = (*self._made, look)
            case = TwoSamples(
                base=[1.0] * len(self.new),
                new=self.new,
                paired=True,
                plan=Continuation(POLICY.alpha, self._planned, self._made),
            )
            (found,) = judge_all([case], self._policy.replace(alpha=look.alpha))
            left = looks[place:]
            hopeless = left and chance(case, left, self._policy) < SMALLEST_CHANCE
            if found.verdict in CLEAR or hopeless:
                break
        return found

    def step(self, most: int) -> Step:
        """The same as a step of `cnnbench bisect`."""
        found = self.session(most)
        base = (1.0,) * len(self.new)
        result = MetricResult(metric=THROUGHPUT, base=base, new=(*self.new,), judgement=found)
        usual = POLICY.replace(alpha=self._made[-1].alpha)
        return Step(
            commit="",
            answer=answer(result, usual, about_work=False),
            judgement=found,
            pairs=len(self.new),
        )


def pairs(generator: Generator, scatter: float, truth: float, planned: int) -> tuple[bool, Verdict]:
    """An experiment of `cnnbench ab`, and `ab --resume` to the number that it advises."""
    experiment = _Experiment(generator, scatter, truth, planned)
    found = experiment.session(planned)
    if found.verdict in CLEAR or not _advises(found, len(experiment.new), True):
        return False, found.verdict
    return True, experiment.session(found.needed or 0).verdict


_VERDICTS = {GOOD: Verdict.SAME, BAD: Verdict.SLOWER, SKIP: Verdict.INCONCLUSIVE}


def _bisected(experiment: _Experiment, planned: int) -> tuple[bool, Step]:
    """A step of `cnnbench bisect` with twice as many `--most_pairs`, and the advised ones."""
    most = 2 * planned
    step = experiment.step(planned)
    if step.undecided and (step.judgement.needed or most + 1) <= most:
        step = experiment.step(most)
    advised = settling_pairs([step], most) if step.undecided else 0
    return advised > 0, experiment.step(advised) if advised else step


def ends(generator: Generator, scatter: float, truth: float, planned: int) -> tuple[bool, Verdict]:
    """The step of `cnnbench bisect` that compares BAD with GOOD."""
    advised, step = _bisected(_Experiment(generator, scatter, truth, planned), planned)
    return advised, _VERDICTS[step.answer]


def between(
    generator: Generator, scatter: float, truth: float, planned: int
) -> tuple[bool, Verdict]:
    """A later step, where BAD is slower by twice the floor."""
    bad = None
    while bad is None or bad.answer != BAD:
        _, bad = _bisected(_Experiment(generator, scatter, _TWICE, planned), planned)
    threshold = policy_between(bad, POLICY).threshold
    step = _Experiment(generator, scatter, truth, planned, threshold)
    advised, found = _bisected(step, planned)
    return advised, _VERDICTS[found.answer]


def processes(
    generator: Generator, scatter: float, truth: float, planned: int
) -> tuple[bool, Verdict]:
    """A comparison of as many processes of both sides, and another one with more of each."""
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


@dataclass(frozen=True)
class Advised:
    """Comparisons of one kind: how many had advice, and of these, how many it settled."""

    draws: int
    advised: int
    settled: int

    @property
    def share(self) -> float:
        """Share of the advised ones that were settled."""
        return self.settled / max(self.advised, 1)

    @property
    def is_kept(self) -> bool:
        """Whether the share may be as stated; also with hardly a comparison that had advice."""
        low, high = KEPT
        error = _SURE * math.sqrt(low * (1 - low) / max(self.advised, 1))
        return low - error <= self.share <= high + error


def simulate(kind: str, planned: int, truth: str, scatter: float, draws: int, seed: int) -> Advised:
    """Draws comparisons; the same seed gives the same ones."""
    name = zlib.crc32(f"{kind} {planned} {truth} {scatter}".encode())
    generator = np.random.default_rng([seed, name])
    shift, right = TRUTHS[truth]
    drawn = advised = settled = 0
    while drawn < draws and advised < CASES:
        had, verdict = KINDS[kind](generator, scatter, shift, planned)
        drawn += 1
        advised += had
        settled += had and verdict is right
    return Advised(drawn, advised, settled)


def advice(draws: int, seed: int) -> tuple[list[str], list[Requirement]]:
    """A table of the shares that are settled, and the promise compared with it."""
    cases = list(itertools.product(KINDS, PLANNED, TRUTHS, SCATTERS))
    with ProcessPoolExecutor() as pool:
        drawn = pool.map(simulate, *zip(*cases, strict=True), repeat(-(-draws // 10)), repeat(seed))
        found = dict(zip(cases, drawn, strict=True))
    rows: dict[str, list[str]] = {}
    bad = []
    for (kind, planned, truth, scatter), one in found.items():
        name = f"{planned} {kind}, {truth}"
        rows.setdefault(name, []).append(_cell(one))
        if not one.is_kept:
            bad.append(f"{name}, {percent_of(scatter)}: {percent_of(one.share)}")
    low, high = (f"{100 * one:g}" for one in KEPT)
    text = f"advice: settles {low} to {high} % of what it is given for"
    header = ("measured, truth", *(f"scatter {percent_of(one)}" for one in SCATTERS))
    lines = table(header, [(name, *cells) for name, cells in rows.items()])
    return lines, [Requirement(text, "; ".join(bad) or "in all rows", not bad)]


def _cell(found: Advised) -> str:
    """The settled share, of how many, and how many of the draws had advice."""
    if not found.advised:
        return "-"
    return f"{percent_of(found.share)} of {found.advised}"
