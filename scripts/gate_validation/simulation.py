"""Error rates of the gate on simulated series whose truth is known."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta, binom

from cnnbench.compare import Verdict, judge
from gate_validation.noise import NOISES, QUIET
from gate_validation.rules import LIMIT, POLICY, RULES, Rule

TRUTHS = (0.0, 0.05, 0.10)
"""How much slower B is, as a share of the speed."""

# A share that is what is stated may be missed by drawing once in a thousand times.
_SURE = 0.001


@dataclass(frozen=True)
class Rates:
    """How often each verdict came up.

    Attributes:
      rule, noise: what was tried.
      truth: how much slower B is.
      draws: how often it was tried.
      verdicts: counts.
      processes: mean number of them.
    """

    rule: Rule
    noise: str
    truth: float
    draws: int
    verdicts: Counter[Verdict]
    processes: float

    def share(self, verdict: Verdict) -> float:
        """Of the draws."""
        return self.verdicts[verdict] / self.draws

    def violation(self) -> str:
        """Which stated error rate was not kept; "" if all were, or none is promised."""
        if self.rule.broken:
            return ""
        wrong = (Verdict.FASTER, Verdict.SAME if self.truth else Verdict.SLOWER)
        for verdict in wrong:
            # At 5 % the truth lies just outside the margin within which "same" is meant.
            if surely_above(self.verdicts[verdict], self.draws, LIMIT):
                return f"{verdict.value} in {self.share(verdict):.1%}"
        return ""


def surely_above(count: int, draws: int, share: float) -> bool:
    """Whether so many of the draws show that the chance is above a share (exact binomial)."""
    return count > share * draws and binom.sf(count - 1, draws, share) < _SURE


def upper_limit(count: int, draws: int, confidence: float = 0.95) -> float:
    """The largest chance that so few of the draws do not contradict (Clopper and Pearson)."""
    return 1.0 if count >= draws else float(beta.ppf(confidence, count + 1, draws - count))


def simulate(rule: Rule, noise: str, truth: float, draws: int, seed: int) -> Rates:
    """Tries a rule on series of one kind of noise; the same seed gives the same rates."""
    name = zlib.crc32(f"{rule.name} {noise} {truth}".encode())
    generator = np.random.default_rng([seed, name])
    verdicts: Counter[Verdict] = Counter()
    processes = 0
    for _ in range(draws):
        series = NOISES[noise](generator, rule.processes)
        outcome = rule.decide(series, 1 - truth, generator)
        verdicts[outcome.verdict] += 1
        processes += outcome.processes
    return Rates(rule, noise, truth, draws, verdicts, processes / draws)


def all_rates(draws: int, seed: int, rules: Sequence[Rule] = RULES) -> Iterator[Rates]:
    """Every rule under every noise with every truth."""
    for rule in rules:
        for noise in NOISES:
            for truth in TRUTHS:
                yield simulate(rule, noise, truth, draws, seed)


def degenerate(draws: int, seed: int) -> list[tuple[str, Counter[Verdict], bool]]:
    """Samples from which nothing may follow: what, how often which verdict, whether it is so."""
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
