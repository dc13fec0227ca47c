"""How often an inconclusive comparison is settled by the number of further runs that it advises.

Noise is normal. An experiment goes on as the command in its advice says, with all interim analyses
on the way; a comparison of single processes gets as many more on both sides.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cnnbench.campaigns.ab.pairs import SMALLEST_CHANCE, chance
from cnnbench.campaigns.ab.results import CLEAR
from cnnbench.judge.compare import Judgement, TwoSamples, Verdict, judge, judge_all
from cnnbench.judge.compare.further import Continuation
from cnnbench.judge.compare.sequential import InterimAnalysis, interim_analyses
from cnnbench.judge.compare.words import too_many
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


def pairs(generator: Generator, scatter: float, truth: float, planned: int) -> tuple[bool, Verdict]:
    """An experiment of `cnnbench ab`, and `ab --resume` to the number that it advises."""
    new: list[float] = []
    made: tuple[InterimAnalysis, ...] = ()

    def session(most: int) -> Judgement:
        nonlocal made
        looks = interim_analyses(most, POLICY.alpha, planned=planned, made=made)
        for place, look in enumerate(looks, start=1):
            new.extend(_speeds(generator, scatter, truth, look.pairs - len(new)))
            made = (*made, look)
            case = TwoSamples(base=[1.0] * len(new), new=new, paired=True)
            plan = Continuation(POLICY.alpha, planned, made)
            (found,) = judge_all([case], POLICY.replace(alpha=look.alpha), plan)
            left = looks[place:]
            if found.verdict in CLEAR or not left or chance(case, left, POLICY) < SMALLEST_CHANCE:
                break
        return found

    found = session(planned)
    if found.verdict in CLEAR or not _advises(found, len(new), True):
        return False, found.verdict
    return True, session(found.needed or 0).verdict


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


KINDS: dict[str, Case] = {"pairs": pairs, "processes": processes}


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
    rows, bad = [], []
    for kind in KINDS:
        for planned in PLANNED:
            for truth in TRUTHS:
                found = [simulate(kind, planned, truth, one, draws, seed) for one in SCATTERS]
                name = f"{planned} {kind}, {truth}"
                rows.append((name, *(_cell(one) for one in found)))
                bad += [
                    f"{name}, {percent_of(scatter)}: {percent_of(one.share)}"
                    for scatter, one in zip(SCATTERS, found, strict=True)
                    if not one.is_kept
                ]
    low, high = (f"{100 * one:g}" for one in KEPT)
    text = f"advice: settles {low} to {high} % of what it is given for"
    header = ("measured, truth", *(f"scatter {percent_of(one)}" for one in SCATTERS))
    return table(header, rows), [Requirement(text, "; ".join(bad) or "in all rows", not bad)]


def _cell(found: Advised) -> str:
    """The settled share, of how many, and how many of the draws had advice."""
    if not found.advised:
        return "-"
    return f"{percent_of(found.share)} of {found.advised}"
