"""Simulates comparisons of several configurations, of which some or none have changed.

The test of each configuration is corrected for the number of configurations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cnnbench.base.inference import interim_analyses
from cnnbench.judge.compare import Case as JudgedCase
from cnnbench.judge.compare import Samples, Verdict, judge_all
from validation.studies import (
    POLICY,
    Case,
    Generator,
    Requirement,
    Study,
    Sums,
    percent_of,
    surely_above,
    surely_below,
)
from validation.verdicts import LIMIT, PASSES

PAIRS = "pairs"
"""Experiments of up to 16 pairs with interim analyses."""

PROCESSES = "processes"
"""Comparisons of 7 processes of BASE with 7 of NEW."""

_ANALYSES = interim_analyses(16, POLICY.alpha)

CASES: Sequence[tuple[str, int, float, float, float]] = (
    *((PAIRS, size, 0.03, 0.0, 0.0) for size in (1, 4, 16)),
    (PROCESSES, 300, 0.013, 0.0, 0.0),
    *((PAIRS, size, 0.03, 0.25, 0.10) for size in (4, 16)),
    (PROCESSES, 300, 0.013, 0.5, 0.20),
)
"""Kind of comparison, number of configurations, standard deviation of processes, share of changed
configurations, and their slowdown.
"""

_FOUND = {PAIRS: 0.95, PROCESSES: 0.90}


def simulate_suite(
    generator: Generator, kind: str, size: int, scatter: float, changed: float, slowdown: float
) -> dict[Any, float]:
    """Simulates a comparison; counts its configurations, verdicts, and false reports."""
    slow = round(size * changed)
    truths = np.where(np.arange(size) < slow, np.log1p(-slowdown), 0.0)
    verdicts = (_of_pairs if kind == PAIRS else _of_processes)(generator, truths, scatter)
    reported = [
        place for place, one in enumerate(verdicts) if one in (Verdict.SLOWER, Verdict.FASTER)
    ]
    false = [place for place in reported if place >= slow or verdicts[place] is Verdict.FASTER]
    return {
        "any slower": any(verdicts[place] is Verdict.SLOWER for place in false),
        "changed": slow,
        "found": sum(one is Verdict.SLOWER for one in verdicts[:slow]),
        "false share": len(false) / max(1, len(reported)),
        "equal": size - slow,
        "decided": sum(one in PASSES for one in verdicts[slow:]),
    }


def _of_pairs(generator: Generator, truths: Any, scatter: float) -> list[Verdict]:
    base = np.exp(generator.normal(0.0, scatter, (len(truths), 16)))
    new = np.exp(generator.normal(truths[:, None], scatter, (len(truths), 16)))
    for number, analysis in enumerate(_ANALYSES, start=1):
        samples = [
            Samples(
                base=a[: analysis.pairs].tolist(),
                new=b[: analysis.pairs].tolist(),
                paired=True,
                looks=_ANALYSES[:number],
            )
            for a, b in zip(base, new, strict=True)
        ]
        verdicts = _verdicts(samples)
        if Verdict.INCONCLUSIVE not in verdicts:
            break
    return verdicts


def _of_processes(generator: Generator, truths: Any, scatter: float) -> list[Verdict]:
    sides = [
        np.exp(generator.normal(centres[:, None], scatter, (len(truths), 7))).tolist()
        for centres in (np.zeros(len(truths)), truths)
    ]
    return _verdicts([Samples(a, b) for a, b in zip(*sides, strict=True)])


def _verdicts(samples: Sequence[Samples]) -> list[Verdict]:
    return [one.verdict for one in judge_all([JudgedCase(one, POLICY) for one in samples])]


def _cells(found: Sequence[Sums]) -> list[str]:
    (one,) = found
    power = percent_of(one["found"] / one["changed"]) if one["changed"] else "-"
    return [
        percent_of(one["any slower"] / one["draws"]),
        power,
        percent_of(one["false share"] / one["draws"]),
        percent_of(one["decided"] / one["equal"]) if one["equal"] else "-",
    ]


def judged(found: Mapping[Case, Sums]) -> list[Requirement]:
    """Returns the requirements for false alarms, for the share of false reports, and for power."""
    alarms, shares, power = [], [], []
    for (kind, size, *_), one in found.items():
        name, draws = f"{size} of {kind}", one["draws"]
        if not one["changed"]:
            if surely_above(one["any slower"], draws, LIMIT):
                alarms.append(f"{name}: {percent_of(one['any slower'] / draws)}")
        else:
            if surely_above(round(one["false share"]), draws, POLICY.alpha):
                shares.append(f"{name}: {percent_of(one['false share'] / draws)}")
            if surely_below(one["found"], one["changed"], _FOUND[kind]):
                power.append(f"{name}: {percent_of(one['found'] / one['changed'])}")
    texts = {
        f"suites: equal configurations are slower in at most {100 * LIMIT:g} % of suites": alarms,
        f"suites: at most {100 * POLICY.alpha:g} % of the reported changes are false": shares,
        "suites: changes are found in at least 95 % (pairs) and 90 % (processes)": power,
    }
    return [Requirement(text, "; ".join(bad) or "in all", not bad) for text, bad in texts.items()]


SUITES = Study(
    header=(
        "suite",
        "equal ones: any slower",
        "changed: found",
        "reports: false",
        "equal: decided",
    ),
    tables={
        "": {
            (f"{size} by {kind}, {percent_of(changed)} of them {percent_of(slowdown)} slower",): [
                (kind, size, scatter, changed, slowdown)
            ]
            for kind, size, scatter, changed, slowdown in CASES
        }
    },
    draw=simulate_suite,
    cells=_cells,
    judge=judged,
    part=10,
)
"""Suites of equal configurations, and suites in which some have changed."""
