"""The verdicts of a comparison as values: by configuration and metric, which of them determined
others, and which of them set the exit code.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, TypeAlias

from cnnbench.base.stats import median
from cnnbench.errors import ExitCode
from cnnbench.judge.compare.comparability import Difference, MeasurementGroup
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.compare.disturbance import disturbance_text, other_cpus_text
from cnnbench.judge.compare.estimate import Samples
from cnnbench.judge.compare.judgement import Judgement, Verdict
from cnnbench.judge.compare.power import too_many_further
from cnnbench.judge.metrics.measurement import CONTEXT, KINDS, RUN, Measurement
from cnnbench.judge.metrics.origin import Origin, varying_parts
from cnnbench.judge.metrics.policy import FAILURES, Policy
from cnnbench.judge.metrics.rules import Acceptance, Rules
from cnnbench.records.codec import (
    ABSENT,
    NOT_EMPTY,
    OPTIONAL,
    JsonKeys,
    Key,
    choice_metadata,
    keys_within,
)
from cnnbench.records.load import SkippedFile
from cnnbench.records.metric import Metric
from cnnbench.records.run import RunRecord

FAIL_ON: Mapping[str, Verdict] = dict(
    zip(FAILURES, (Verdict.SLOWER, Verdict.FASTER, Verdict.CHANGED_WORK), strict=True)
)
"""Verdicts that can set exit code 1, by the words of --fail_on."""

USUAL_FAIL_ON = ("slower", "changed")

_ACCEPTABLE = {Verdict.SLOWER: "slower", Verdict.CHANGED_WORK: "changed"}
"""Verdicts that can be accepted, with their words in --fail_on."""

DIRECTIONS = (Verdict.SLOWER, Verdict.FASTER)
LIMITED = (Verdict.NOT_SLOWER, Verdict.NOT_FASTER)
_DECIDED = (*DIRECTIONS, *LIMITED, Verdict.SAME)
TESTED = (*_DECIDED, Verdict.INCONCLUSIVE)
"""Verdicts of tests."""

_SPECIAL = re.compile(r"[^\w.:/@-]")
"""Characters that separate names in --allow_different, or have a meaning in patterns or shells."""

_GAP = 1.5
"""Minimum ratio of the two speeds of processes with equal flags. Within each of the two groups, the
ratio of the slowest to the fastest process must be less than the square root of this ratio.
"""


class AnnotationLevel(enum.Enum):
    """How a CI job reports a verdict: as an error, a warning, a notice, or not at all. The values
    are GitHub's annotation levels.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"
    NONE = ""


@dataclass(frozen=True, kw_only=True)
class MetricResult:
    """The result for one metric of one configuration: the judgement, and the values of BASE and
    NEW.

    Attributes:
      metric: name of the metric.
      unit: unit of the values.
      higher_is_better: whether higher values are better.
      relative: whether changes are shares of the base; otherwise they are differences.
      samples: the judged values.
      policy: how they were judged.
      base_slow_steps, new_slow_steps: texts about slow steps of BASE and NEW; "" without slow
        steps, or if the change of the median step equals the change of the throughput.
      accepted: what accepts the regression; absent if nothing does.
    """

    json_keys: ClassVar[JsonKeys] = (
        *keys_within("judgement", Judgement),
        Key("metric", "metric.name"),
        Key("unit", "metric.unit"),
        Key("higher_is_better", "metric.higher_is_better"),
        Key("relative", "metric.relative"),
        "word",
        Key("asked", rules=OPTIONAL),
        Key("base_values", "base"),
        Key("new_values", "new"),
        "accepted",
    )

    judgement: Judgement
    samples: Samples
    policy: Policy = field(default=Policy())
    base_slow_steps: str = ""
    new_slow_steps: str = ""
    accepted: Acceptance | None = field(default=None, metadata=ABSENT)

    @property
    def metric(self) -> Metric:
        """The judged metric."""
        return self.samples.metric

    @property
    def verdict(self) -> Verdict:
        """The verdict on the metric, such as slower or inconclusive."""
        return self.judgement.verdict

    @property
    def word(self) -> str:
        """The word for the verdict that fits the metric, such as "slower" for throughput or "more"
        for memory.
        """
        return self.verdict.word(self.metric)

    @property
    def asked(self) -> bool:
        """Whether an inconclusive result sets the exit code."""
        return self.policy.asked

    @property
    def base(self) -> Sequence[float]:
        """The values of BASE, one per process."""
        return self.samples.base

    @property
    def new(self) -> Sequence[float]:
        """The values of NEW, one per process."""
        return self.samples.new

    @property
    def is_joint(self) -> bool:
        """Whether throughput and CPU time of the same runs were both judged."""
        return self.policy.split < 1

    @property
    def severity(self) -> tuple[int, float]:
        """Sort key that puts the worst results first: by verdict, then by how bad the change is."""
        change = self.judgement.change
        if change is None:  # Unknown changes come last.
            change = math.inf
        elif not self.metric.higher_is_better:
            change = -change
        return list(Verdict).index(self.verdict), change

    @property
    def too_noisy(self) -> bool:
        """Whether a verdict needs so many further pairs (or processes) that none are advised."""
        in_pairs = self.samples.paired or bool(self.judgement.new_experiment)
        return too_many_further(self.judgement.more or 0, in_pairs)


