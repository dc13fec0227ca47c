"""What cnnbench has to reach, and whether the rounds show that it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from peers.measurement import Measurement, Reading
from peers.ratios import Estimate, mean_estimate, ratio_estimate
from peers.subjects import MODES

Key = tuple[str, str]
Round = Mapping[Key, Reading]

MET, MISSED, OPEN, NOT_MEASURED = "met", "MISSED", "open", "not measured"


@dataclasses.dataclass(frozen=True)
class Demand:
    """A figure per round and the bound on its mean over rounds.

    Attributes:
      scenario: Where it is measured.
      text: What the figure is.
      subjects: Who must have been measured for it.
      figure: The figure of a round; None when something it needs is absent.
      bound: What the mean has to reach, or with ``at_most`` not to exceed.
      at_most: Whether the bound is from above.
      is_ratio: Whether means are geometric.
      needs_bf16: Whether it is only demanded of CPUs with bfloat16 instructions.
    """

    scenario: str
    text: str
    subjects: tuple[Key, ...]
    figure: Callable[[Round], float | None]
    bound: float
    at_most: bool = False
    is_ratio: bool = True
    needs_bf16: bool = False


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found about a demand.

    Attributes:
      demand: Which one.
      estimate: Mean and interval, None without a single complete round.
      verdict: ``met`` or ``MISSED`` when the whole interval lies on one side of the bound,
        ``open`` when it does not, ``not measured``.
      note: Why it was not measured or is not demanded here.
    """

    demand: Demand
    estimate: Estimate | None
    verdict: str
    note: str = ""


def _over(numerator: Key, denominator: Key, attribute: str) -> Callable[[Round], float | None]:
    def figure(readings: Round) -> float | None:
        above = getattr(readings[numerator], attribute)
        below = getattr(readings[denominator], attribute)
        return above / below if above and below else None

    return figure


def _ratio(
    scenario: str,
    numerator: Key,
    denominator: Key,
    bound: float,
    attribute: str = "images_per_sec",
    needs_bf16: bool = False,
) -> Demand:
    text = f"{' '.join(numerator)} / {' '.join(denominator)}"
    return Demand(
        scenario,
        text,
        (numerator, denominator),
        _over(numerator, denominator, attribute),
        bound,
        needs_bf16=needs_bf16,
    )


def _own(scenario: str, subject: Key, text: str, attribute: str, bound: float) -> Demand:
    def figure(readings: Round) -> float | None:
        value: float | None = getattr(readings[subject], attribute)
        return value

    return Demand(
        scenario, text, (subject,), figure, bound, at_most=attribute != "share_of_bare_loop"
    )


def _after_import(readings: Round) -> float | None:
    start = readings[_START].seconds
    alone = readings[_IMPORT].seconds
    return None if start is None or alone is None else start - alone


_FP32, _BF16 = ("cnnbench", "fp32"), ("cnnbench", "bf16")
_START, _IMPORT = ("start to first step", "fp32"), ("import tensorflow", "fp32")

DEMANDS: tuple[Demand, ...] = (
    _ratio("resnet50", _FP32, ("ancestor", "fp32"), 1.0),
    _ratio("resnet50", _FP32, ("torch", "fp32"), 1.05),
    _ratio("resnet50", _FP32, ("keras", "fp32"), 1.25),
    _ratio("resnet50", _BF16, _FP32, 1.6, needs_bf16=True),
    _ratio("resnet50", _BF16, ("torch", "bf16"), 1.0, needs_bf16=True),
    _ratio("resnet50", _FP32, ("matmul", "fp32"), 0.80, "achieved_flops_per_sec"),
    _ratio("resnet50", _BF16, ("matmul", "bf16"), 0.75, "achieved_flops_per_sec", True),
    *(_ratio("towers", (f"two {mode}", "fp32"), ("one tower", "fp32"), 0.97) for mode in MODES),
    _own("overhead", ("harness", "fp32"), "harness / bare loop", "share_of_bare_loop", 0.97),
    dataclasses.replace(
        _own("startup", _START, "start to first step - import tensorflow, s", "seconds", 1.5),
        subjects=(_START, _IMPORT),
        figure=_after_import,
        is_ratio=False,
    ),
    dataclasses.replace(
        _own("startup", ("--help", "fp32"), "cnnbench --help, s", "seconds", 0.5), is_ratio=False
    ),
    dataclasses.replace(
        _own(
            "startup", ("refused flag", "fp32"), "cnnbench with a refused flag, s", "seconds", 0.5
        ),
        is_ratio=False,
    ),
    _own("memory", _FP32, "resident memory, last step / warm-up", "memory_growth", 1.02),
)


def judge(demand: Demand, measurements: Sequence[Measurement], cpu_has_bf16: bool) -> Finding:
    """Forms the figure per complete round and holds the mean against the bound.

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
    """Holds the mean of one value per round against the bound.

    Raises:
      ValueError: There are no values, or a ratio is not positive.
    """
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
