"""Compares the verdicts of `cnnbench ab` with the rules of tools that users know.

All rules get the same machine time: the time of 16 processes of A and 16 of B. Each process yields
the times of `SLICES` equal parts of its steps. The rules are those of the tools' documentation and
source code, with their default settings. The tools measure all of A before all of B by default:

* asv compare: Mann-Whitney U test of all samples at 0.002, and the ratio of the medians exceeds the
  factor, by default 1.1 (`asv/_stats.py`, `asv/commands/compare.py`).
* benchstat: Mann-Whitney U test of the runs at 0.05 (golang.org/x/perf/cmd/benchstat).
* hyperfine: B's mean exceeds A's by more than the standard deviation of the ratio, "1.05 ± 0.02
  times slower" (`src/benchmark/relative_speed.rs`).
* pyperf compare_to: Student's t test of all values at 0.05 (`pyperf/_utils.py`).
* criterion: of one long process each, the p value of the difference of the means of the samples is
  below 0.05, and the 95 % interval of the relative change exceeds the noise threshold of 1 %. The
  bootstrap of the means is replaced by the normal distribution to which it converges.
* two runs: the ratio of the speeds of one long process each exceeds 3 %, as in a script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy  # which loads scipy.stats when it is used

from cnnbench.base.text import percent
from cnnbench.judge.compare import Verdict
from validation.studies import (
    Case,
    Generator,
    Series,
    Study,
    Sums,
    all_kept,
    share_of,
    surely_above,
)
from validation.verdicts import LIMIT, NOISES, RULES, SEQUENTIAL, correlated

SLICES = 20
"""Number of equal parts of a process's steps, each with its mean time."""

_PROCESSES = 16
_WITHIN, _CORRELATION = 0.02, 0.3  # Scatter and correlation of the parts of one process.
_OVER_TIME = ("AR(1), 0.9, 3 %", "two regimes, x 0.59", "drift of 20 %")
"""Kinds of noise that change during a long process. Others are drawn once per process."""

_SECONDS = 10.0  # Wall time of a process, for the column with the minutes.

Decide = Callable[[Series, Series], bool]
"""Whether B is slower, from the times of A and of B: one row per process, one column per part."""


def _means(values: Series) -> Series:
    means: Series = values.mean(axis=1)
    return means


def _asv(a: Series, b: Series, factor: float = 1.1) -> bool:
    different = scipy.stats.mannwhitneyu(a.ravel(), b.ravel()).pvalue < 0.002
    return bool(different and np.median(b) > factor * np.median(a))


def _benchstat(a: Series, b: Series) -> bool:
    first, second = _means(a), _means(b)
    differs = scipy.stats.mannwhitneyu(first, second).pvalue < 0.05
    return bool(differs and np.median(second) > np.median(first))


def _hyperfine(a: Series, b: Series) -> bool:
    first, second = _means(a), _means(b)
    ratio = second.mean() / first.mean()
    shares = [runs.std(ddof=1) / runs.mean() for runs in (first, second)]
    return bool(ratio - 1 > ratio * math.hypot(*shares))


def _pyperf(a: Series, b: Series) -> bool:
    return bool(scipy.stats.ttest_ind(a.ravel(), b.ravel()).pvalue < 0.05 and b.mean() > a.mean())


def _criterion(a: Series, b: Series) -> bool:
    first, second = a.ravel(), b.ravel()
    errors = [runs.std(ddof=1) / runs.mean() / math.sqrt(len(runs)) for runs in (first, second)]
    change, error = second.mean() / first.mean() - 1, math.hypot(*errors)
    return bool(change - 1.96 * (1 + change) * error > 0.01)


def _two_runs(a: Series, b: Series) -> bool:
    return bool(b.mean() > 1.03 * a.mean())


@dataclass(frozen=True)
class _Tool:
    """A tool with its rule, and the number of long or short processes of A and of B."""

    decide: Decide
    processes: int = _PROCESSES


CNNBENCH = "cnnbench ab"
TOOLS: Mapping[str, _Tool] = {
    "asv, factor 1.1": _Tool(_asv),
    "asv, factor 1.03": _Tool(partial(_asv, factor=1.03)),
    "benchstat": _Tool(_benchstat),
    "hyperfine": _Tool(_hyperfine),
    "pyperf compare_to": _Tool(_pyperf),
    "criterion": _Tool(_criterion, 1),
    "two runs, 3 %": _Tool(_two_runs, 1),
}
"""The tools besides cnnbench, in the order of the tables."""