@dataclass(frozen=True, kw_only=True)
class ComparedConfiguration:
    """One configuration of a comparison: its measurements in BASE and NEW, and the result for each
    metric.

    Attributes:
      name: short, unique name.
      rule: number and patterns of the rule that decided; absent if no rule applies.
      key: hash of the flags.
      kind: kind of measurement; absent for runs.
      decides: whether it affects the exit code. Absent for runs, which always affect it.
      verdict: worst verdict on the requested metrics or, without --metrics, on the speed.
      flags: flags that are not at their defaults.
      results: one result per metric.
      differences: flags and recorded properties that differ.
      configuration: the configuration of BASE. The configuration of NEW may differ.
      base, new: measurements by start time, one per process; empty if BASE or NEW lacks the
        configuration.
    """

    json_keys: ClassVar[JsonKeys] = (
        "name",
        "rule",
        Key("key", "configuration.key"),
        Key("kind", rules={**ABSENT, **choice_metadata(tuple(KINDS))}),
        Key("decides", "_decides", ABSENT),
        Key("verdict", "main.verdict"),
        Key("flags", "configuration.non_default_flags"),
        "base_runs",
        "new_runs",
        "results",
        "differences",
    )

    name: str = ""
    rule: str = field(default="", metadata=NOT_EMPTY)
    configuration: Configuration
    base: tuple[Measurement, ...]
    new: tuple[Measurement, ...]
    results: tuple[MetricResult, ...] = ()
    differences: tuple[Difference, ...] = ()

    @property
    def kind(self) -> str | None:
        """Kind of measurement, such as "allreduce"; None for runs."""
        return None if self.configuration.kind == RUN else self.configuration.kind

    @cached_property
    def base_runs(self) -> tuple[str, ...]:
        """The run_ids of the measurements in BASE."""
        return tuple(run.run_id for run in self.base)

    @cached_property
    def new_runs(self) -> tuple[str, ...]:
        """The run_ids of the measurements in NEW."""
        return tuple(run.run_id for run in self.new)

    @cached_property
    def disturbance(self) -> str:
        """Text that says how many runs were disturbed by what; "" if no run recorded its measuring
        conditions.
        """
        return disturbance_text(self.runs)

    @cached_property
    def others(self) -> str:
        """Text about the CPUs that other programs used during the runs; "" if their number is
        unknown or small.
        """
        return other_cpus_text(self.runs)

    @cached_property
    def two_speeds(self) -> tuple[float, ...] | None:
        """The seconds per step of two groups of processes, the faster group first, if processes
        with equal flags have two speeds; otherwise None.

        On busy CPUs, a multi-threaded process may have one of two speeds, which it keeps until it
        ends.
        """
        for side in (self.base, self.new):
            runs = (run for run in side if isinstance(run, RunRecord))
            values = sorted(median(run.step_seconds) for run in runs if run.step_seconds)
            gaps = [after / before for before, after in pairwise(values)]
            if not gaps or max(gaps) < _GAP:
                continue
            place = gaps.index(max(gaps)) + 1
            low, high = values[:place], values[place:]
            within = max(low[-1] / low[0], high[-1] / high[0])
            if min(len(low), len(high)) > 1 and within**2 < max(gaps):
                return median(low), median(high)
        return None

    @property
    def names_to_allow(self) -> tuple[str, ...]:
        """What --allow_different must name, so that the runs can be compared; () if they can be, or
        if it would not help, because runs within BASE or within NEW have different origins.
        """
        if self.main.verdict is not Verdict.NOT_COMPARABLE:
            return ()
        sides = (MeasurementGroup(self.configuration, side) for side in (self.base, self.new))
        if any(varying_parts(side.by_origin()) for side in sides):
            return ()
        # In a value of --allow_different, some characters have a meaning, so the pattern "?"
        # replaces them.
        return tuple(_SPECIAL.sub("?", one.fact) for one in self.differences if one.blocks)

    @property
    def requested_results(self) -> list[MetricResult]:
        """The results for the metrics that the user requested."""
        return [result for result in self.results if result.asked]

    @property
    def main(self) -> MetricResult:
        """The worst of the results for the requested metrics."""
        return min(self.requested_results, key=lambda result: result.severity[0])

    def deciding_result(self, result: MetricResult) -> MetricResult:
        """Returns the result that determined the verdict of `result`: itself or the CPU time."""
        name = result.judgement.decided_by or result.metric.name
        return next(result for result in self.results if result.metric.name == name)

    @property
    def runs(self) -> tuple[Measurement, ...]:
        """All measurements of the configuration, first BASE, then NEW."""
        return (*self.base, *self.new)

    @property
    def affects_exit_code(self) -> bool:
        """Whether it affects the exit code, as all but peers and memory copies do."""
        return self.configuration.kind not in CONTEXT

    def acceptance(self, rules: Rules, metric: Metric, verdict: Verdict) -> Acceptance | None:
        """Returns the acceptance of a verdict on this configuration; None without one."""
        if verdict not in _ACCEPTABLE or not rules.accepts:
            return None
        sides = (self.base, self.new)
        base, new = ([Origin.of(run).revision for run in side] for side in sides)
        return rules.acceptance_between(self.name, metric, _ACCEPTABLE[verdict], base, new)

    @property
    def _decides(self) -> bool | None:
        return None if self.kind is None else self.affects_exit_code


