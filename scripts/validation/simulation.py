"""Error rates of the gate on simulated series with known truth.

A series is a list of positive numbers, one per process in the order in which they ran; without
noise all are 1. Which process belongs to which side is drawn afterwards, as `cnnbench ab` does.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import binom

from cnnbench.base.text import percent
from cnnbench.judge.compare import Verdict, judge
from validation.rules import LIMIT, POLICY, RULES, Generator, Rule, Series

QUIET = 0.013
"""Standard deviation of like processes on a quiet machine, as a share."""

BUSY = 0.03
"""The same with neighbours."""

SHARED = 0.069
"""The same on the virtual machine of docs/evidence.md: quotients of pairs scatter by 9.8 %."""

# Factor of speeds in the slow state of a machine: 19.5 ms and 33 ms were measured.
_SLOW_STATE = 0.59
_SWITCH = 0.1
_CORRELATION = 0.9
_GRID = 0.02


def _normal(generator: Generator, count: int, scatter: float = QUIET) -> Series:
    return np.exp(generator.normal(0.0, scatter, count))


def _slowed(generator: Generator, count: int, chance: float, least: float, most: float) -> Series:
    """Slows some processes to a share of their speed between two limits."""
    hit = generator.random(count) < chance
    return _normal(generator, count) * np.where(hit, generator.uniform(least, most, count), 1.0)


def _autoregressive(generator: Generator, count: int) -> Series:
    shocks = generator.normal(0.0, BUSY, count)
    values = [shocks[0]]
    for shock in shocks[1:]:
        values.append(_CORRELATION * values[-1] + np.sqrt(1 - _CORRELATION**2) * shock)
    found: Series = np.exp(np.asarray(values))
    return found


def _regimes(generator: Generator, count: int) -> Series:
    switches = generator.random(count) < _SWITCH
    states = (np.cumsum(switches) + generator.integers(2)) % 2
    return _normal(generator, count) * np.where(states == 1, _SLOW_STATE, 1.0)


def _ties(generator: Generator, count: int) -> Series:
    return 1.0 + _GRID * np.round((_normal(generator, count, BUSY) - 1.0) / _GRID)


NOISES: dict[str, Callable[[Generator, int], Series]] = {
    "normal, 1.3 %": _normal,
    "normal, 3 %": partial(_normal, scatter=BUSY),
    "normal, 6.9 % (pairs 9.8 %)": partial(_normal, scatter=SHARED),
    "one in five has a neighbour": partial(_slowed, chance=0.2, least=0.5, most=0.95),
    "AR(1), 0.9, 3 %": _autoregressive,
    "two regimes, x 0.59": _regimes,
    "one in ten an outlier": partial(_slowed, chance=0.1, least=0.4, most=0.9),
    "heavy tails, t(1.5)": lambda g, count: np.exp(QUIET * g.standard_t(1.5, count)),
    "drift of 20 %": lambda g, count: _normal(g, count) * np.linspace(1.0, 0.8, count),
    "second of a pair 10 % slower": lambda g, count: (
        _normal(g, count) * np.where(np.arange(count) % 2 == 1, 0.9, 1.0)
    ),
    "ties, grid of 2 %": _ties,
    "constant": lambda g, count: np.ones(count),
}
"""Kinds of noise by what the tables call them."""

TRUTHS = (0.0, 0.05, 0.10)
"""Slow-downs of B, as shares of the speed."""

# Chance that a rate equal to the stated one is rejected.
_SURE = 0.001


@dataclass(frozen=True)
class Rates:
    """Frequencies of the verdicts.

    Attributes:
      rule, noise: the rule and the noise of the draws.
      truth: how much slower B is.
      verdicts: counts.
      processes: mean number of them.
    """

    rule: Rule
    noise: str
    truth: float
    verdicts: Counter[Verdict]
    processes: float

    def share(self, verdict: Verdict) -> float:
        """Share of the draws."""
        return self.verdicts[verdict] / self.verdicts.total()

    def violation(self) -> str:
        """The stated error rate that was exceeded; "" if none was, or none is stated."""
        if self.rule.broken:
            return ""
        wrong = (Verdict.FASTER, Verdict.SAME if self.truth else Verdict.SLOWER)
        for verdict in wrong:
            # At 5 % the truth lies just outside the margin within which "same" is meant.
            if surely_above(self.verdicts[verdict], self.verdicts.total(), LIMIT):
                return f"{verdict.value} in {percent(self.share(verdict))}"
        return ""


def surely_above(count: int, draws: int, share: float) -> bool:
    """Whether this many draws show that the chance is above a share (exact binomial)."""
    return count > share * draws and binom.sf(count - 1, draws, share) < _SURE


def simulate(rule: Rule, noise: str, truth: float, draws: int, seed: int) -> Rates:
    """Tries a rule on series of one kind of noise; the same seed gives the same rates."""
    name = zlib.crc32(f"{rule.name} {noise} {truth}".encode())
    generator = np.random.default_rng([seed, name])
    verdicts: Counter[Verdict] = Counter()
    processes = 0
    for _ in range(draws):
        series = NOISES[noise](generator, rule.processes)
        verdict, used = rule.judged(*rule.sides(series, 1 - truth, generator))
        verdicts[verdict] += 1
        processes += used
    return Rates(rule, noise, truth, verdicts, processes / draws)


def all_rates(draws: int, seed: int, rules: Sequence[Rule] = RULES) -> Iterator[Rates]:
    """Every rule under every noise with every truth."""
    for rule in rules:
        for noise in NOISES:
            for truth in TRUTHS:
                yield simulate(rule, noise, truth, draws, seed)


def degenerate(draws: int, seed: int) -> list[tuple[str, Counter[Verdict], bool]]:
    """Samples without a valid verdict: description, frequencies of verdicts, check."""
    generator = np.random.default_rng(seed)
    found = []

    def add(what: str, pairs: Iterator[tuple[list[float], list[float]]], *right: Verdict) -> None:
        verdicts = Counter(judge(a, b, POLICY).verdict for a, b in pairs)
        found.append((what, verdicts, set(verdicts) <= set(right)))

    def normal(count: int, factor: float = 1.0) -> list[float]:
        return [factor * math.exp(one) for one in generator.normal(0.0, QUIET, count)]

    for few, many in ((1, 1), (2, 2), (3, 3), (3, 20)):
        add(
            f"{few} against {many}, half as fast",
            ((normal(few), normal(many, 0.5)) for _ in range(draws)),
            Verdict.INCONCLUSIVE,
        )
    for wrong in (math.nan, math.inf, 0.0):
        add(
            f"8 against 8, one is {wrong:g}",
            ((normal(8), [*normal(7), wrong]) for _ in range(draws)),
            Verdict.FAILED,
        )
    add("nothing against 8", (([], normal(8)) for _ in range(draws)), Verdict.INCONCLUSIVE)
    return found
