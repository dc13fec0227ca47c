"""What is judged: one value per process for each metric, and the rules of the metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cnnbench.metrics.policy import Policy
from cnnbench.metrics.verdict import Verdict
from cnnbench.records.run import RunRecord
from cnnbench.stats.descriptive import median

if TYPE_CHECKING:
    from cnnbench.compare.reductions import Reduction

_GIGA = 1e9


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric and its rules.

    Attributes:
      name: as in --metrics.
      unit: of the values.
      higher_is_better: direction.
      relative: changes are shares of the base, else differences.
      better, worse: the words for FASTER and SLOWER.
      gates: a change for the worse is a regression (exit code 1).
      value: of a measurement of the kind that it is a metric of; None if it was not measured.
      threshold: smallest change that counts, given the policy and the base's median.
      alpha: two-sided level of its tests, given the policy.
    """

    name: str
    unit: str
    higher_is_better: bool
    relative: bool = True
    better: str
    worse: str
    gates: bool
    value: Callable[[Any], float | None]
    threshold: Callable[[Policy, float], float]
    alpha: Callable[[Policy], float] = lambda policy: policy.further_alpha

    def word(self, verdict: Verdict) -> str:
        """The verdict in the words of this metric."""
        if verdict is Verdict.FASTER:
            return self.better
        return self.worse if verdict is Verdict.SLOWER else verdict.value


def throughput(record: RunRecord) -> float | None:
    """Images per second: global batch over the median step, or of an evaluation run.

    The median, because steps of a process are autocorrelated and have outliers: it is
    one value per process that a single slow step does not move.
    """
    if record.step_seconds:
        if record.batch is None:
            return None
        return record.batch.global_ / median(sorted(record.step_seconds))
    if record.config.get("eval") and record.evaluations:
        return median(sorted(one.images_per_sec for one in record.evaluations))
    return None


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


def bandwidth(row: Reduction) -> float | None:
    """Bus bandwidth of a reduction in GB/s; of a copy what all devices write together."""
    return None if row.bytes_per_sec is None else row.bytes_per_sec / _GIGA


def build(row: Reduction) -> float | None:
    """Seconds to trace a reduction and to call it for the first time."""
    return row.build_seconds


def _memory_threshold(policy: Policy, base: float) -> float:
    return max(policy.memory_threshold, policy.memory_bytes / base if base > 0 else 0.0)


THROUGHPUT = Metric(
    name="throughput",
    unit="images/sec",
    higher_is_better=True,
    better="faster",
    worse="slower",
    gates=True,
    value=throughput,
    threshold=lambda policy, base: policy.threshold,
    alpha=lambda policy: policy.alpha,
)
MEMORY = Metric(
    name="memory",
    unit="bytes",
    higher_is_better=False,
    better="less",
    worse="more",
    gates=True,
    value=memory,
    threshold=_memory_threshold,
)
STARTUP = Metric(
    name="startup",
    unit="seconds",
    higher_is_better=False,
    better="quicker",
    worse="longer",
    # Disks and caches decide it; a red gate would be a matter of luck.
    gates=False,
    value=startup,
    threshold=lambda policy, base: policy.startup_threshold,
)
ACCURACY = Metric(
    name="accuracy",
    unit="top-1",
    higher_is_better=True,
    relative=False,
    better="better",
    worse="worse",
    gates=True,
    value=accuracy,
    threshold=lambda policy, base: policy.accuracy_threshold,
)

METRICS: dict[str, Metric] = {m.name: m for m in (THROUGHPUT, MEMORY, STARTUP, ACCURACY)}
"""The metrics of runs by name, in the order they are shown; the names are those of --metrics."""


def _bandwidth(name: str, gates: bool) -> Metric:
    """Judged as throughput is; bytes in place of images."""
    return Metric(
        name=name,
        unit="GB/s",
        higher_is_better=True,
        better="faster",
        worse="slower",
        gates=gates,
        value=bandwidth,
        threshold=THROUGHPUT.threshold,
        alpha=THROUGHPUT.alpha,
    )


BUS_BANDWIDTH = _bandwidth("bus_bandwidth", gates=True)
PEER_BANDWIDTH = _bandwidth("peer_bandwidth", gates=False)
COPY_BANDWIDTH = _bandwidth("copy_bandwidth", gates=False)
BUILD = Metric(
    name="build",
    unit="seconds",
    higher_is_better=False,
    better="quicker",
    worse="longer",
    gates=False,
    value=build,
    threshold=STARTUP.threshold,
)

SPEEDS = (THROUGHPUT, BUS_BANDWIDTH)
"""What --metrics calls throughput, of runs and of reductions: changes have a mean."""