Row: TypeAlias = tuple[ComparedConfiguration, MetricResult]
"""A result with its configuration."""


@dataclass(frozen=True, kw_only=True)
class SameCode:
    """Two commits that were not measured, because no run loads any of the files that differ.

    Attributes:
      base, new: hashes of the commits.
      files: paths of the files that differ.
    """

    base: str
    new: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """The verdicts on all configurations of a comparison, and the exit code that they set.

    Attributes:
      paired: whether runs were compared in pairs.
      allow_changed_work: whether a different size of network or batch is not a regression.
      fail_on: words of --fail_on (see `FAIL_ON`); absent for the default, or if rules set them.
      metrics: names of the judged metrics. Their order has no effect.
      entries: configurations, sorted by name in natural order.
      skipped: files without a usable record.
      same_code: the two commits, if they were not measured because their code is the same; absent
        otherwise.
      names: names of BASE and NEW in sentences.
      ends_with: exit code that replaces the exit code of the verdicts, for a measurement that was
        interrupted or failed.
    """

    paired: bool = False
    allow_changed_work: bool = field(default=False, metadata=OPTIONAL)
    fail_on: tuple[str, ...] | None = None
    metrics: tuple[Metric, ...]
    entries: tuple[ComparedConfiguration, ...]
    skipped: tuple[SkippedFile, ...] = ()
    same_code: SameCode | None = field(default=None, metadata=ABSENT)
    names: tuple[str, str] = ("BASE", "NEW")
    ends_with: ExitCode | None = None

    @property
    def rows(self) -> list[Row]:
        """All results with their configurations."""
        return [(entry, result) for entry in self.entries for result in entry.results]

    def results_of_metric(self, metric: Metric) -> list[Row]:
        """Returns the configurations that have a result for `metric`, each with this result."""
        return [row for row in self.rows if row[1].metric is metric]

    def deciding_results(self, metric: Metric) -> list[Row]:
        """Returns the rows for `metric` that may affect the exit code, the worst first."""
        rows = (row for row in self.results_of_metric(metric) if row[0].affects_exit_code)
        return sorted(rows, key=lambda row: row[1].severity)

    def by_severity(self) -> list[ComparedConfiguration]:
        """Returns the configurations from worst to best: by verdict, then by the change."""
        return sorted(self.entries, key=lambda entry: entry.main.severity)

    @property
    def deciding_configurations(self) -> list[ComparedConfiguration]:
        """The configurations that affect the exit code, sorted from worst to best."""
        return [entry for entry in self.by_severity() if entry.affects_exit_code]

    @property
    def requested_rows(self) -> list[Row]:
        """The results for the requested metrics of all configurations that affect the exit code,
        with their configurations, sorted from worst to best.
        """
        entries = self.deciding_configurations
        return [(entry, result) for entry in entries for result in entry.requested_results]

    @property
    def requested_metrics(self) -> tuple[Metric, ...]:
        """The metrics that the user requested."""
        names = {result.metric.name for _, result in self.requested_rows}
        return tuple(metric for metric in self.metrics if metric.name in names) or self.metrics[:1]

    @property
    def leading_metrics(self) -> tuple[Metric, ...]:
        """The requested metrics, and others, such as CPU time, that determined their verdicts."""
        rows, requested = self.requested_rows, self.requested_metrics
        names = {entry.deciding_result(result).metric.name for entry, result in rows}
        return tuple(one for one in self.metrics if one in requested or one.name in names)

    @property
    def undecided_entries(self) -> list[Row]:
        """Each configuration with an inconclusive result, and its inconclusive result that needs
        the most pairs or processes.

        Configurations for which the number of further runs is known are first.
        """
        rows: list[Row] = []
        for entry in self.deciding_configurations:
            results = entry.requested_results
            still_open = [one for one in results if one.verdict is Verdict.INCONCLUSIVE]
            if still_open:
                rows.append((entry, max(still_open, key=lambda one: one.judgement.needed or 0)))
        return sorted(rows, key=lambda row: row[1].judgement.needed is None)

    @property
    def names_to_allow(self) -> tuple[str, ...]:
        """What --allow_different must name, in addition to what it names, so that configurations
        can be compared that cannot be compared now; () if it would not help.
        """
        entries = self.deciding_configurations
        return tuple(dict.fromkeys(name for entry in entries for name in entry.names_to_allow))

    @property
    def is_decided(self) -> bool:
        """Whether all requested metrics that were measured have a verdict of a test."""
        asked = [result.verdict for _, result in self.rows if result.asked]
        measured = [verdict for verdict in asked if verdict is not Verdict.NOT_MEASURED]
        return bool(measured) and all(verdict in _DECIDED for verdict in measured)

    def sets_exit_code(self, entry: ComparedConfiguration, result: MetricResult) -> bool:
        """Whether a result sets exit code 1, according to --fail_on, rules and accepted commits."""
        settings = (self.fail_on, result.policy.fail_on, USUAL_FAIL_ON)
        words = next(setting for setting in settings if setting is not None)
        if not entry.affects_exit_code or result.verdict not in map(FAIL_ON.get, words):
            return False
        if result.accepted is not None and not result.accepted.has_ended:
            return False
        if result.verdict is Verdict.CHANGED_WORK:
            return not self.allow_changed_work
        return result.asked or result.metric.gates or result.policy.gates

    def annotation_level(
        self, entry: ComparedConfiguration, result: MetricResult
    ) -> AnnotationLevel:
        """The level at which a CI job reports a result: an error if the result sets the exit code,
        or a warning if a bad result does not set the exit code.
        """
        verdict = result.verdict
        bad = verdict in (Verdict.SLOWER, Verdict.CHANGED_WORK, Verdict.FAILED)
        failed = entry.affects_exit_code and result.asked and verdict is Verdict.FAILED
        if failed or self.sets_exit_code(entry, result):
            return AnnotationLevel.ERROR
        if entry.affects_exit_code and (bad or (result.asked and verdict.is_undecided)):
            return AnnotationLevel.WARNING
        return AnnotationLevel.NOTICE if bad or verdict is Verdict.FASTER else AnnotationLevel.NONE

    @property
    def failed_on(self) -> tuple[str, ...]:
        """The words of --fail_on whose verdicts set exit code 1, in the order of `FAIL_ON`."""
        if self.ends_with not in (None, ExitCode.REGRESSION):
            return ()
        verdicts = {one.verdict for entry, one in self.rows if self.sets_exit_code(entry, one)}
        return tuple(word for word, verdict in FAIL_ON.items() if verdict in verdicts)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code. If several exit codes apply, the first of these is used: regression,
        failed runs, inconclusive results or faulty files.
        """
        if self.ends_with is not None:
            return self.ends_with
        if self.same_code is not None:
            return ExitCode.OK
        if self.failed_on:
            return ExitCode.REGRESSION
        verdicts = {result.verdict for _, result in self.requested_rows}
        if Verdict.FAILED in verdicts:
            return ExitCode.FAILED
        is_open = (
            not verdicts
            or any(verdict.is_undecided for verdict in verdicts)
            or any(skipped.defect for skipped in self.skipped)
        )
        return ExitCode.INCONCLUSIVE if is_open else ExitCode.OK
