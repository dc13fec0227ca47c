"""The result of a comparison, per configuration and metric."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from cnnbench.errors import ExitCode
from cnnbench.judge.compare.comparability import Difference
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.compare.disturbance import measured_again
from cnnbench.judge.compare.judge import Judgement, Level, Verdict
from cnnbench.judge.metrics.measurement import CONTEXT, Measurement
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import THROUGHPUT, Metric
from cnnbench.records.explanation import Explanation
from cnnbench.records.load import SkippedFile

SEVERITY = (
    Verdict.SLOWER,
    Verdict.CHANGED_WORK,
    Verdict.FAILED,
    Verdict.NOT_COMPARABLE,
    Verdict.MISSING,
    Verdict.INCONCLUSIVE,
    Verdict.FASTER,
    Verdict.SAME,
)
"""The worst first."""

_NO_COMPARISON = (
    Verdict.FAILED,
    Verdict.MISSING,
    Verdict.NOT_COMPARABLE,
    Verdict.CHANGED_WORK,
)


@dataclass(frozen=True, kw_only=True)
class MetricResult:
    """One metric of one configuration: the values of both sides and their judgement."""

    metric: Metric
    base: tuple[float, ...]
    new: tuple[float, ...]
    judgement: Judgement

    @property
    def verdict(self) -> Verdict:
        """The outcome."""
        return self.judgement.verdict

    @property
    def word(self) -> str:
        """The outcome in the words of the metric."""
        return self.verdict.word(self.metric)


@dataclass(frozen=True, kw_only=True)
class ComparedConfiguration:
    """One configuration; that of BASE where the two sides differ.

    Attributes:
      base, new: one measurement per process, in order of their start; empty where a side lacks it.
      results: by metric; the first is the main one.
      differences: facts that differ, those that block a verdict first.
    """

    name: str
    configuration: Configuration
    base: tuple[Measurement, ...]
    new: tuple[Measurement, ...]
    results: tuple[MetricResult, ...]
    differences: tuple[Difference, ...] = ()

    @property
    def main(self) -> MetricResult:
        """The result of the first metric."""
        return self.results[0]

    @property
    def decides(self) -> bool:
        """Whether the result counts for the exit code; others are context, such as peers."""
        return self.configuration.kind not in CONTEXT


@dataclass(frozen=True, kw_only=True)
class GeometricMean:
    """The mean change of a metric.

    Attributes:
      metric: name of the metric.
      change: mean change as a share of the base.
      configurations: number of configurations in the mean.
    """

    metric: str
    change: float
    configurations: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outcome of `compare_records`, with entries in natural order of their names.

    Attributes:
      metrics: all that were judged, of all kinds of measurements.
      base_label, new_label: sources of the records.
      names: of both sides in sentences.
      next_step: the command that would settle what is inconclusive; "" if none.
      ends_with: exit code where the verdicts do not decide it: of an A/A measurement, or an
        interrupted one.
      explanation: where the difference is; None if nothing was profiled.
    """

    entries: tuple[ComparedConfiguration, ...]
    policy: Policy
    metrics: tuple[Metric, ...]
    paired: bool = False
    notes: tuple[str, ...] = ()
    base_label: str = "BASE"
    new_label: str = "NEW"
    names: tuple[str, str] = ("BASE", "NEW")
    next_step: str = ""
    skipped: tuple[SkippedFile, ...] = ()
    allow_changed_work: bool = False
    ends_with: ExitCode | None = None
    explanation: Explanation | None = None

    def is_regression(self, entry: ComparedConfiguration, result: MetricResult) -> bool:
        """Whether a result sets the exit code of a regression."""
        if not entry.decides:
            return False
        if result.verdict is Verdict.CHANGED_WORK:
            return not self.allow_changed_work
        return result.verdict is Verdict.SLOWER and (result is entry.main or result.metric.gates)

    def level(self, entry: ComparedConfiguration, result: MetricResult) -> Level:
        """Level of a verdict: errors set the exit code, warnings are other bad news."""
        verdict = result.verdict
        changed = verdict in (Verdict.SLOWER, Verdict.CHANGED_WORK)
        if self.is_regression(entry, result) or (entry.decides and verdict is Verdict.FAILED):
            return Level.ERROR
        if entry.decides and (changed or (verdict.undecided and result is entry.main)):
            return Level.WARNING
        told = changed or verdict in (Verdict.FASTER, Verdict.FAILED)
        return Level.NOTICE if told else Level.NONE

    @property
    def exit_code(self) -> ExitCode:
        """Regressions first, then failures, then inconclusive results or defective files."""
        if self.ends_with is not None:
            return self.ends_with
        entries = [entry for entry in self.entries if entry.decides]
        if any(self.is_regression(entry, one) for entry in entries for one in entry.results):
            return ExitCode.REGRESSION
        verdicts = {entry.main.verdict for entry in entries}
        if Verdict.FAILED in verdicts:
            return ExitCode.FAILED
        open_questions = any(verdict.undecided for verdict in verdicts)
        if open_questions or any(one.defect for one in self.skipped) or not entries:
            return ExitCode.INCONCLUSIVE
        return ExitCode.OK

    @property
    def repeated_pairs(self) -> int:
        """Number of pairs measured again because a process was killed."""
        return measured_again(run for one in self.entries for run in (*one.base, *one.new))[0]

    @property
    def leading(self) -> tuple[Metric, ...]:
        """The main metrics: the first of every kind of measurement."""
        about = {entry.main.metric.name for entry in self.entries if entry.decides}
        return tuple(one for one in self.metrics if one.name in about) or self.metrics[:1]

    def about(self, metric: Metric) -> list[tuple[ComparedConfiguration, MetricResult]]:
        """Entries with their main result, of one metric, the worst first."""
        return [
            (entry, entry.main)
            for entry in self.by_severity()
            if entry.decides and entry.main.metric is metric
        ]

    def by_severity(self) -> list[ComparedConfiguration]:
        """Entries, the worst first; equal verdicts by the size of the change for the worse."""

        def severity(entry: ComparedConfiguration) -> tuple[int, float]:
            change = entry.main.judgement.change
            if change is None:  # last within a verdict
                change = math.inf
            elif not entry.main.metric.higher_is_better:
                change = -change
            return SEVERITY.index(entry.main.verdict), change

        return sorted(self.entries, key=severity)

    def counts(self, metric: Metric) -> Counter[Verdict]:
        """Number of configurations per verdict, the worst first."""
        found = Counter(
            result.verdict
            for entry in self.entries
            for result in entry.results
            if result.metric.name == metric.name
        )
        return Counter({verdict: found[verdict] for verdict in SEVERITY if found[verdict]})

    def geometric_mean(self, metric: Metric = THROUGHPUT) -> GeometricMean | None:
        """Mean change of a relative metric, without failed and incomparable configurations."""
        changes = [
            result.judgement.change
            for entry in self.entries
            for result in entry.results
            if result.metric is metric
            and result.verdict not in _NO_COMPARISON
            and result.judgement.change is not None
            and -1 < result.judgement.change < math.inf
        ]
        if not changes:
            return None
        return GeometricMean(
            metric=metric.name,
            change=math.expm1(math.fsum(map(math.log1p, changes)) / len(changes)),
            configurations=len(changes),
        )
