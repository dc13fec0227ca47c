"""The table of metrics: one value per process each, with unit, direction and thresholds.

`METRICS` is what ``cnnbench compare`` and ``ab`` judge (--metrics), `BOUNDS` what bounds of sweeps
limit, `HISTORY` what ``cnnbench history`` follows (--metric).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import NONE, hundredths, number
from cnnbench.judge.metrics.measurement import (
    ALL_REDUCE,
    BUILD,
    COPY,
    KINDS,
    PEER,
    RUN,
    MeasuredReduction,
)
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.speed import throughput, throughputs
from cnnbench.records.run import RunRecord

_GIGA = 1e9


@dataclass(frozen=True)
class Metric:
    """A metric and its rules.

    Attributes:
      name: name in commands, unless `judged` has another one.
      value: function of a measurement of one of the kinds; returns None if not measured.
      together: values of measurements that are judged together, if they are not each its own.
      relative: whether changes are shares of the base, else differences.
      threshold: smallest change that counts in history.
      judged: name in --metrics by kind of measurement that compare judges by it.
      constant: name of the constant of `Policy` that is the threshold in compare.
      gates: whether a change for the worse is a regression (exit code 1).
      on_request: whether compare judges by it only if --metrics names it.
      step: for a speed, what its time is that of.
    """

    name: str
    unit: str
    value: Callable[[Any], float | None]
    kinds: tuple[str, ...] = (RUN,)
    higher_is_better: bool = True
    relative: bool = True
    threshold: float = Policy.threshold
    followed: bool = False
    bound: bool = False
    judged: Mapping[str, str] = field(default_factory=dict)
    constant: str = "threshold"
    better: str = "faster"
    worse: str = "slower"
    gates: bool = False
    on_request: bool = False
    step: str = ""
    together: Callable[[Sequence[Any]], list[float | None]] | None = None

    def values(self, measured: Sequence[Any]) -> list[float | None]:
        """Values of measurements that are judged together, in their order; None if not measured."""
        return [*map(self.value, measured)] if self.together is None else self.together(measured)

    @property
    def unit_text(self) -> str:
        """The unit that `value_text` writes."""
        if self.unit == "bytes":
            return "MiB"
        return "%" if self._is_share else self.unit

    @property
    def title(self) -> str:
        """Name and unit, for table headings and axes."""
        return " ".join(filter(None, (f"{self.name}, {self.unit_text}", self.step)))

    def value_text(self, value: float | None, unit: bool = True) -> str:
        """A value for people, with `unit_text` unless `unit` is False; `NONE` for None."""
        if value is None:
            return NONE
        if self._is_share:
            text = f"{100 * value:.2f}"
        else:
            text = number(value / 2**20 if self.unit == "bytes" else value)
        return f"{text} {self.unit_text}" if unit else text

    def change_text(self, change: float, signed: bool = True) -> str:
        """A change in per cent; a difference in percentage points or in the unit."""
        unit = "%" if self.relative else "points" if self._is_share else self.unit
        return f"{self._change_number(change, signed)} {unit}"

    def range_text(self, low: float, high: float, signed: bool = True) -> str:
        """A range of changes: "-1.0 to +2.0 %"."""
        return f"{self._change_number(low, signed)} to {self.change_text(high, signed)}"

    def shows(self, change: float) -> bool:
        """Whether `change_text` does not round a change to 0."""
        in_hundredths = self.relative or self._is_share
        return bool(round(100 * change, self._digits) if in_hundredths else change)

    @property
    def _digits(self) -> int:
        return 1 if self.relative else 2

    def _change_number(self, change: float, signed: bool) -> str:
        if self.relative or self._is_share:
            return hundredths(change, self._digits, signed=signed)
        return f"{'+' if signed and change >= 0 else ''}{number(change)}"

    @property
    def _is_share(self) -> bool:
        return self.unit.startswith("share") or self.unit == "top-1"

    def alpha(self, policy: Policy) -> float:
        """Two-sided level of its tests."""
        return policy.alpha if self.constant == "threshold" else policy.further_alpha


def memory(record: RunRecord) -> float | None:
    """Peak memory in bytes."""
    peak = record.measured.peak_memory_bytes
    return None if not peak else float(peak)


def startup(record: RunRecord) -> float | None:
    """Seconds from the import of TensorFlow to the end of the very first step."""
    seconds = record.startup_seconds
    if seconds.import_ is None or seconds.build is None or seconds.first_step is None:
        return None
    return seconds.import_ + seconds.build + seconds.first_step


def accuracy(record: RunRecord) -> float | None:
    """Top-1 accuracy of the last evaluation, 0 to 1."""
    return record.evaluations[-1].top_1 if record.evaluations else None


def _step_seconds(record: RunRecord) -> float | None:
    return median(record.step_seconds) if record.step_seconds else None


def _summary(name: str) -> Callable[[RunRecord], float | None]:
    def value(record: RunRecord) -> float | None:
        found = getattr(record.summary(), name)
        return None if found is None else float(found)

    return value


def _bandwidth(row: MeasuredReduction) -> float | None:
    """Bus bandwidth of a reduction in GB/s; of a copy, what all devices write together."""
    return None if row.bytes_per_sec is None else row.bytes_per_sec / _GIGA


def _metric(name: str, unit: str, value: Any = None, **rules: Any) -> Metric:
    """A metric that history follows, by default the one of that name in the summary of a run."""
    return Metric(name, unit, value or _summary(name), followed=True, **rules)


def _lower(name: str, unit: str, value: Any = None, **rules: Any) -> Metric:
    return _metric(name, unit, value, higher_is_better=False, **rules)


_OF_TIME: dict[str, Any] = {"constant": "startup_threshold", "better": "quicker", "worse": "longer"}

THROUGHPUT = _metric(
    "throughput",
    "images/sec",
    throughput,
    bound=True,
    judged={RUN: "throughput"},
    gates=True,
    step="over the timed steps",
    together=throughputs,
)
BUS_BANDWIDTH = _metric(
    "bus_bandwidth",
    "GB/s",
    _bandwidth,
    kinds=(ALL_REDUCE, PEER),
    judged={ALL_REDUCE: "throughput"},
    gates=True,
)

CPU_TIME = _lower(
    "cpu_time",
    "s",
    _summary("cpu_seconds_per_step"),
    bound=True,
    judged={RUN: "cpu_time"},
    better="less",
    worse="more",
    on_request=True,
)

SPEEDS = (THROUGHPUT, BUS_BANDWIDTH)
"""The main metrics of runs and all-reduces; their changes have a geometric mean."""

ALL: tuple[Metric, ...] = (
    THROUGHPUT,
    Metric(
        "memory",
        "bytes",
        memory,
        higher_is_better=False,
        judged={RUN: "memory"},
        constant="memory_threshold",
        better="less",
        worse="more",
        gates=True,
    ),
    # Start-up depends on disks and caches, so a failed gate would be arbitrary.
    Metric(
        "startup", "seconds", startup, higher_is_better=False, judged={RUN: "startup"}, **_OF_TIME
    ),
    Metric(
        "accuracy",
        "top-1",
        accuracy,
        relative=False,
        judged={RUN: "accuracy"},
        constant="accuracy_threshold",
        better="better",
        worse="worse",
        gates=True,
    ),
    CPU_TIME,
    _metric("images_per_cpu_second", "images/CPU second", bound=True),
    _metric("images_per_sec", "images/sec", bound=True, step="at the mean step"),
    _metric("total_images_per_sec", "images/sec", bound=True, step="over the timed loop"),
    _lower("step_seconds", "s", _step_seconds, bound=True),
    _metric("mfu", "share of the peak", bound=True),
    _metric("achieved_flops_per_sec", "FLOP/s", bound=True),
    _lower("peak_memory_bytes", "bytes", threshold=Policy.memory_threshold, bound=True),
    _lower("startup_seconds", "s", startup, threshold=Policy.startup_threshold, bound=True),
    _lower("joules_per_image", "J"),
    _lower("images_per_sec_jitter", "images/sec", relative=False, threshold=0.0, bound=True),
    _lower("input_wait_fraction", "share", relative=False, threshold=0.02, bound=True),
    _metric("top_1", "share", accuracy, relative=False, threshold=0.005, bound=True),
    _metric(
        "top_5",
        "share",
        lambda record: record.evaluations[-1].top_5 if record.evaluations else None,
        relative=False,
        threshold=0.005,
        bound=True,
    ),
    _lower(
        "final_loss", "loss", attrgetter("last_loss"), relative=False, threshold=0.0, bound=True
    ),
    BUS_BANDWIDTH,
    _lower("reduction_seconds", "s", attrgetter("seconds"), kinds=(ALL_REDUCE, PEER)),
    _lower(
        "build_seconds",
        "s",
        attrgetter("build_seconds"),
        kinds=(ALL_REDUCE, BUILD, PEER),
        threshold=Policy.startup_threshold,
    ),
    Metric(
        "build",
        "seconds",
        attrgetter("build_seconds"),
        kinds=(ALL_REDUCE, BUILD),
        higher_is_better=False,
        judged={ALL_REDUCE: "startup", BUILD: "startup"},
        **_OF_TIME,
    ),
    Metric("peer_bandwidth", "GB/s", _bandwidth, kinds=(PEER,), judged={PEER: "throughput"}),
    _metric("copy_bandwidth", "GB/s", _bandwidth, kinds=(COPY,), judged={COPY: "throughput"}),
)
"""All metrics, in the order in which commands list them. Commands name and write the unit of some
values differently, hence startup and startup_seconds."""

METRICS: dict[str, Metric] = {
    metric.judged[RUN]: metric for metric in ALL if metric.judged.get(RUN)
}
"""Metrics of runs by name in --metrics of compare; for other kinds see `judged`."""

DEFAULT_METRICS = tuple(name for name, metric in METRICS.items() if not metric.on_request)
"""The default of --metrics."""

BOUNDS: dict[str, Metric] = {metric.name: metric for metric in ALL if metric.bound}
"""Metrics that bounds of sweeps can limit."""

HISTORY: dict[str, Metric] = {metric.name: metric for metric in ALL if metric.followed}
"""Metrics by name in --metric of history."""


def judged(names: Iterable[str], kinds: Container[str]) -> tuple[Metric, ...]:
    """Metrics by which compare judges measurements of these kinds, by their names in --metrics."""
    found = {
        metric.name: metric
        for name in names
        for kind in KINDS
        for metric in ALL
        if kind in kinds and metric.judged.get(kind) == name
    }
    return tuple(found.values())
