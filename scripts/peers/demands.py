"""Requirements of cnnbench, whether measured rounds meet them, and tables of results.

All programs of a round run in the same state of the machine, so values are computed per round and
averaged over rounds. Ratios are averaged as logarithms, so that the mean of A/B is the inverse of
the mean of B/A.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cnnbench.base.stats import median, student_quantile
from cnnbench.base.tables import align_table
from cnnbench.base.text import format_bytes, number, percent
from peers.readings import OK, Key, Measurement, Reading, over

MET, MISSED, OPEN, NOT_MEASURED = "met", "MISSED", "open", "not measured"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Mean over rounds with its 95 % interval.

    Attributes:
      mean: Arithmetic or geometric mean.
      low: Lower end of the interval; with one round, minus infinity (0 for ratios).
      high: Upper end of the interval.
    """

    mean: float
    low: float
    high: float
    rounds: int


def estimate(values: Sequence[float], *, is_ratio: bool) -> Estimate:
    """Returns the mean of one value per round (for ratios, geometric), with Student's interval."""
    found = [math.log(value) for value in values] if is_ratio else values
    mean, count, half = statistics.fmean(found), len(found), math.inf
    if count > 1:
        half = student_quantile(0.025, count - 1) * statistics.stdev(found) / math.sqrt(count)
    back = math.exp if is_ratio else float
    return Estimate(back(mean), back(mean - half), back(mean + half), count)


@dataclasses.dataclass(frozen=True)
class Demand:
    """A requirement: a value per round, and a bound for its mean over rounds.

    Attributes:
      figure: Function that computes the value of a round from the readings of `subjects`; None if
        a reading lacks the values.
      bound: Bound of the mean; None for a value that is only shown.
      text: Description; each ``{}`` stands for a subject.
      subjects: The subjects whose readings `figure` uses; before `for_subject`, without the subject
        that has the requirement.
      needs_bf16: Whether the requirement applies only to CPUs with bfloat16 instructions.
    """

    figure: Callable[..., Any]
    bound: float | None
    text: str = "{} / {}"
    subjects: tuple[Key, ...] = ()
    at_most: bool = False
    is_ratio: bool = True
    needs_bf16: bool = False
    scenario: str = ""

    def for_subject(self, scenario: str, subject: Key) -> Demand:
        """Applies the requirement to a subject of a scenario."""
        subjects = (subject, *self.subjects)
        text = self.text.format(*map(" ".join, subjects))
        return dataclasses.replace(self, scenario=scenario, subjects=subjects, text=text)


def require_ratio(
    other: str, bound: float | None, attribute: str = "images_per_sec", text: str = "", **how: Any
) -> Demand:
    """Requires a ratio: an attribute of the subject divided by that of another subject."""
    name, _, dtype = other.partition(":")
    figure = operator.attrgetter(attribute)

    def ratio(mine: Reading, other: Reading) -> float | None:
        return over(figure(mine), figure(other))

    return Demand(ratio, bound, f"{text}{{}} / {{}}", ((name, dtype or "fp32"),), **how)


def require_value(text: str, attribute: str, bound: float, **how: Any) -> Demand:
    """Requires that an attribute of the subject itself reaches a bound.

    With ``at_most=True``, the attribute must not exceed the bound.
    """
    return Demand(operator.attrgetter(attribute), bound, text, **how)


@dataclasses.dataclass(frozen=True)
class Finding:
    """The measured result for one requirement.

    Attributes:
      estimate: Mean and interval; None if no round is complete.
      verdict: ``met`` or ``MISSED`` if the whole interval is above or below the bound, ``open`` if
        the interval contains the bound, or ``not measured``.
      note: Why the value was not measured or is not required on this machine.
    """

    demand: Demand
    estimate: Estimate | None
    verdict: str
    note: str = ""


