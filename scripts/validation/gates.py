"""Gates formed from the pool of real processes.

A gate needs pairs of processes that ran close together. Two processes of one round are such
a pair: within a round the order is drawn. A gate takes a window of consecutive rounds, as an
experiment would have run them, and a coin per pair says which of two like processes is A, as
an experiment would have drawn it.

Windows start at every round, each with coins of its own. They are many, but not independent: they
estimate the share of red gates over all starting times. A window of few pairs is judged with every
outcome of its coins.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cnnbench.campaigns.ab.sequential import InterimAnalysis, interim_analyses
from cnnbench.judge.compare import Policy, Verdict
from validation.pool import BASES, Process
from validation.rules import POLICY, judge_disturbed_pairs, judge_pairs, speeds

Round = Mapping[str, Process]

PLANS: dict[str, tuple[InterimAnalysis, ...]] = {
    "interim analyses at 8, 12, 16 pairs": interim_analyses(16, POLICY.alpha),
    "8 pairs": interim_analyses(8, POLICY.alpha, sequential=False),
    "16 pairs": interim_analyses(16, POLICY.alpha, sequential=False),
}
"""The rules that real gates are judged by."""

WAITING = 0.10
WAITS = "waits longer, 10 % slower"
"""Like processes, of which B is counted as slower without more CPU time."""

LIKE = "like"
"""The same as A."""

DISTURBED = 0.1
"""CPUs in use by other programs from which a run counts as disturbed."""


@dataclass(frozen=True)
class Gates:
    """Verdicts of many gates of one kind.

    Attributes:
      plan: name of the rule.
      subject: what B is; "like" for the same as A, `WAITS` for the same but for its waits.
      complete: whether every way that the coins of each window can fall is among them.
      verdicts: counts.
      processes: different ones behind all of them.
    """

    plan: str
    subject: str
    complete: bool
    verdicts: Counter[Verdict]
    processes: int

    @property
    def count(self) -> int:
        """How many gates."""
        return sum(self.verdicts.values())


def sliding_gates(
    rounds: Sequence[Round],
    plan: str,
    subject: str,
    seed: int,
    least: int,
    policy: Policy = POLICY,
) -> Gates:
    """Gates of windows that start at every round, over and over until there are enough.

    All of them, if that is no more than enough.
    """
    analyses = PLANS[plan]
    length = analyses[-1].pairs
    windows = len(rounds) - length + 1
    complete = 0 < windows * 2**length <= least
    coins_of = random.Random(f"{seed} sliding")
    draws: Iterable[tuple[int, Sequence[bool]]] = (
        (start, [coins_of.random() < 0.5 for _ in range(length)])
        for _ in range(-(-least // windows) if windows > 0 else 0)
        for start in range(windows)
    )
    if complete:
        draws = itertools.product(range(windows), itertools.product((False, True), repeat=length))
    verdicts: Counter[Verdict] = Counter()
    used: set[int] = set()
    for start, coins in draws:
        window = range(start, start + len(coins))
        used.update(window)
        pairs = [
            _pair(rounds[index], subject, coin) for index, coin in zip(window, coins, strict=True)
        ]
        a, b = [one for one, _ in pairs], [one for _, one in pairs]
        if _disturbed([*a, *b]):
            outcome = judge_disturbed_pairs(a, b, analyses, policy)
        else:
            outcome = judge_pairs(speeds(a), speeds(b), analyses, policy)
        verdicts[outcome.verdict] += 1
    sides = 2 if subject in (LIKE, WAITS) else 3
    return Gates(plan, subject, complete, verdicts, sides * len(used))


def _pair(one: Round, subject: str, coin: bool) -> tuple[Process, Process]:
    """A and B in a round."""
    first, second = BASES if coin else BASES[::-1]
    a, b = one[first], one[second if subject in (LIKE, WAITS) else subject]
    if subject == WAITS:
        assert b.images_per_sec is not None
        b = replace(b, images_per_sec=b.images_per_sec * (1 - WAITING))
    return a, b


def _disturbed(processes: Sequence[Process]) -> bool:
    """Whether other programs used the CPUs in at least half of them; see docs/conditions.md."""
    if not all(one.cpu_seconds for one in processes):
        return False
    return 2 * sum((one.others or 0.0) >= DISTURBED for one in processes) >= len(processes)


def all_gates(
    rounds: Sequence[Round], seed: int, least: int, policy: Policy = POLICY
) -> Iterator[Gates]:
    """Gates of every rule: like with like, and with each slowed subject."""
    slowed = [name for name in rounds[0] if name not in BASES]
    for plan in PLANS:
        for subject in (LIKE, *sorted(slowed, key=len), WAITS):
            yield sliding_gates(rounds, plan, subject, seed, least, policy)
