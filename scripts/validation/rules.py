"""Rules under test: each forms a verdict from a series of processes in order of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cnnbench.base.inference import InterimAnalysis, interim_analyses
from cnnbench.campaigns.ab.pairs import CLEAR, SMALLEST_CHANCE, chance
from cnnbench.judge.compare import Policy, TwoSamples, Verdict, judge, judge_all
from cnnbench.judge.compare.disturbance import joint_judgement, with_shared_level

Series = NDArray[np.float64]
Generator = np.random.Generator

POLICY = Policy()
LIMIT = POLICY.alpha / 2
"""Stated error rate: at most this share of comparisons of like with like turns red."""

MEASURED_LIMIT = 0.01
"""Error rate required of gates from real processes, reached only if noise hides the floor."""

Outcome = tuple[Verdict, int]
"""A verdict, and the processes that it cost, of both sides together."""

Sides = tuple[list[float], list[float]]
"""Speeds of A and of B, in the order of time."""


@dataclass(frozen=True)
class Rule:
    """A rule that forms a verdict.

    Attributes:
      name: name in the table.
      processes: maximum number of processes.
      sides: divides speeds in the order of time; takes them, the factor that B's are multiplied by,
        and a generator for the order of the sides.
      judged: the outcome of both sides.
      broken: the condition of the stated error rates that it violates, or "".
    """

    name: str
    processes: int
    sides: Callable[[Series, float, Generator], Sides]
    judged: Callable[[list[float], list[float]], Outcome]
    broken: str = ""


def judge_pairs(
    speeds: TwoSamples,
    plan: Sequence[InterimAnalysis],
    rules: Policy = POLICY,
    cpu_time: TwoSamples | None = None,
) -> Outcome:
    """The verdict of `cnnbench ab`: at the first interim analysis that is clear, else at the last.

    It also ends at one that leaves hardly a chance of a verdict by the speeds alone.

    Args:
      speeds: those of the pairs, in the order of time.
      cpu_time: decides together with the speeds, as under load; None if it does not.
    """
    for index, analysis in enumerate(plan, start=1):
        policy = rules.replace(alpha=analysis.alpha)
        case = _first(speeds, analysis.pairs)
        if cpu_time is None:
            (found,) = judge_all([case], policy)
        else:
            cases = with_shared_level(case, _first(cpu_time, analysis.pairs), policy)
            throughput, work = judge_all(cases, policy)
            found = joint_judgement(throughput, work, policy, ())
        if found.verdict in CLEAR:
            break
        undecided = cpu_time is None and index < len(plan)
        if undecided and chance(case, plan[index:], rules) < SMALLEST_CHANCE:
            break
    return found.verdict, 2 * analysis.pairs


def _first(case: TwoSamples, pairs: int) -> TwoSamples:
    differences = None if case.differences is None else case.differences[:pairs]
    return replace(case, base=case.base[:pairs], new=case.new[:pairs], differences=differences)


def _coins(series: Series, factor: float, generator: Generator) -> Sides:
    """Sides of pairs in order of time, B first or second by a coin per pair."""
    pairs = series.reshape(-1, 2)
    coins = generator.integers(2, size=len(pairs))
    places = np.arange(len(pairs))
    a, b = pairs[places, coins], pairs[places, 1 - coins] * factor
    return a.tolist(), b.tolist()


def _shuffled(first: int) -> Callable[[Series, float, Generator], Sides]:
    """The first `first` of A and the others of B, in random order."""
    return lambda series, factor, generator: _divided(generator.permutation(series), first, factor)


def _blocks(series: Series, factor: float, generator: Generator) -> Sides:
    del generator
    return _divided(series, len(series) // 2, factor)


def _divided(values: Series, first: int, factor: float) -> Sides:
    return values[:first].tolist(), (values[first:] * factor).tolist()


def _in_pairs(pairs: int, sequential: bool) -> Callable[[list[float], list[float]], Outcome]:
    plan = interim_analyses(pairs, POLICY.alpha, sequential)
    return lambda a, b: judge_pairs(TwoSamples(base=a, new=b, paired=True), plan)


RESUMED = (8, 12, 16, 24, 36, 52, 76)
"""Maximum pairs of the sessions of an experiment that is resumed until it is clear."""


@cache
def _analyses_of_resumed() -> tuple[InterimAnalysis, ...]:
    made: tuple[InterimAnalysis, ...] = ()
    for pairs in RESUMED:
        made += interim_analyses(pairs, POLICY.alpha, planned=RESUMED[0], made=made)
    return made


def _resumed(a: list[float], b: list[float]) -> Outcome:
    # The experiment is continued whatever the chance of a verdict.
    for analysis in _analyses_of_resumed():
        found = judge_pairs(TwoSamples(base=a, new=b, paired=True), [analysis])
        if found[0] in CLEAR:
            break
    return found


def _unpaired(a: list[float], b: list[float]) -> Outcome:
    return judge(a, b, POLICY).verdict, len(a) + len(b)


RULES: tuple[Rule, ...] = (
    Rule("ab, interim analyses at 8, 12, 16 pairs", 32, _coins, _in_pairs(16, sequential=True)),
    Rule("ab, 8 pairs, resumed to 12, 16, 24, 36, 52, 76", 152, _coins, _resumed),
    Rule("ab, 8 pairs", 16, _coins, _in_pairs(8, sequential=False)),
    Rule("ab, 16 pairs", 32, _coins, _in_pairs(16, sequential=False)),
    Rule("compare, 5 + 9 in random order", 14, _shuffled(5), _unpaired),
    Rule("compare, 4 + 4 in random order", 8, _shuffled(4), _unpaired),
    Rule("compare without --paired, 8 pairs", 16, _coins, _unpaired, "pairs not judged as pairs"),
    Rule("compare, 8 of A, then 8 of B", 16, _blocks, _unpaired, "the sides take no turns"),
)
"""Rules in simulations; the last two break a condition on purpose."""