def judge(demand: Demand, measurements: Sequence[Measurement], cpu_has_bf16: bool) -> Finding:
    """Computes the value of each complete round, and compares the mean with the bound.

    If the requirement needs bfloat16 instructions and the CPU has none, the value is only shown.
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


# Tables of speeds and of requirements.

# If other processes keep more than this share of the CPUs busy, measurements are not reliable.
QUIET = 0.05


def subjects_table(measurements: Sequence[Measurement], order: Sequence[str]) -> list[str]:
    """Table of medians over rounds for every subject, and why some subjects did not run.

    `order` has the names of all scenarios.
    """
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in sorted(measurements, key=lambda m: (order.index(m.scenario), m.subject, m.dtype)):
        groups.setdefault((m.scenario, m.subject, m.dtype), []).append(m)
    rows: list[tuple[str, ...]] = [
        (
            *("scenario", "subject", "dtype", "rounds"),
            *("median images/sec", "median step", "peak memory", "other"),
        )
    ]
    notes = []
    for (scenario, subject, dtype), group in groups.items():
        readings = [m.reading for m in group if m.status == OK and m.reading is not None]
        rows.append((scenario, subject, dtype, str(len(readings)), *_figures(readings)))
        reasons = dict.fromkeys(f"{m.status}: {m.reason}" for m in group if m.status != OK)
        notes += [f"{scenario}, {subject} {dtype} {reason}" for reason in reasons]
    return align_table(rows, left=(0, 1, 2)) + notes


# For each column, attributes of a reading with formats; the first known attribute is shown.
_COLUMNS: Sequence[Mapping[str, Callable[[float], str]]] = (
    {"images_per_sec": "{:.2f}".format},
    {"median_step_seconds": lambda seconds: f"{1e3 * seconds:.2f} ms"},
    {"peak_bytes": format_bytes},
    {
        "achieved_flops_per_sec": lambda flops: f"{number(flops / 1e9)} GFLOP/s",
        "share_of_bare_loop": lambda share: f"{percent(share)} of bare loop",
        "seconds": "{:.3f} s".format,
        "bytes_last": format_bytes,
    },
)


def _figures(readings: Sequence[Reading]) -> list[str]:
    def middle(attribute: str) -> float | None:
        values = [getattr(reading, attribute) for reading in readings]
        known = [value for value in values if value is not None]
        return median(known) if known else None

    def shown(column: Mapping[str, Callable[[float], str]]) -> str:
        found = ((text, middle(attribute)) for attribute, text in column.items())
        return next((text(value) for text, value in found if value is not None), "")

    return [shown(column) for column in _COLUMNS]


def demands_table(findings: Sequence[Finding]) -> list[str]:
    """Table of all requirements: mean, 95 % interval over rounds, bound and verdict."""
    rows = [("scenario", "figure", "mean", "95 % interval", "bound", "rounds", "verdict")]
    for finding in findings:
        demand, estimate = finding.demand, finding.estimate
        bound = ""
        if demand.bound is not None:
            bound = f"{'<=' if demand.at_most else '>='} {demand.bound:.2f}"
        mean, interval, rounds = "", "", "0"
        if estimate is not None:
            mean, rounds = f"{estimate.mean:.3f}", str(estimate.rounds)
            if estimate.rounds > 1:
                interval = f"{estimate.low:.3f} .. {estimate.high:.3f}"
        note = f" ({finding.note})" if finding.note else ""
        rows.append(
            (demand.scenario, demand.text, mean, interval, bound, rounds, finding.verdict + note)
        )
    return align_table(rows, left=(0, 1, -1))


def other_processes_lines(measurements: Sequence[Measurement], cpus: int) -> list[str]:
    """Lines about the CPU time of other processes, with a warning if it was high."""
    busy = [m.others_cpus for m in measurements if m.others_cpus is not None]
    if not busy:
        return ["Other processes: unknown"]
    middle, most = median(busy), max(busy)
    line = f"Other processes kept {middle:.2f} of {cpus} CPUs busy (median; at most {most:.2f})"
    if most <= QUIET * cpus:
        return [line]
    return [line, "WARNING: this machine was not quiet; repeat before believing a verdict"]


def work_table(measurements: Sequence[Measurement]) -> list[str]:
    """Table of the work per step on emulated GPUs: medians over rounds."""
    rows: list[tuple[str, ...]] = [
        (
            *("scenario", "program", "rounds", "kernels", "to GPUs", "to host", "between GPUs"),
            *("wall ms", "idle", "host CPU ms"),
        )
    ]
    groups: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for one in measurements:
        if one.reading is not None and isinstance(one.reading.document, dict):
            groups.setdefault((one.scenario, one.subject), []).append(one.reading.document)
    for key, rounds in groups.items():
        middle = {name: median(one[name] for one in rounds) for name in rounds[0]}
        copies = (
            f"{middle[k]:.0f} ({_size(middle[f'{k}_bytes'])})" for k in ("htod", "dtoh", "dtod")
        )
        times = (
            f"{1e3 * middle['wall']:.0f}",
            f"{middle['idle']:.2f}",
            f"{1e3 * middle['cpu']:.1f}",
        )
        rows.append((*key, str(len(rounds)), f"{middle['kernels']:.0f}", *copies, *times))
    return ["On emulated GPUs", *align_table(rows, left=(0, 1)), ""] if groups else []


def _size(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size:.0f} B"
