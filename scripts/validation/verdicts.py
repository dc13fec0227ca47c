"""Error rates and power of verdicts on simulated processes with a known truth.

A series contains the speed of each process, a positive number, in the order of time; without noise,
all speeds are 1. A rule divides the series between A and B, and forms a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from cnnbench.base.inference import InterimAnalysis, interim_analyses
from cnnbench.campaigns.ab.futility import SMALLEST_CHANCE, clear_verdict_probability
from cnnbench.judge.compare import Policy, Samples, Verdict, judge
from cnnbench.judge.compare.disturbance import joint_judgement
from validation.studies import (
    POLICY,
    Case,
    Generator,
    Requirement,
    Series,
    Study,
    Sums,
    all_kept,
    share_of,
    surely_above,
    surely_below,
)

LIMIT = POLICY.alpha / 2
"""Stated error rate: at most this share of comparisons of equal programs finds a slowdown."""

PASSES = (Verdict.SAME, Verdict.NOT_SLOWER, Verdict.FASTER)
"""Verdicts that answer that B is not slower."""

CLEAR = (Verdict.SLOWER, *PASSES)
"""Verdicts that end an experiment."""

Outcome: TypeAlias = tuple[Verdict, int]
"""A verdict, and the number of processes of A and B that it needed."""

Sides: TypeAlias = tuple[list[float], list[float]]
"""Speeds of A and of B, in the order of time."""

QUIET = 0.013
"""Relative standard deviation of the speeds of equal processes on a quiet machine."""

# Relative standard deviations under load, and on the virtual machine of docs/evidence.md.
_BUSY, _SHARED = 0.03, 0.069
# Factor of speeds in the slow state of a machine (measured: 19.5 ms and 33 ms per step).
_SLOW_STATE = 0.59
_SWITCH = 0.1
_CORRELATION = 0.9
_GRID = 0.02


def _normal(generator: Generator, count: int, scatter: float = QUIET) -> Series:
    return np.exp(generator.normal(0.0, scatter, count))


def _slowed(generator: Generator, count: int, chance: float, least: float, most: float) -> Series:
    """Slows random processes to a share of their speed between `least` and `most`."""
    hit = generator.random(count) < chance
    return _normal(generator, count) * np.where(hit, generator.uniform(least, most, count), 1.0)


def _autoregressive(generator: Generator, count: int) -> Series:
    found: Series = np.exp(correlated(generator.normal(0.0, _BUSY, count), _CORRELATION))
    return found


def correlated(shocks: Series, coefficient: float) -> Series:
    """Returns values of an AR(1) process, along the last axis, from independent shocks of the same
    variance.
    """
    values: Series = shocks.copy()
    for at in range(1, shocks.shape[-1]):
        new = np.sqrt(1 - coefficient**2) * shocks[..., at]
        values[..., at] = coefficient * values[..., at - 1] + new
    return values


def _regimes(generator: Generator, count: int) -> Series:
    switches = generator.random(count) < _SWITCH
    states = (np.cumsum(switches) + generator.integers(2)) % 2
    return _normal(generator, count) * np.where(states == 1, _SLOW_STATE, 1.0)


NOISES: dict[str, Callable[[Generator, int], Series]] = {
    "normal, 1.3 %": _normal,
    "normal, 3 %": partial(_normal, scatter=_BUSY),
    "normal, 6.9 % (pairs 9.8 %)": partial(_normal, scatter=_SHARED),
    "one in five has a neighbour": partial(_slowed, chance=0.2, least=0.5, most=0.95),
    "AR(1), 0.9, 3 %": _autoregressive,
    "two regimes, x 0.59": _regimes,
    "one in ten an outlier": partial(_slowed, chance=0.1, least=0.4, most=0.9),
    "heavy tails, t(1.5)": lambda g, count: np.exp(QUIET * g.standard_t(1.5, count)),
    "drift of 20 %": lambda g, count: _normal(g, count) * np.linspace(1.0, 0.8, count),
    "second of a pair 10 % slower": lambda g, count: (
        _normal(g, count) * np.where(np.arange(count) % 2 == 1, 0.9, 1.0)
    ),
    "ties, grid of 2 %": lambda g, count: (
        1.0 + _GRID * np.round((_normal(g, count, _BUSY) - 1.0) / _GRID)
    ),
    "constant": lambda g, count: np.ones(count),
}
"""Functions that draw noise, by the name of the noise in the tables."""


@dataclass(frozen=True)
class Rule:
    """A rule that divides the speeds of processes between A and B, and forms a verdict.

    Attributes:
      processes: maximum number of processes.
      sides: function that divides speeds in the order of time between A and B. Its arguments are
        the speeds, the factor by which B's speeds are multiplied, and a generator for the order.
      judged: function that returns the outcome for the speeds of A and B.
      broken: condition of the stated error rates that the rule violates, or "".
    """

    processes: int
    sides: Callable[[Series, float, Generator], Sides]
    judged: Callable[[list[float], list[float]], Outcome]
    broken: str = ""


def judge_pairs(
    speeds: Samples,
    plan: Sequence[InterimAnalysis],
    rules: Policy = POLICY,
    cpu_time: Samples | None = None,
) -> Outcome:
    """Returns the verdict of `cnnbench ab`: from the first clear interim analysis, or the last.

    The experiment also ends if later analyses have hardly a chance of a verdict by speeds alone.

    Args:
      speeds: the speeds of the pairs, in the order of time.
      cpu_time: CPU times that decide together with the speeds, as under load; None if the speeds
        decide alone.
    """
    for index in range(1, len(plan) + 1):
        case = _first(speeds, plan[:index])
        if cpu_time is None:
            found = judge(case, rules)
        else:
            throughput = judge(case, rules.replace(split=0.5))
            work = judge(_first(cpu_time, plan[:index]), rules.replace(split=0.5))
            found = joint_judgement(throughput, work, rules, ())
        if found.verdict in CLEAR:
            break
        undecided = cpu_time is None and index < len(plan)
        if undecided and clear_verdict_probability(case, plan[index:]) < SMALLEST_CHANCE:
            break
    return found.verdict, 2 * len(case.base)


def _first(case: Samples, looks: Sequence[InterimAnalysis]) -> Samples:
    pairs = looks[-1].pairs
    differences = None if case.differences is None else case.differences[:pairs]
    base, new = case.base[:pairs], case.new[:pairs]
    return replace(case, looks=tuple(looks), differences=differences, base=base, new=new)


def _coins(series: Series, factor: float, generator: Generator) -> Sides:
    """Divides pairs in the order of time between A and B; B is first or second at random."""
    pairs = series.reshape(-1, 2)
    coins = generator.integers(2, size=len(pairs))
    places = np.arange(len(pairs))
    a, b = pairs[places, coins], pairs[places, 1 - coins] * factor
    return a.tolist(), b.tolist()


def _divided(values: Series, first: int, factor: float) -> Sides:
    return values[:first].tolist(), (values[first:] * factor).tolist()


def _shuffled(first: int) -> Callable[[Series, float, Generator], Sides]:
    """Creates a function that assigns `first` random speeds to A, and the others to B."""
    return lambda series, factor, generator: _divided(generator.permutation(series), first, factor)


def _in_pairs(pairs: int, sequential: bool) -> Callable[[list[float], list[float]], Outcome]:
    plan = interim_analyses(pairs, POLICY.alpha, sequential)
    return lambda a, b: judge_pairs(Samples(a, b, paired=True), plan)


# Total number of pairs after each session of an experiment that is resumed until it is clear.
_RESUMED = (8, 12, 16, 24, 36, 52, 76)


@cache
def _analyses_of_resumed() -> tuple[InterimAnalysis, ...]:
    made: tuple[InterimAnalysis, ...] = ()
    for pairs in _RESUMED:
        made += interim_analyses(pairs, POLICY.alpha, planned=_RESUMED[0], made=made)
    return made


def _resumed(a: list[float], b: list[float]) -> Outcome:
    # The experiment is continued even if a verdict is unlikely.
    looks = _analyses_of_resumed()
    for index in range(1, len(looks) + 1):
        case = _first(Samples(a, b, paired=True), looks[:index])
        found = judge(case, POLICY)
        if found.verdict in CLEAR:
            break
    return found.verdict, 2 * len(case.base)


def _unpaired(a: list[float], b: list[float]) -> Outcome:
    return judge(Samples(a, b), POLICY).verdict, len(a) + len(b)


SEQUENTIAL, RESUMED = (
    "ab, interim analyses at 8, 12, 16 pairs",
    "ab, 8 pairs, resumed to 12, 16, 24, 36, 52, 76",
)
RULES: Mapping[str, Rule] = {
    SEQUENTIAL: Rule(32, _coins, _in_pairs(16, sequential=True)),
    RESUMED: Rule(152, _coins, _resumed),
    "ab, 8 pairs": Rule(16, _coins, _in_pairs(8, sequential=False)),
    "ab, 16 pairs": Rule(32, _coins, _in_pairs(16, sequential=False)),
    "compare, 5 + 9 in random order": Rule(14, _shuffled(5), _unpaired),
    "compare, 4 + 4 in random order": Rule(8, _shuffled(4), _unpaired),
    "compare without --paired, 8 pairs": Rule(16, _coins, _unpaired, "pairs not judged as pairs"),
    "compare, 8 of A, then 8 of B": Rule(
        16,
        lambda series, factor, _: _divided(series, len(series) // 2, factor),
        _unpaired,
        "the sides take no turns",
    ),
}
"""Rules in simulations; the last two break a condition on purpose."""

TRUTHS = (0.0, 0.05, 0.10)
"""True slowdowns of B, as shares of the speed."""


def simulate_comparison(
    generator: Generator, rule: str, noise: str, truth: float
) -> dict[Any, float]:
    """Simulates a comparison in which B is slower by `truth`; returns verdict and processes."""
    chosen = RULES[rule]
    series = NOISES[noise](generator, chosen.processes)
    verdict, used = chosen.judged(*chosen.sides(series, 1 - truth, generator))
    return {verdict: 1, "processes": used}


def violation(found: Sums, rule: str, noise: str, truth: float) -> str:
    """Returns a text about a stated error rate that is exceeded, or "" if none is exceeded."""
    if RULES[rule].broken:
        return ""
    # Every slowdown in `TRUTHS` exceeds the threshold.
    wrong = (Verdict.SAME, Verdict.NOT_SLOWER) if truth else (Verdict.SLOWER,)
    limit = _MISSED if truth and rule == SEQUENTIAL else LIMIT
    for verdicts, most in (((Verdict.FASTER,), LIMIT), (wrong, limit)):
        if surely_above(sum(found[one] for one in verdicts), found["draws"], most):
            words = " or ".join(one.value for one in verdicts)
            return f"{rule}, {noise}: {words} in {share_of(found, *verdicts)}"
    return ""


_MISSED = 0.01
"""At most this share of experiments calls B "same" or "not slower" although it is slower."""

_QUIET, _BUSY_NAME, _LOUD, _HEAVY = (
    *("normal, 1.3 %", "normal, 3 %"),
    *("normal, 6.9 % (pairs 9.8 %)", "heavy tails, t(1.5)"),
)

_AT_MOST: Mapping[tuple[str, float], float] = {
    (_QUIET, 0.0): 0.01,
    (_BUSY_NAME, 0.0): 0.01,
    (_BUSY_NAME, 0.01): 0.08,
    (_BUSY_NAME, 0.02): 0.25,
}
"""Largest share of experiments with the verdict "slower", by noise and true slowdown."""

_AT_LEAST: Mapping[tuple[str, float], float] = {
    (_QUIET, 0.0): 0.995,
    (_BUSY_NAME, 0.0): 0.60,
    (_BUSY_NAME, 0.05): 0.94,
    (_BUSY_NAME, 0.10): 0.995,
    (_LOUD, 0.10): 0.92,
    (_HEAVY, 0.05): 0.88,
}
"""Smallest share of experiments of 16 pairs with the verdict "slower" or, for equal code, with a
verdict that passes.
"""


def _power_violation(found: Sums, rule: str, noise: str, truth: float) -> str:
    """Returns a text about a missed limit of `_AT_MOST` or `_AT_LEAST`, or ""."""
    if rule != SEQUENTIAL:
        return ""
    draws, where = found["draws"], f"{noise}, {100 * truth:g} % slower"
    most, least = _AT_MOST.get((noise, truth), 1.0), _AT_LEAST.get((noise, truth), 0.0)
    right = (Verdict.SLOWER,) if truth else PASSES
    if surely_above(found[Verdict.SLOWER], draws, most):
        return f"{where}: slower in {share_of(found, Verdict.SLOWER)}"
    if surely_below(sum(found[one] for one in right), draws, least):
        return f"{where}: decided in {share_of(found, *right)}"
    return ""


def _cells(found: Sequence[Sums]) -> list[str]:
    equal, five, ten = found
    shown = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.NOT_SLOWER)
    shares = [share_of(equal, verdict) for verdict in shown]
    for one in (five, ten):
        shares += [share_of(one, Verdict.SLOWER), share_of(one, Verdict.SAME, Verdict.NOT_SLOWER)]
    return shares + [f"{one['processes'] / one['draws']:.1f}" for one in (equal, ten)]


def _judged(found: Mapping[Case, Sums]) -> list[Requirement]:
    draws = next(iter(found.values()))["draws"]
    text = f"simulated: wrong verdicts in at most {100 * LIMIT:g} %, in {draws} draws each"
    cases = sum(not RULES[rule].broken for rule, *_ in found)
    return [
        *all_kept(text, violation, f"in all {cases} cases")(found),
        *all_kept("simulated: shares of right verdicts", _power_violation, "in all cases")(found),
    ]


RATES = Study(
    header=(
        *("noise", "equal: slower", "faster", "same", "not slower", "5 % slower: slower"),
        *("same or not slower", "10 % slower: slower", "same or not slower"),
        *("processes, equal", "10 %"),
    ),
    tables={
        f"**{name}**" + f" ({rule.broken})" * bool(rule.broken): {
            (noise,): [(name, noise, truth) for truth in TRUTHS] for noise in NOISES
        }
        for name, rule in RULES.items()
    },
    draw=simulate_comparison,
    cells=_cells,
    judge=_judged,
)
"""Every rule with every kind of noise and every true slowdown."""

SMALL = Study(
    header=("noise", "1 % slower: slower", "2 % slower: slower"),
    tables={
        "**Slowdowns below the threshold**": {
            (noise,): [(SEQUENTIAL, noise, truth) for truth in (0.01, 0.02)]
            for noise in (_BUSY_NAME, _HEAVY)
        }
    },
    draw=simulate_comparison,
    cells=lambda found: [share_of(one, Verdict.SLOWER) for one in found],
    judge=all_kept(
        "simulated: slowdowns below the threshold are seldom slower",
        _power_violation,
        "in all cases",
    ),
)
"""Real slowdowns that are not relevant."""


_SAMPLES: Mapping[str, tuple[int, int, float, Sequence[float], Verdict]] = {
    **{
        f"{few} against {many}, half as fast": (few, many, 0.5, (), Verdict.INCONCLUSIVE)
        for few, many in ((1, 1), (2, 2), (3, 3), (3, 20))
    },
    **{
        f"8 against 8, one is {wrong:g}": (8, 7, 1.0, (wrong,), Verdict.FAILED)
        for wrong in (math.nan, math.inf, 0.0)
    },
    "nothing against 8": (0, 8, 1.0, (), Verdict.INCONCLUSIVE),
}
# By sample: processes of A, processes of B, factor of B, more speeds of B, and right verdict.


def draw_sample(generator: Generator, name: str) -> dict[Any, float]:
    """Returns the verdict on a sample for which only one verdict is right."""
    few, many, factor, more, _ = _SAMPLES[name]
    base, new = _normal(generator, few), factor * _normal(generator, many)
    samples = Samples(base.tolist(), [*new.tolist(), *more])
    return {judge(samples, POLICY).verdict: 1}


def _verdicts(found: Sequence[Sums]) -> list[str]:
    counts = ((verdict, count) for verdict, count in found[0].items() if verdict != "draws")
    return [", ".join(f"{verdict.value} {count}" for verdict, count in counts)]


SAMPLES = Study(
    header=("sample", "verdicts"),
    tables={"": {(name,): [(name,)] for name in _SAMPLES}},
    draw=draw_sample,
    cells=_verdicts,
    judge=all_kept(
        "simulated: nothing follows from 1 to 3 values, NaN or nothing",
        lambda found, name: "" if found[_SAMPLES[name][-1]] == found["draws"] else name,
        "never",
    ),
)
"""Samples from which no slowdown or speedup may be concluded."""
