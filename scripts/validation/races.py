"""Simulates how often races of `cnnbench tune` eliminate the fastest candidate.

Races have no time limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cnnbench.campaigns.tune.race import ALPHA, RACED_SLOWER, CandidateRace, RaceRound
from cnnbench.campaigns.tune.space import Candidate
from validation.studies import Generator, Study, Sums, all_kept, share_of, surely_above

SCATTER = 0.015
"""Standard deviation of the logarithms of the speeds of one candidate."""

_DISTANCE = 0.03
_FOR_ALL = 0.05

_NOISIER = 12.0
SIZES = (3, 5, 9)
"""Numbers of candidates."""

KINDS = {"equal scatter": None, "the fastest is noisier": 0, "another one is noisier": 1}
"""Kinds of races, each with the candidate whose standard deviation is `_NOISIER` times as large."""


def simulate_race(generator: Generator, kind: str, size: int) -> dict[Any, float]:
    """Simulates a race. Each candidate is 3 % faster than the next one."""
    scatters = np.full(size, SCATTER)
    if (noisy := KINDS[kind]) is not None:
        scatters[noisy] *= _NOISIER
    names = map(str, range(size))
    race = CandidateRace(
        "made up", [Candidate(name=n, settings={}, flags={}, key=n) for n in names]
    )
    processes = 0
    while not race.is_over:
        logs = generator.normal(0.0, _FOR_ALL) + generator.normal(0.0, scatters)
        logs -= _DISTANCE * np.arange(size)
        found = {key: float(np.exp(logs[int(key)])) for key in race.remaining}
        race.add_round(RaceRound([found]))
        race.eliminate_after_round(10**6)
        processes += len(found)
    lost = "0" in race.eliminated and race.eliminated["0"].left == RACED_SLOWER
    return {"lost": lost, "processes": processes}


def violation(found: Sums, kind: str, size: int) -> str:
    """Returns a text if significantly too many races eliminate the fastest candidate, else ""."""
    above = surely_above(found["lost"], found["draws"], ALPHA)
    return f"{kind}, {size}: {share_of(found, 'lost')}" if above else ""


RACES = Study(
    header=("the fastest is lost", *(f"of {size}" for size in SIZES)),
    tables={"": {(kind,): [(kind, size) for size in SIZES] for kind in KINDS}},
    draw=simulate_race,
    cells=lambda found: [
        f"{share_of(one, 'lost')} ({one['processes'] / one['draws']:.1f})" for one in found
    ],
    judge=all_kept(
        f"tune: the fastest is lost in at most {100 * ALPHA:g} % of races",
        violation,
        "in all kinds",
    ),
)
"""Every kind of race of every size."""
