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
from peers.options import CLASSIC
from peers.subjects import AGAINST, IN_KERAS, MODES, REDUCTIONS, STRATEGIES

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
      figure: The value of a round (of a document, in the comparison of reductions); None when
        something it needs is absent.
      needs_bf16: Whether it is only demanded of CPUs with bfloat16 instructions.
    """

    scenario: str
    text: str
    subjects: tuple[Key, ...]
    figure: Callable[[Any], float | None]
    bound: float
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


def _value(subject: Key, attribute: str) -> Callable[[Round], float | None]:
    def value(readings: Round) -> float | None:
        found: float | None = getattr(readings[subject], attribute)
        return found

    return value


def _ratio(
    scenario: str,
    numerator: Key,
    denominator: Key,
    bound: float,
    attribute: str = "images_per_sec",
    needs_bf16: bool = False,
    text: str = "",
    at_most: bool = False,
) -> Demand:
    of_numerator, of_denominator = (_value(key, attribute) for key in (numerator, denominator))

    def ratio(readings: Round) -> float | None:
        above, below = of_numerator(readings), of_denominator(readings)
        return above / below if above and below else None

    keys = (numerator, denominator)
    text += f"{' '.join(numerator)} / {' '.join(denominator)}"
    return Demand(scenario, text, keys, ratio, bound, at_most, needs_bf16=needs_bf16)


def _peak_memory(scenario: str) -> Demand:
    keys = _FP32, ("ancestor", "fp32")
    return _ratio(scenario, *keys, 0.9, "peak_bytes", text="peak memory, ", at_most=True)


def _seconds(subject: Key, text: str, bound: float, less: Key | None = None) -> Demand:
    """A duration, or by how much it is longer than that of another subject."""

    def seconds(readings: Round) -> float | None:
        whole = readings[subject].seconds
        part = 0.0 if less is None else readings[less].seconds
        return None if whole is None or part is None else whole - part

    keys = (subject,) if less is None else (subject, less)
    return Demand("startup", text, keys, seconds, bound, at_most=True, is_ratio=False)


_FP32, _BF16 = ("cnnbench", "fp32"), ("cnnbench", "bf16")
_FROZEN, _HARNESS = ("frozen", "fp32"), ("harness", "fp32")
_CLASSIC = {"alexnet": 1.15, "vgg16": 1.15}
_START, _IMPORT = ("start to first step", "fp32"), ("import tensorflow", "fp32")
_ONE, _SAVING = ("one process", "fp32"), ("saving", "fp32")
_SHARE, _GROWTH = _value(_HARNESS, "share_of_bare_loop"), _value(_FP32, "memory_growth")

DEMANDS: tuple[Demand, ...] = (
    _ratio("resnet50", _FP32, ("ancestor", "fp32"), 1.05),
    _ratio("resnet50", _FP32, ("torch", "fp32"), 1.1),
    _ratio("resnet50", _FP32, ("keras", "fp32"), 1.3),
    _ratio("resnet50", _BF16, _FP32, 1.6, needs_bf16=True),
    _ratio("resnet50", _BF16, ("torch", "bf16"), 1.1, needs_bf16=True),
    _ratio("resnet50", _FP32, ("matmul", "fp32"), 0.85, "achieved_flops_per_sec"),
    _ratio("resnet50", _BF16, ("matmul", "bf16"), 0.80, "achieved_flops_per_sec", True),
    _peak_memory("resnet50"),
    *(_ratio(name, _FP32, ("ancestor", "fp32"), _CLASSIC.get(name, 1.0)) for name in CLASSIC),
    *(_ratio(name, _FP32, ("keras", "fp32"), 1.15) for name in IN_KERAS),
    _peak_memory("alexnet"),
    _ratio("vgg16", _FP32, ("matmul", "fp32"), 0.85, "achieved_flops_per_sec"),
    *(
        _ratio("ancestor", case.subject("cnnbench"), case.subject("ancestor"), case.bound)
        for case in AGAINST
    ),
    _ratio("forward", _FP32, ("ancestor", "fp32"), 1.15),
    _ratio("forward", _FROZEN, _FP32, 1.0),
    _ratio("forward", _BF16, _FP32, 1.6, needs_bf16=True),
    _ratio("forward", ("frozen", "int8"), _FROZEN, 1.6),
    _ratio("input", _FP32, ("tf.data", "fp32"), 0.97),
    *(_ratio("towers", (f"two {mode}", "fp32"), ("one tower", "fp32"), 0.97) for mode in MODES),
    *(_ratio("reductions", (name, "fp32"), ("none", "fp32"), 0.97) for name in REDUCTIONS),
    _ratio("collective", ("collective_all_reduce", "fp32"), ("workers", "fp32"), 1 / 1.05),
    _ratio("collective", ("multi_worker_mirrored_strategy", "fp32"), ("workers", "fp32"), 0.97),
    _ratio("strategies", ("replicated", "fp32"), ("mirrored_strategy", "fp32"), 1.0),
    *(_ratio("strategies", (mode, "fp32"), (f"bare {mode}", "fp32"), 0.97) for mode in STRATEGIES),
    _ratio("controller", ("distributed_all_reduce", "fp32"), ("controller", "fp32"), 1 / 1.05),
    _ratio("coordinator", ("parameter_server_strategy", "fp32"), ("coordinator", "fp32"), 0.97),
    _ratio("observed", ("observed", "fp32"), _FP32, 0.99),
    _ratio("start_cluster", _ONE, ("three processes", "fp32"), 1 / 1.8, "seconds"),
    Demand("overhead", "harness / bare loop", (_HARNESS,), _SHARE, 0.97),
    _seconds(_START, "start to first step - import tensorflow, s", 1.0, less=_IMPORT),
    _seconds(("--help", "fp32"), "cnnbench --help, s", 0.5),
    _seconds(("refused flag", "fp32"), "cnnbench with a refused flag, s", 0.5),
    Demand("memory", "resident memory, last step / warm-up", (_FP32,), _GROWTH, 1.02, at_most=True),
    Demand(
        "memory",
        "the same with checkpoints and evaluations, last step / after a tenth",
        (_SAVING,),
        _value(_SAVING, "memory_growth"),
        1.03,
        at_most=True,
    ),
)


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
        return Finding(demand, None, NOT_MEASURED, _why_absent(demand, measurements))
    finding = conclude(demand, values)
    if demand.needs_bf16 and not cpu_has_bf16:
        note = "not demanded: no bf16 instructions in this CPU"
        return dataclasses.replace(finding, verdict=OPEN, note=note)
    return finding


def conclude(demand: Demand, values: Sequence[float]) -> Finding:
    """Compares the mean of one value per round with the bound."""
    estimate = ratio_estimate(values) if demand.is_ratio else mean_estimate(values)
    return Finding(demand, estimate, _verdict(demand, estimate))


def _verdict(demand: Demand, estimate: Estimate) -> str:
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
