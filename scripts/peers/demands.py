"""Requirements of cnnbench, and whether the rounds show that it meets them.

A round is the unit: all subjects of a round met the same state of the machine, so values are
formed per round and averaged over rounds. Ratios are averaged as logarithms, which makes A/B
the inverse of B/A.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from cnnbench.base.inference import student_quantile
from peers.measurement import Key, Measurement, Reading, over

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


def estimate(values: Sequence[float], *, is_ratio: bool) -> Estimate:
    """Mean of one value per round, of ratios the geometric one, with Student's interval."""
    found = [math.log(value) for value in values] if is_ratio else values
    mean, count, half = statistics.fmean(found), len(found), math.inf
    if count > 1:
        half = student_quantile(0.025, count - 1) * statistics.stdev(found) / math.sqrt(count)
    back = math.exp if is_ratio else float
    return Estimate(back(mean), back(mean - half), back(mean + half), count)


@dataclasses.dataclass(frozen=True)
class Demand:
    """A requirement: a figure per round and the bound on its mean over rounds.

    Attributes:
      figure: The value of a round by the readings of its subjects; None when something is absent.
      bound: None for a figure that is only shown.
      text: Description; each ``{}`` stands for a subject.
      subjects: The subjects of `figure`; before `of`, without the one that has the demand.
      needs_bf16: Whether it is only required on CPUs with bfloat16 instructions.
    """

    figure: Callable[..., Any]
    bound: float | None
    text: str = "{} / {}"
    subjects: tuple[Key, ...] = ()
    at_most: bool = False
    is_ratio: bool = True
    needs_bf16: bool = False
    scenario: str = ""

    def of(self, scenario: str, subject: Key) -> Demand:
        """The demand on a subject of a scenario."""
        subjects = (subject, *self.subjects)
        text = self.text.format(*map(" ".join, subjects))
        return dataclasses.replace(self, scenario=scenario, subjects=subjects, text=text)


def against(
    other: str, bound: float, attribute: str = "images_per_sec", text: str = "", **how: Any
) -> Demand:
    """An attribute over that of another subject, ``name`` or ``name:dtype`` as in --only."""
    name, _, dtype = other.partition(":")
    figure = operator.attrgetter(attribute)

    def ratio(mine: Reading, other: Reading) -> float | None:
        return over(figure(mine), figure(other))

    return Demand(ratio, bound, f"{text}{{}} / {{}}", ((name, dtype or "fp32"),), **how)


def alone(text: str, attribute: str, bound: float, **how: Any) -> Demand:
    """An attribute of the subject itself, at most some bound or, of shares, at least."""
    return Demand(operator.attrgetter(attribute), bound, text, **how)


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result for a requirement.

    Attributes:
      estimate: Mean and interval, None without a single complete round.
      verdict: ``met`` or ``MISSED`` when the whole interval lies on one side of the bound,
        ``open`` when it does not, ``not measured``.
      note: Why it was not measured or is not required here.
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
    figures = [demand.figure(*(r[key] for key in demand.subjects)) for r in complete]
    values = [float(value) for value in figures if value is not None]
    if not values:
        note = "no such figure" if complete else _why_absent(demand, measurements)
        return Finding(demand, None, NOT_MEASURED, note)
    mean = estimate(values, is_ratio=demand.is_ratio)
    if demand.needs_bf16 and not cpu_has_bf16:
        return Finding(demand, mean, OPEN, "not demanded: no bf16 instructions in this CPU")
    return Finding(demand, mean, _verdict(demand, mean))


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
    for m in measurements:
        if m.scenario == demand.scenario and (m.subject, m.dtype) in demand.subjects and m.reason:
            return f"{m.subject} {m.dtype} {m.status}: {m.reason}"
    return "not asked for"