def _long_speeds(generator: Generator, noise: str, processes: int) -> Series:
    """Draws the speed of each process, first those of A. A long process has the length of several
    short ones.
    """
    if processes == _PROCESSES or noise in _OVER_TIME:
        speeds = NOISES[noise](generator, 2 * _PROCESSES).reshape(2 * processes, -1)
        return _means(speeds)
    return NOISES[noise](generator, 2 * processes)


def _parts(generator: Generator, processes: int) -> Series:
    """Draws the factors of the times of the parts of each process, with autocorrelation."""
    count = SLICES * _PROCESSES // processes
    shocks = generator.normal(0.0, _WITHIN, (processes, count))
    found: Series = np.exp(correlated(shocks, _CORRELATION))
    return found


def simulate_tool(generator: Generator, tool: str, noise: str, truth: float) -> dict[Any, float]:
    """Simulates an experiment with a tool, in which B is slower by `truth`."""
    if tool == CNNBENCH:
        rule = RULES[SEQUENTIAL]
        speeds = NOISES[noise](generator, rule.processes)
        speeds = speeds / _parts(generator, rule.processes)[:, :SLICES].mean(axis=1)
        verdict, used = rule.judged(*rule.sides(speeds, 1 - truth, generator))
        return {"slower": verdict is Verdict.SLOWER, "processes": used, verdict.value + "!": 1}
    chosen = TOOLS[tool]
    each = chosen.processes
    speeds = _long_speeds(generator, noise, each)
    times = _parts(generator, 2 * each) / speeds[:, None]
    slower = chosen.decide(times[:each], times[each:] / (1 - truth))
    return {"slower": slower, "processes": 2 * _PROCESSES}


_KINDS = (
    *("normal, 1.3 %", "normal, 3 %", "normal, 6.9 % (pairs 9.8 %)", "heavy tails, t(1.5)"),
    *("one in five has a neighbour", "two regimes, x 0.59", "drift of 20 %"),
)
TRUTHS = (0.0, 0.05, 0.10)


def _cells(found: Sequence[Sums]) -> list[str]:
    used = [one["processes"] / one["draws"] * _SECONDS / 60 for one in found]
    passing = ("same!", "not slower!", "faster!")
    undecided = 1 - (found[0]["slower"] + sum(found[0][one] for one in passing)) / found[0]["draws"]
    return [
        *(share_of(one, "slower") for one in found),
        percent(undecided) if any(found[0][one] for one in passing) else "-",
        f"{used[0]:.1f}",
        f"{used[-1]:.1f}",
    ]


def _violation(found: Sums, tool: str, noise: str, truth: float) -> str:
    """Returns a text if cnnbench calls equal programs slower more often than it promises."""
    counted = tool == CNNBENCH and not truth
    if counted and surely_above(int(found["slower"]), found["draws"], LIMIT):
        return f"{noise}: {share_of(found, 'slower')}"
    return ""


OTHER_RULES = Study(
    header=(
        *("rule", "equal: slower", "5 % slower: found", "10 % slower: found"),
        *("equal: undecided", "minutes, equal", "10 % slower"),
    ),
    tables={
        f"**{noise}**": {
            (tool,): [(tool, noise, truth) for truth in TRUTHS] for tool in (CNNBENCH, *TOOLS)
        }
        for noise in _KINDS
    },
    draw=simulate_tool,
    cells=_cells,
    judge=all_kept(
        f"simulated: cnnbench ab calls equal programs slower in at most {100 * LIMIT:g} %",
        _violation,
        "with every kind of noise",
    ),
)
"""Every rule with every kind of noise: false positives, found slowdowns and time."""


_OFTEN = "normal, 3 %"
_SLOWDOWNS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.10)
SHARE_COLUMNS = (
    *("rule", "noise", "true slowdown of B (%)"),
    "B is called slower (% of experiments)",
)
"""Headings of the table of docs/evidence that shows how often each rule calls B slower."""


def share_cases() -> list[Case]:
    """Returns the cases of the table with the columns `SHARE_COLUMNS`: all slowdowns with steady
    noise, and equal programs on machines whose speed changes.
    """
    rules = (CNNBENCH, *TOOLS)
    steady = [(rule, _OFTEN, slowdown) for rule in rules for slowdown in _SLOWDOWNS]
    changing = ("drift of 20 %", "two regimes, x 0.59")
    return [*steady, *((rule, noise, 0.0) for noise in changing for rule in rules)]
