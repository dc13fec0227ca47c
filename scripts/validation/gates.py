"""Comparisons (gates) that are formed from the processes in the pool.

A gate needs pairs of processes that ran at about the same time. Two processes of one round are such
a pair, because their order in the round is random. A gate uses a window of consecutive rounds, like
an experiment. For each pair of equal processes, a random coin determines which process is A.

A window starts at every round, with separate coins. The many windows are not independent: they
estimate the share of red gates over all starting times. Windows of few pairs are judged with every
possible outcome of their coins.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cnnbench.base.inference import (
    InterimAnalysis,
    interim_analyses,
    paired_shift,
    standard_deviation,
)
from cnnbench.base.slow_steps import excess_shares
from cnnbench.base.stats import median
from cnnbench.base.text import percent
from cnnbench.judge.compare import Policy, Samples, Verdict
from cnnbench.judge.compare.disturbance import log_ratio_of_slices
from cnnbench.judge.metrics.judged import CPU_TIME
from validation.pool import BASES, SLOWED, Process
from validation.studies import POLICY, Requirement, percent_of, table
from validation.verdicts import PASSES, judge_pairs

Round = Mapping[str, Process]

PLANS: dict[str, tuple[InterimAnalysis, ...]] = {
    "interim analyses at 8, 12, 16 pairs": interim_analyses(16, POLICY.alpha),
    "8 pairs": interim_analyses(8, POLICY.alpha, sequential=False),
    "16 pairs": interim_analyses(16, POLICY.alpha, sequential=False),
}
"""Interim analyses of gates from real processes, by name of the rule."""

WAITING = 0.10
WAITS = "waits longer, 10 % slower"
"""Name of program B if it equals A, but its speed is reduced without additional CPU time."""

LIKE = "like"
"""Name of program B if it equals A."""

DISTURBED = 0.1
"""Number of CPUs that other programs use, from which a process is considered disturbed."""


@dataclass(frozen=True)
class ComparisonVerdicts:
    """Verdicts of many comparisons of one kind.

    Attributes:
      plan: name of the rule.
      subject: program B of the comparisons, such as `LIKE` or `WAITS`.
      complete: whether all outcomes of the coins of each window are included.
      verdicts: number of comparisons with each verdict.
      processes: number of different processes in all gates.
    """

    plan: str
    subject: str
    complete: bool
    verdicts: Counter[Verdict]
    processes: int

    @property
    def count(self) -> int:
        """Number of comparisons."""
        return sum(self.verdicts.values())


def sliding_gates(
    rounds: Sequence[Round],
    plan: str,
    subject: str,
    seed: int,
    least: int,
    policy: Policy = POLICY,
) -> ComparisonVerdicts:
    """Forms comparisons from windows that start at every round, until there are `least`.

    If all windows with all outcomes of coins are at most `least` comparisons, all are used.
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
        sides = list(zip(*pairs, strict=True))
        base, new = _speeds(*sides)
        speeds = Samples(base=base, new=new, paired=True)
        verdict, _ = judge_pairs(speeds, analyses, policy, _cpu_time(*sides))
        verdicts[verdict] += 1
    subjects = 2 if subject in (LIKE, WAITS) else 3
    return ComparisonVerdicts(plan, subject, complete, verdicts, subjects * len(used))


def _pair(one: Round, subject: str, coin: bool) -> tuple[Process, Process]:
    """Returns the processes of A and B in one round."""
    first, second = BASES if coin else BASES[::-1]
    a, b = one[first], one[second if subject in (LIKE, WAITS) else subject]
    if subject == WAITS:
        b = replace(b, images_per_sec=b.speed * (1 - WAITING))
    return a, b


def _speeds(a: Sequence[Process], b: Sequence[Process]) -> tuple[list[float], list[float]]:
    """Returns the speeds of A and B without rare disturbances, as in `cnnbench ab`."""
    rare = excess_shares([one.disturbance for one in (*a, *b)])
    found = [one.speed / (1 - share) for one, share in zip((*a, *b), rare, strict=True)]
    return found[: len(a)], found[len(a) :]


def _cpu_time(a: Sequence[Process], b: Sequence[Process]) -> Samples | None:
    """Returns the CPU times of pairs, or None unless half of the processes ran under load."""
    processes = (*a, *b)
    disturbed = sum((one.others or 0.0) >= DISTURBED for one in processes)
    if 2 * disturbed < len(processes) or not all(one.cpu_seconds for one in processes):
        return None
    differences = [
        log_ratio_of_slices(
            one.turn_cpu_seconds,
            other.turn_cpu_seconds,
            math.log(other.cpu_seconds / one.cpu_seconds),
        )
        for one, other in zip(a, b, strict=True)
    ]
    base, new = ([one.cpu_seconds for one in side] for side in (a, b))
    return Samples(base=base, new=new, metric=CPU_TIME, paired=True, differences=differences)


def all_gates(
    rounds: Sequence[Round], seed: int, least: int, policy: Policy = POLICY
) -> Iterator[ComparisonVerdicts]:
    """Forms comparisons of equal processes, and with each slowed subject, for every rule."""
    slowed = [name for name in rounds[0] if name not in BASES]
    for plan in PLANS:
        for subject in (LIKE, *sorted(slowed, key=len), WAITS):
            yield sliding_gates(rounds, plan, subject, seed, least, policy)


# Tables and requirements of real gates.

