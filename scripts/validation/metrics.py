"""Simulates how often one of several metrics gives the verdict slower if A and B are equal.

The metrics either share alpha, or have alpha each. There is no smallest relevant change, so a
verdict is the result of the test alone. Metrics of a configuration may be correlated, like
throughput and CPU time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cnnbench.judge.compare import METRICS, Case, Metric, Samples, Verdict, judge_all
from validation.studies import (
    POLICY,
    Generator,
    Study,
    Sums,
    all_kept,
    percent_of,
    surely_above,
)

PAIRS = 12
NAMES = ("throughput", "cpu_time", "images_per_sec", "energy_joules")
"""Metrics without their own threshold, which are tested at the significance level alpha."""

LIMIT = POLICY.alpha / 2
_SCATTER = 0.02
SHARED, SEPARATE = "shared", "separate"


def simulate_equals(
    generator: Generator, metrics: int, configurations: int, correlation: float
) -> dict[Any, float]:
    """Returns whether any metric is slower, if metrics share alpha and if each metric has alpha."""
    shape = (configurations, 1, PAIRS)
    common = generator.normal(size=shape) * math.sqrt(correlation)
    own = generator.normal(size=(configurations, metrics, PAIRS)) * math.sqrt(1 - correlation)
    values = np.exp(_SCATTER * (common + own)).tolist()
    tested: list[Metric] = [METRICS[name] for name in NAMES[:metrics]]
    found: dict[Any, float] = {}
    for name, share in ((SHARED, 1 / metrics), (SEPARATE, None)):
        policy = POLICY.replace(threshold=0.0, share=share)
        cases = [
            Case(
                Samples(
                    base=[1.0] * PAIRS,
                    # For metrics where lower is better, values are inverted.
                    new=one if metric.higher_is_better else [1 / value for value in one],
                    metric=metric,
                    paired=True,
                ),
                policy,
            )
            for configuration in values
            for metric, one in zip(tested, configuration, strict=True)
        ]
        found[name] = any(one.verdict is Verdict.SLOWER for one in judge_all(cases))
    return found


def violation(found: Sums, *case: Any) -> str:
    """Returns the error rate of metrics that share alpha if it exceeds alpha / 2; otherwise ""."""
    if not surely_above(found[SHARED], found["draws"], LIMIT):
        return ""
    return f"{case}: {percent_of(found[SHARED] / found['draws'])}"


def _cells(found: Sequence[Sums]) -> list[str]:
    (one,) = found
    return [percent_of(one[name] / one["draws"]) for name in (SHARED, SEPARATE)]


_CASES: Mapping[str, tuple[int, int, float]] = {
    "1 metric": (1, 1, 0.0),
    "2 metrics": (2, 1, 0.0),
    "2 metrics, correlation 0.9": (2, 1, 0.9),
    "4 metrics": (4, 1, 0.0),
    "4 metrics, correlation 0.9": (4, 1, 0.9),
    "2 metrics of 5 configurations": (2, 5, 0.0),
}

SEVERAL_METRICS = Study(
    header=("equal sides", "alpha is shared", "each metric has alpha"),
    tables={"": {(name,): [case] for name, case in _CASES.items()}},
    draw=simulate_equals,
    cells=_cells,
    judge=all_kept(
        f"several metrics: equal sides are slower in at most {percent_of(LIMIT)}",
        violation,
        "in all cases",
    ),
)
"""Numbers of metrics and of configurations, each metric with the same correlation to the others."""
