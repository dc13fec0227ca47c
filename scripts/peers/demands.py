"""Requirements of cnnbench, and whether the rounds show that it meets them.

A round is the unit: all subjects of a round met the same state of the machine, so values are
formed per round and averaged over rounds. Ratios are averaged as logarithms, which makes A/B
the inverse of B/A.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from peers.measurement import Measurement, Reading

Key = tuple[str, str]
Round = Mapping[Key, Reading]

MET, MISSED, OPEN, NOT_MEASURED = "met", "MISSED", "open", "not measured"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over rounds and its 95 % interval.

    Attributes:
      mean: Arithmetic or geometric mean.
      low: Lower end of the interval; minus infinity (0 for ratios) from one round.
      high: Upper end of the interval.
    """

    mean: float
    low: float
    high: float
    rounds: int


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Arithmetic mean of one value per round, with Student's interval."""
    if not values:
        raise ValueError("no values")
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    from scipy.stats import t

    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


def ratio_estimate(ratios: Sequence[float]) -> Estimate:
    """Geometric mean of one ratio per round."""
    if any(ratio <= 0 for ratio in ratios):
        raise ValueError(f"ratios must be positive: {list(ratios)}")
    logs = mean_estimate([math.log(ratio) for ratio in ratios])
    return Estimate(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high), logs.rounds)


@dataclasses.dataclass(frozen=True)
class Demand:
    """A figure per round and the bound on its mean over rounds.

    Attributes:
      figure: The value of a round; None when something it needs is absent.
      bound: None for a figure that is only shown.
      needs_bf16: Whether it is only demanded of CPUs with bfloat16 instructions.
    """

    scenario: str
    text: str
    subjects: tuple[Key, ...]
    figure: Callable[[Any], float | None]
    bound: float | None
    at_most: bool = False
    is_ratio: bool = True
    needs_bf16: bool = False


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result for a requirement.

    Attributes:
      estimate: Mean and interval, None without a single complete round.
      verdict: ``met`` or ``MISSED`` when the whole interval lies on one side of the bound,
        ``open`` when it does not, ``not measured``.
      note: Why it was not measured or is not demanded here.
    """

    demand: Demand
    estimate: Estimate | None
    verdict: str
    note: str = ""


def judge(demand: Demand, measurements: Sequence[Measurement], cpu_has_bf16: bool) -> Finding:
    """Forms the figure per complete round and compares the mean with the bound.

    With ``needs_bf16`` and no such instructions the figure is shown, not judged.
    """
    rounds: dict[int, dict[Key, Reading]] = {}
    for m in measurements:
        if m.scenario == demand.scenario and m.reading is not None:
            rounds.setdefault(m.round, {})[(m.subject, m.dtype)] = m.reading
    complete = [r for r in rounds.values() if all(key in r for key in demand.subjects)]
    values = [value for r in complete if (value := demand.figure(r)) is not None]
    if not values:
        note = "no such figure" if complete else _why_absent(demand, measurements)
        return Finding(demand, None, NOT_MEASURED, note)
    estimate = ratio_estimate(values) if demand.is_ratio else mean_estimate(values)
    if demand.needs_bf16 and not cpu_has_bf16:
        return Finding(demand, estimate, OPEN, "not demanded: no bf16 instructions in this CPU")
    return Finding(demand, estimate, _verdict(demand, estimate))


def _verdict(demand: Demand, estimate: Estimate) -> str:
    if demand.bound is None:
        return ""
    worst, best = estimate.low, estimate.high
    if demand.at_most:
        worst, best = -estimate.high, -estimate.low
    bound = -demand.bound if demand.at_most else demand.bound
    if worst >= bound:
        return MET
    return MISSED if best < bound else OPEN


def _why_absent(demand: Demand, measurements: Sequence[Measurement]) -> str:
    for subject, dtype in demand.subjects:
        for m in measurements:
            same = (m.scenario, m.subject, m.dtype) == (demand.scenario, subject, dtype)
            if same and m.reason:
                return f"{subject} {dtype} {m.status}: {m.reason}"
    return "not asked for"