_SHOWN = (
    *(Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.NOT_SLOWER, Verdict.INCONCLUSIVE),
)
_TWO = "slower by 2 %"  # Only in pools that are judged with a threshold of 1 %.
_FIVE, _TEN = SLOWED
# Required shares of gates with a verdict, by the number of CPUs that other programs keep busy.
_POWER: Mapping[float, Mapping[tuple[str, str, Verdict], float]] = {
    0.0: {(_TEN, "8 pairs", Verdict.SLOWER): 1.0, (_FIVE, "16 pairs", Verdict.SLOWER): 0.999},
    0.5: {(_TEN, "8 pairs", Verdict.SLOWER): 0.953},
    1.0: {
        (_TEN, "8 pairs", Verdict.SLOWER): 0.90,
        (_FIVE, "8 pairs", Verdict.SLOWER): 0.60,
        (LIKE, "8 pairs", Verdict.NOT_SLOWER): 0.50,
        (_TWO, "interim analyses at 8, 12, 16 pairs", Verdict.SLOWER): 0.80,
    },
}
ENOUGH_GATES = 200
MEASURED_LIMIT = 0.01
"""Largest error rate of gates from real processes.

It is reached only if noise is larger than the smallest relevant change.
"""


def gates_table(gates: Sequence[ComparisonVerdicts]) -> list[str]:
    """Returns the table of comparisons that are formed from real processes."""
    rows = []
    for one in gates:
        coins = "all ways" if one.complete else "drawn"
        counts = [one.verdicts[verdict] for verdict in _SHOWN]
        shares = [f"{n} ({percent_of(n / one.count)})" if one.count else "-" for n in counts]
        rows.append((one.plan, one.subject, coins, str(one.count), str(one.processes), *shares))
    header = ("gate", "B", "coins", "gates", "processes", *(v.value for v in _SHOWN))
    return table(header, rows)


def conditions(rounds: Sequence[Round]) -> list[str]:
    """Returns lines about the noise in the pool, and about the slowdowns of slowed programs."""
    processes = [process for one in rounds for process in one.values()]
    like = [one[name].speed for one in rounds for name in BASES]
    apart = [math.log(one[BASES[0]].speed / one[BASES[1]].speed) for one in rounds]
    others = sorted(process.others for process in processes if process.others is not None)
    loads = sorted(process.load for process in processes)
    steps = sorted(1000 * (one[name].step_seconds or 0.0) for one in rounds for name in BASES)
    lines = [
        f"- {len(processes)} processes in {len(rounds)} rounds, "
        f"{median(p.seconds for p in processes):.1f} s each; "
        f"median step {median(steps):.2f} ms, from {steps[0]:.2f} to {steps[-1]:.2f} ms",
        f"- scatter of like processes: {percent(standard_deviation([*map(math.log, like)]))} "
        f"(standard deviation of logarithms), of their "
        f"quotients within a round {percent(standard_deviation(apart))}",
        f"- load before a process: median {median(loads):.2f}, at most {loads[-1]:.2f}",
    ]
    if others:
        lines.append(
            f"- CPUs that others kept busy: median {median(others):.2f}, at most {others[-1]:.2f}"
        )
    for name in (name for name in rounds[0] if name not in BASES):
        quotients = [
            math.log(one[name].speed / math.sqrt(math.prod(one[base].speed for base in BASES)))
            for one in rounds
        ]
        shift = paired_shift(quotients, 0.95)
        text = f"- {name}, as measured over all rounds: {_change(shift.estimate)}"
        if shift.low is not None and shift.high is not None:
            text += f" (95 % interval {_change(shift.low)} to {_change(shift.high)})"
        lines.append(text)
    return lines


def requirements(gates: Sequence[ComparisonVerdicts], busy: float = 0.0) -> Iterator[Requirement]:
    """Yields the requirements for comparisons while other programs keep `busy` CPUs busy."""
    for one in gates:
        if one.subject == LIKE:
            limit = percent(MEASURED_LIMIT, 0)
            text = f"like with like, {one.plan}: at most {limit} red of {ENOUGH_GATES} or more"
            met = one.verdicts[Verdict.SLOWER] <= MEASURED_LIMIT * one.count
            yield _of_enough(one, text, _share(one, Verdict.SLOWER), met)
        if one.subject in (_TEN, WAITS):
            other = sum(one.verdicts[verdict] for verdict in PASSES)
            text = f"{one.subject}, {one.plan}: never same, not slower or faster"
            yield _of_enough(one, text, f"{other} of {one.count}", not other)
        for (subject, plan, verdict), bound in _POWER.get(busy, {}).items():
            if (subject, plan) == (one.subject, one.plan):
                word = "red" if verdict is Verdict.SLOWER else "same or not slower"
                verdicts = (verdict,) if verdict is Verdict.SLOWER else PASSES
                text = f"{subject}, {plan}: at least {percent(bound)} {word}"
                met = sum(one.verdicts[right] for right in verdicts) >= bound * one.count
                yield _of_enough(one, text, _share(one, *verdicts), met)


def _share(one: ComparisonVerdicts, *verdicts: Verdict) -> str:
    number = sum(one.verdicts[verdict] for verdict in verdicts)
    return f"{number} of {one.count} ({percent_of(number / max(one.count, 1))})"


def _of_enough(one: ComparisonVerdicts, text: str, found: str, met: bool) -> Requirement:
    return Requirement(f"real, {text}", found, met if one.count >= ENOUGH_GATES else None)


def _change(log: float) -> str:
    return percent(math.expm1(log), signed=True)
