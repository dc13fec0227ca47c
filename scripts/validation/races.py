"""How often the races of `cnnbench tune` lose their fastest candidate, on made-up speeds.

A race goes on until it ends by itself: time is never short.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from cnnbench.campaigns.tune.bench import ALPHA, RACED_SLOWER, Race, Round
from cnnbench.campaigns.tune.space import Candidate
from validation.simulation import surely_above
from validation.tables import Requirement, percent_of, table

SCATTER = 0.015
"""Standard deviation of the logarithms of the speeds of one candidate."""

_OTHERS = 0.03
_FOR_ALL = 0.05
_FASTEST = "0"

NOISIER = 12.0
"""Factor of the scatter of a candidate with noise of its own."""

SIZES = (3, 5, 9)
"""Numbers of candidates."""

KINDS = {"equal scatter": None, "the fastest is noisier": 0, "another one is noisier": 1}
"""Kinds of races, each with the candidate whose scatter is `NOISIER` times the others'."""


@dataclass(frozen=True)
class Races:
    """Results of races of one kind.

    Attributes:
      lost: races in which the fastest candidate left as slower.
      processes: mean number of them.
    """

    kind: str
    size: int
    draws: int
    lost: int
    processes: float

    @property
    def share(self) -> float:
        """Share of the races that lost the fastest."""
        return self.lost / self.draws

    @property
    def violation(self) -> bool:
        """Whether the fastest is surely lost more often than the stated share of races."""
        return surely_above(self.lost, self.draws, ALPHA)


def simulate(kind: str, size: int, draws: int, seed: int) -> Races:
    """Runs races; the fastest candidate is 3 % above the second, and so on downwards."""
    generator = np.random.default_rng([seed, zlib.crc32(f"{kind} {size}".encode())])
    scatters = np.full(size, SCATTER)
    if (noisy := KINDS[kind]) is not None:
        scatters[noisy] *= NOISIER
    speeds = -_OTHERS * np.arange(size)
    candidates = [Candidate(name=str(n), settings={}, flags={}, key=str(n)) for n in range(size)]
    lost = processes = 0
    for _ in range(draws):
        race = Race("made up", candidates)
        while not race.is_over:
            logs = speeds + generator.normal(0.0, _FOR_ALL) + generator.normal(0.0, scatters)
            found = {key: float(np.exp(logs[int(key)])) for key in race.remaining}
            race.add(Round(found))
            race.drop(10**6)
            processes += len(found)
        lost += any(one.key == _FASTEST and one.how == RACED_SLOWER for one in race.leavers)
    return Races(kind, size, draws, lost, processes / draws)


def races(draws: int, seed: int) -> tuple[list[str], list[Requirement]]:
    """A table of every kind of race of every size, and the stated error rate compared with it."""
    found = {kind: [simulate(kind, size, draws, seed) for size in SIZES] for kind in KINDS}
    rows = [
        (kind, *(f"{percent_of(one.share)} ({one.processes:.1f})" for one in those))
        for kind, those in found.items()
    ]
    bad = [
        f"{kind}, {one.size}: {percent_of(one.share)}"
        for kind, those in found.items()
        for one in those
        if one.violation
    ]
    text = f"tune: the fastest is lost in at most {100 * ALPHA:g} % of races"
    met = Requirement(text, "; ".join(bad) or "in all kinds", not bad)
    return table(("the fastest is lost", *(f"of {size}" for size in SIZES)), rows), [met]
