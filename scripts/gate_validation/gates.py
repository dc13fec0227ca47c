"""Gates formed from the pool of real processes.

A gate needs pairs of processes that ran close together. Two processes of one round are such
a pair: within a round the order is drawn. A gate takes a window of consecutive rounds, as an
experiment would have run them, and a coin per pair says which of two like processes is A, as
an experiment would have drawn it.

Windows that share no round are independent, but few. Windows that start at every round, each
with coins of its own, are many, but not independent: they estimate the share of red gates over
all starting times. A window of few pairs is judged with every outcome of its coins.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cnnbench.ab.sequential import InterimAnalysis, interim_analyses
from cnnbench.compare import Verdict
from gate_validation.pool import BASES, SLOWED, Process
from gate_validation.rules import POLICY, judge_pairs

Round = Mapping[str, Process]

PLANS: dict[str, tuple[InterimAnalysis, ...]] = {
    "interim analyses at 8, 12, 16 pairs": interim_analyses(16, POLICY.alpha),
    "8 pairs": interim_analyses(8, POLICY.alpha, sequential=False),
    "16 pairs": interim_analyses(16, POLICY.alpha, sequential=False),
}
"""The rules that real gates are judged by."""


@dataclass(frozen=True)
class Gates:
    """Verdicts of many gates of one kind.

    Attributes:
      plan: name of the rule.
      subject: what B is; "like" for the same as A.
      separate: whether no two gates share a process.
      complete: whether every way that the coins of each window can fall is among them.
      verdicts: counts.
      processes: different ones behind all of them.
    """

    plan: str
    subject: str
    separate: bool
    complete: bool
    verdicts: Counter[Verdict]
    processes: int

    @property
    def count(self) -> int:
        """How many gates."""
        return sum(self.verdicts.values())


def separate_gates(rounds: Sequence[Round], plan: str, subject: str, seed: int) -> Gates:
    """Gates of windows that share no round."""
    length = PLANS[plan][-1].pairs
    starts = range(0, len(rounds) - length + 1, length)
    draws = _drawn(starts, length, random.Random(f"{seed} separate"))
    return _gates(rounds, plan, subject, draws, separate=True)


def sliding_gates(rounds: Sequence[Round], plan: str, subject: str, seed: int, least: int) -> Gates:
    """Gates of windows that start at every round, over and over until there are enough.

    All of them, if that is no more than enough.
    """
    length = PLANS[plan][-1].pairs
    windows = len(rounds) - length + 1
    if 0 < windows * 2**length <= least:
        every = itertools.product(range(windows), itertools.product((False, True), repeat=length))
        return _gates(rounds, plan, subject, every, complete=True)
    times = -(-least // windows) if windows > 0 else 0
    starts = [start for _ in range(times) for start in range(windows)]
    draws = _drawn(starts, length, random.Random(f"{seed} sliding"))
    return _gates(rounds, plan, subject, draws)


def _drawn(
    starts: Iterable[int], length: int, coins: random.Random
) -> Iterator[tuple[int, Sequence[bool]]]:
    """Each window with coins of its own."""
    for start in starts:
        yield start, [coins.random() < 0.5 for _ in range(length)]


def _gates(
    rounds: Sequence[Round],
    plan: str,
    subject: str,
    draws: Iterable[tuple[int, Sequence[bool]]],
    *,
    separate: bool = False,
    complete: bool = False,
) -> Gates:
    analyses = PLANS[plan]
    verdicts: Counter[Verdict] = Counter()
    used: set[int] = set()
    for start, coins in draws:
        window = range(start, start + len(coins))
        used.update(window)
        pairs = [
            _pair(rounds[index], subject, coin) for index, coin in zip(window, coins, strict=True)
        ]
        outcome = judge_pairs([a for a, _ in pairs], [b for _, b in pairs], analyses)
        verdicts[outcome.verdict] += 1
    sides = 2 if subject == "like" else 3
    return Gates(plan, subject, separate, complete, verdicts, sides * len(used))


def _pair(one: Round, subject: str, coin: bool) -> tuple[float, float]:
    """Speeds of A and B in a round."""
    first, second = BASES if coin else BASES[::-1]
    names = (first, second if subject == "like" else subject)
    a, b = (one[name].images_per_sec for name in names)
    assert a is not None
    assert b is not None
    return a, b


def all_gates(rounds: Sequence[Round], seed: int, least: int) -> Iterator[Gates]:
    """Gates of every rule: like with like, and with each slowed subject."""
    for plan in PLANS:
        for subject in ("like", *SLOWED):
            yield separate_gates(rounds, plan, subject, seed)
            yield sliding_gates(rounds, plan, subject, seed, least)
