"""Simulates what `cnnbench ab` gains if it chooses the lengths of processes from the noise.

The logarithm of the speed of a process has a standard deviation between processes, and a variance
from its steps, which is inversely proportional to its seconds of timed steps. An experiment with
chosen lengths is compared with one whose processes have five seconds of timed steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cnnbench.base.inference import interim_analyses
from cnnbench.campaigns.ab.futility import SMALLEST_CHANCE, clear_verdict_probability
from cnnbench.campaigns.ab.lengths import (
    PairSample,
    VerdictPlan,
    choose_seconds,
    estimate_noise,
)
from cnnbench.judge.compare import Samples, Verdict, judge
from validation.studies import (
    POLICY,
    Case,
    Generator,
    Requirement,
    Study,
    Sums,
    all_kept,
    share_of,
    surely_above,
)
from validation.verdicts import CLEAR, LIMIT, PASSES

_FIXED, _BURN_IN, _STEP = 5.0, 0.3, 0.02  # Seconds of timed steps, in a burn-in, of a step.
_ANALYSES = interim_analyses(16, POLICY.alpha)


class Machine(NamedTuple):
    """Noise of a machine: deviation between processes, deviation of steps, seconds of start-up."""

    between: float
    steps: float
    startup: float


MACHINES: Mapping[str, Machine] = {
    "processes 1 %, steps 7 %": Machine(0.01, 0.07, 6.0),
    "processes 1.3 %, steps 7 %": Machine(0.013, 0.07, 6.0),
    "processes 3 %, steps 7 %": Machine(0.03, 0.07, 6.0),
    "processes 1 %, steps 35 %": Machine(0.01, 0.35, 6.0),
    "processes 1 %, steps 80 %": Machine(0.01, 0.80, 6.0),
    "processes 1 %, steps 35 %, start-up 20 s": Machine(0.01, 0.35, 20.0),
}
"""Simulated machines. The start-up takes six seconds unless the name says otherwise."""

TRUTHS = (0.0, 0.05, 0.10)
"""True slowdowns of B."""


def simulate_experiment(
    generator: Generator, machine: str, truth: float, chooses: bool
) -> dict[Any, float]:
    """Simulates an experiment; returns its verdict, and its wall time in seconds."""
    between, steps, startup = MACHINES[machine]
    within = steps**2 * _STEP

    def sample(difference: float | None, seconds: float, batches: int) -> PairSample:
        freedom = batches - 1
        measured = 2 * within * generator.chisquare(freedom) / freedom * math.exp(1 / freedom)
        return PairSample(difference, measured, seconds, startup, _STEP, False)

    samples = [sample(None, _BURN_IN, 4)]
    base: list[float] = []
    new: list[float] = []
    spent = 2 * (startup + _BURN_IN)
    for made in range(len(_ANALYSES)):
        seconds = _FIXED
        if chooses:
            looks = _ANALYSES[:made], _ANALYSES[made:]
            margin = math.log1p(POLICY.threshold)
            plan = VerdictPlan(made=looks[0], left=looks[1], alpha=POLICY.alpha, margin=margin)
            seconds = choose_seconds(estimate_noise(samples), plan)
        samples = samples if made else []
        while len(base) < _ANALYSES[made].pairs:
            a, b = generator.normal(0.0, math.sqrt(between**2 + within / seconds), 2)
            base.append(math.exp(a))
            new.append(math.exp(b) * (1 - truth))
            samples.append(sample(abs(math.log(new[-1] / base[-1])), seconds, 10))
            spent += 2 * (startup + seconds)
        speeds = Samples(base, new, paired=True, looks=_ANALYSES[: made + 1])
        found = judge(speeds, POLICY)
        left = _ANALYSES[made + 1 :]
        if found.verdict in CLEAR or not left:
            break
        if clear_verdict_probability(speeds, left) < SMALLEST_CHANCE:
            break
    return {found.verdict: 1, "seconds": spent}


def _violation(found: Sums, machine: str, truth: float, chooses: bool) -> str:
    """Returns a text about a rate of false positives above the stated one, or ""."""
    if truth or not chooses or not surely_above(found[Verdict.SLOWER], found["draws"], LIMIT):
        return ""
    return f"{machine}: slower in {share_of(found, Verdict.SLOWER)}"


def _cells(found: Sequence[Sums]) -> Iterable[str]:
    for at in range(0, len(found), 2):
        fixed, chosen = found[at : at + 2]
        right = PASSES if at == 0 else (Verdict.SLOWER,)
        yield f"{share_of(fixed, *right)}; {share_of(chosen, *right)}"
        times = (each["seconds"] / each["draws"] for each in (fixed, chosen))
        yield "; ".join(f"{seconds:.0f}" for seconds in times)


def _judged(found: Mapping[Case, Sums]) -> list[Requirement]:
    text = f"chosen lengths: equal programs are slower in at most {100 * LIMIT:g} %"
    return all_kept(text, _violation, "in all cases")(found)


LENGTHS = Study(
    header=(
        *("noise; fixed 5 s; chosen", "equal: decided", "seconds"),
        *("5 % slower: slower", "seconds", "10 % slower: slower", "seconds"),
    ),
    tables={
        "": {
            (machine,): [(machine, truth, chooses) for truth in TRUTHS for chooses in (False, True)]
            for machine in MACHINES
        }
    },
    draw=simulate_experiment,
    cells=_cells,
    judge=_judged,
    part=4,
)
"""Shares of right verdicts and wall times with fixed and with chosen lengths."""
