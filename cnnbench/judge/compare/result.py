"""The result of a comparison: verdicts by configuration and metric, the exit code, and sentences
with the answer and advice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

from cnnbench.base.notebook import Displayed, short_repr
from cnnbench.base.stats import median
from cnnbench.base.text import count_text, first_few, item_count, milliseconds
from cnnbench.errors import ExitCode
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.comparability import Difference
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.compare.disturbance import (
    disturbance_text,
    other_cpus_text,
    repeated_pairs_and_causes,
)
from cnnbench.judge.compare.estimate import (
    AnnotationLevel,
    Samples,
    Verdict,
    is_too_many_further_runs,
)
from cnnbench.judge.compare.judgement import Judgement
from cnnbench.judge.compare.median_step import slow_steps_and_median_change_text
from cnnbench.judge.metrics import (
    BUS_BANDWIDTH,
    CONTEXT,
    CPU_TIME,
    KINDS,
    RUN,
    SPEEDS,
    THROUGHPUT,
    Measurement,
    Policy,
)
from cnnbench.judge.metrics.rules import FAILURES, Acceptance, Rules
from cnnbench.records.codec import (
    ABSENT,
    NOT_EMPTY,
    OPTIONAL,
    Document,
    JsonKeys,
    Key,
    choice_metadata,
    keys_within,
)
from cnnbench.records.documents import json_document
from cnnbench.records.metric import Metric
from cnnbench.records.profiles import Explanation
from cnnbench.records.result_files import SkippedFile
from cnnbench.records.run import RunRecord

FAIL_ON: Mapping[str, Verdict] = dict(
    zip(FAILURES, (Verdict.SLOWER, Verdict.FASTER, Verdict.CHANGED_WORK), strict=True)
)
"""Verdicts that can set exit code 1, by the words of --fail_on."""

USUAL_FAIL_ON = ("slower", "changed")


@dataclass(frozen=True, kw_only=True)
class MetricResult:
    """The result for one metric of one configuration: the judgement, and the values of BASE and
    NEW.

    Attributes:
      metric: name of the metric.
      unit: unit of the values.
      higher_is_better: whether higher values are better.
      relative: whether changes are shares of the base; otherwise they are differences.
      word: word for the verdict that fits the metric, such as "more" for memory.
      asked: whether an inconclusive result sets the exit code.
      base, new: values of BASE and NEW, one per process.
      base_slow_steps, new_slow_steps: texts about slow steps of BASE and NEW. Absent without slow
        steps, or if the change of the median step equals the change of the throughput.
      samples: the judged values.
      policy: how they were judged.
      slow: texts about slow steps of BASE and NEW, if the change of the median step differs from
        the change of the throughput.
      accepted: what accepts the regression; absent if nothing does.
      confirmation: the judgement of a second experiment; absent if there was none.
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
        "confirmation",
        Key("base_slow_steps", rules=NOT_EMPTY),
        Key("new_slow_steps", rules=NOT_EMPTY),
    )

    judgement: Judgement
    samples: Samples
    policy: Policy = field(default=Policy())
    slow: tuple[str, str] = ("", "")
    accepted: Acceptance | None = field(default=None, metadata=ABSENT)
    confirmation: Judgement | None = field(default=None, metadata=ABSENT)

    @property
    def metric(self) -> Metric:
        """The judged metric."""
        return self.samples.metric

    @property
    def paired(self) -> bool:
        """Whether the i-th values of BASE and NEW are a pair."""
        return self.samples.paired

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
    def base_slow_steps(self) -> str:
        """Text about slow steps in the runs of BASE; "" if there is nothing to report."""
        return self.slow[0]

    @property
    def new_slow_steps(self) -> str:
        """Text about slow steps in the runs of NEW; "" if there is nothing to report."""
        return self.slow[1]

    @property
    def interval(self) -> tuple[Metric, float | None, float | None, float | None]:
        """The metric, the change, and the ends of its confidence interval; None if unknown."""
        return self.metric, self.judgement.change, self.judgement.low, self.judgement.high

    @property
    def unanimous_change(self) -> str:
        """Text about a change of the medians that all pairs show, if CPU time was also judged;
        otherwise "". CPU time cannot see waiting, so the text is shown whatever decides.
        """
        if not self.paired or not self.is_joint or self.metric is not THROUGHPUT:
            return ""
        signs = {new > base for base, new in zip(self.base, self.new, strict=True)}
        before, after = self.judgement.base_median, self.judgement.new_median
        if len(signs) != 1 or before is None or after is None or before == after:
            return ""
        texts = (self.metric.value_text(before, unit=False), self.metric.value_text(after))
        word = self.metric.better if signs == {True} else self.metric.worse
        base, new = texts
        pairs = item_count(self.base)
        return phrases.ALL_PAIRS.format(word=word, pairs=pairs, base=base, new=new)

    @property
    def open_question(self) -> str:
        """Text that says which threshold the change may exceed."""
        margin = self.judgement.margin
        if margin is None:
            return ""
        text = self.metric.change_text(margin, signed=False)
        return phrases.OPEN_QUESTION.format(margin=text)

    @property
    def what_is_known(self) -> str:
        """Text with the change, without advice about further pairs or processes."""
        judgement = self.judgement
        if self.verdict is Verdict.INCONCLUSIVE and judgement.low is not None:
            change = phrases.known_change(*self.interval)
            return phrases.SO_FAR_KNOWN.format(change=change, question=self.open_question)
        if judgement.at_least is not None and judgement.change is not None:
            change = phrases.change_text(*self.interval)
            return phrases.SO_FAR_KNOWN.format(change=change, question=phrases.TOO_FEW)
        return judgement.reason

    @property
    def severity(self) -> tuple[int, float]:
        """Sort key that puts the worst results first: by verdict, then by how bad the change is."""
        change = self.judgement.change
        if change is None:  # An unknown change is sorted last among equal verdicts.
            change = math.inf
        elif not self.metric.higher_is_better:
            change = -change
        return list(Verdict).index(self.verdict), change

    @property
    def is_unconfirmed(self) -> bool:
        """Whether a second experiment was made and its verdict is different."""
        return self.confirmation is not None and self.confirmation.verdict is not self.verdict

    @property
    def too_noisy(self) -> bool:
        """Whether a verdict would need so many further pairs (or processes) that none are
        recommended.
        """
        judgement = self.judgement
        return is_too_many_further_runs(
            judgement.more or 0, self.paired or bool(judgement.new_experiment)
        )


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
      base_runs, new_runs: run_ids of BASE and NEW.
      results: one result per metric.
      differences: flags and recorded properties that differ.
      disturbance: text with the number of disturbed runs and the causes; absent if unknown.
      others: text about CPUs used by other programs; absent if unknown or small.
      two_speeds: seconds per step of two groups of processes, if processes with equal flags have
        two speeds; otherwise absent.
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
        "flags",
        "base_runs",
        "new_runs",
        "results",
        "differences",
        Key("disturbance", rules=NOT_EMPTY),
        Key("others", "other_programs_cpu_text", NOT_EMPTY),
        Key("two_speeds", rules=ABSENT),
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

    @property
    def flags(self) -> Mapping[str, Any]:
        """The flags of the configuration whose values are not the defaults."""
        return self.configuration.non_default_flags()

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
    def other_programs_cpu_text(self) -> str:
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
    def requested_results(self) -> list[MetricResult]:
        """The results for the metrics that the user requested."""
        return [result for result in self.results if result.asked]

    @property
    def main(self) -> MetricResult:
        """The worst of the results for the requested metrics."""
        return min(self.requested_results, key=lambda result: result.severity[0])

    def deciding_result(self, result: MetricResult) -> MetricResult:
        """Returns the result that determined the verdict of `result`: `result` itself, or the
        result for CPU time.
        """
        name = result.judgement.decided_by or result.metric.name
        return next(result for result in self.results if result.metric.name == name)

    @property
    def runs(self) -> tuple[Measurement, ...]:
        """All measurements of the configuration, first BASE, then NEW."""
        return (*self.base, *self.new)

    @property
    def affects_exit_code(self) -> bool:
        """Whether the configuration affects the exit code. Reductions of other libraries and memory
        copies do not.
        """
        return self.configuration.kind not in CONTEXT

    @property
    def _decides(self) -> bool | None:
        return None if self.kind is None else self.affects_exit_code


@dataclass(frozen=True, kw_only=True)
class GeometricMean:
    """The geometric mean of the changes of a metric over several configurations.

    Attributes:
      metric: name of the metric.
      change: mean change as a share of the base.
      configurations: number of configurations in the mean.
      of: number of configurations with a verdict on the metric.
    """

    metric: str
    change: float
    configurations: int
    of: int = field(default=0, metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class VerdictCount:
    """The number of configurations that have a certain verdict on a metric.

    Attributes:
      metric: name of the metric.
      verdict: the verdict.
      configurations: number of configurations.
    """

    metric: str
    verdict: Verdict
    configurations: int


@dataclass(frozen=True, kw_only=True)
class ConfigurationCounts:
    """The numbers of configurations in a comparison: in total, and by metric and verdict.

    Attributes:
      deciding: number of configurations that affect the exit code.
      as_the_worst: number of deciding configurations with the same verdict as the worst one.
      tallies: numbers by metric and verdict, worst verdict first.
    """

    deciding: int
    as_the_worst: int
    tallies: tuple[VerdictCount, ...]


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

    @property
    def answer(self) -> str:
        """A sentence that says why the measured code is the same."""
        if not self.files:
            return f"{phrases.SAME_CODE}."
        names = first_few(self.files, _FILES_NAMED, ", ")
        files = "file that differs"
        if len(self.files) > 1:
            files = count_text(self.files, files, "files that differ")
        return f"{phrases.SAME_FILES.format(files=files, names=names)}."


_FILES_NAMED = 3
"""Maximum number of files that an answer names."""


@json_document("cnnbench compare --format=json, cnnbench ab --format=json")
@dataclass(frozen=True, kw_only=True)
class Comparison(Document, Displayed):
    """The result of ``cnnbench compare`` or ``cnnbench ab``, schema 1.

    Attributes:
      exit_code: exit code of the command.
      answer: the result in one or two sentences.
      advice: how to decide an inconclusive result; empty if nothing is inconclusive.
      next_step: command that would decide an inconclusive result; empty if there is none.
      repeat: command that repeats the experiment in a new folder, on any machine with the same
        commits; absent if unknown.
      base_label, new_label: paths of the records, as given by the user.
      paired: whether runs were compared in pairs.
      allow_changed_work: whether a different size of network or batch is not a regression.
      fail_on: words of --fail_on (see `FAIL_ON`); absent for the default, or if rules set them.
      failed_on: the words of `fail_on` that set exit code 1; absent if there are none.
      policy: constants of the tests.
      rules: rules by configuration and metric; absent if there are none.
      metrics: names of the judged metrics. Their order has no effect.
      geometric_mean: mean change of throughput; None if no runs can be compared.
      bus_bandwidth_mean: mean change of the bus bandwidth of all-reduces; absent if there are none.
      summary: numbers of configurations.
      entries: configurations, sorted by name in natural order.
      repeated_pairs: number of pairs measured again because a process was killed; absent if 0.
      explanation: location of the difference; absent if nothing was profiled.
      notes: remarks in sentences.
      skipped: files without a usable record.
      same_code: the two commits, if they were not measured because their code is the same; absent
        otherwise.
      names: names of BASE and NEW in sentences.
      ends_with: exit code that replaces the exit code of the verdicts, for an A/A or interrupted
        measurement.
    """

    kind: ClassVar[str] = "comparison"
    schema: ClassVar[int] = 1
    indented: ClassVar[bool] = True
    json_keys: ClassVar[JsonKeys] = (
        "exit_code",
        Key("answer", rules=OPTIONAL),
        Key("advice", rules=OPTIONAL),
        "next_step",
        "repeat",
        Key("base", "base_label"),
        Key("new", "new_label"),
        "paired",
        "allow_changed_work",
        Key("fail_on", "_unusual_fail_on", ABSENT),
        Key("failed_on", rules=NOT_EMPTY),
        "policy",
        "rules",
        Key("metrics", "_metric_names"),
        "geometric_mean",
        Key("bus_bandwidth_mean", rules=ABSENT),
        Key("summary", rules=OPTIONAL),
        Key("configurations", "entries"),
        Key("repeated_pairs", rules=NOT_EMPTY),
        "explanation",
        "notes",
        "skipped",
        "same_code",
    )

    next_step: str = field(default="", metadata=OPTIONAL)
    repeat: str = field(default="", metadata=NOT_EMPTY)
    base_label: str = "BASE"
    new_label: str = "NEW"
    paired: bool = False
    allow_changed_work: bool = field(default=False, metadata=OPTIONAL)
    fail_on: tuple[str, ...] | None = None
    policy: Policy
    rules: Rules | None = field(default=None, metadata=ABSENT)
    metrics: tuple[Metric, ...]
    entries: tuple[ComparedConfiguration, ...]
    explanation: Explanation | None = field(default=None, metadata=ABSENT)
    notes: tuple[str, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    same_code: SameCode | None = field(default=None, metadata=ABSENT)
    names: tuple[str, str] = ("BASE", "NEW")
    ends_with: ExitCode | None = None

    def __repr__(self) -> str:
        return short_repr(self, self.answer)

    @property
    def _unusual_fail_on(self) -> tuple[str, ...] | None:
        return None if self.fail_on == USUAL_FAIL_ON else self.fail_on

    @property
    def _metric_names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.metrics)

    def sets_exit_code(self, entry: ComparedConfiguration, result: MetricResult) -> bool:
        """Whether the result of a configuration sets exit code 1, according to --fail_on, the rules
        and accepted commits.
        """
        settings = (self.fail_on, result.policy.fail_on, USUAL_FAIL_ON)
        words = next(setting for setting in settings if setting is not None)
        if not entry.affects_exit_code or result.verdict not in map(FAIL_ON.get, words):
            return False
        if result.is_unconfirmed:
            return False
        if result.accepted is not None and not result.accepted.has_ended:
            return False
        if result.verdict is Verdict.CHANGED_WORK:
            return not self.allow_changed_work
        return result.asked or result.metric.gates or result.policy.gates

    @property
    def is_decided(self) -> bool:
        """Whether tests answer the question for all requested metrics that were measured."""
        measured = [
            result
            for entry in self.entries
            for result in entry.requested_results
            if result.verdict is not Verdict.NOT_MEASURED
        ]
        return bool(measured) and all(
            result.verdict in _TESTED and not result.verdict.is_undecided for result in measured
        )

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
        verdicts = {
            result.verdict
            for entry in self.entries
            for result in entry.results
            if self.sets_exit_code(entry, result)
        }
        return tuple(word for word, verdict in FAIL_ON.items() if verdict in verdicts)

    @property
    def metrics_to_confirm(self) -> tuple[str, ...]:
        """Names of the metrics with a regression or gain that sets exit code 1."""
        found = {
            one.metric.name
            for entry in self.entries
            for one in entry.results
            if one.verdict in _DIRECTIONS and self.sets_exit_code(entry, one)
        }
        return tuple(one.name for one in self.metrics if one.name in found)

    @property
    def unconfirmed_results(self) -> list[MetricResult]:
        """The results for which a second experiment had a different verdict."""
        return [
            one
            for entry in self.deciding_configurations
            for one in entry.results
            if one.is_unconfirmed
        ]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code. If several exit codes apply, the first of these is used: regression,
        failed runs, inconclusive results or faulty files.
        """
        if self.ends_with is not None:
            return self.ends_with
        if self.same_code is not None:
            return ExitCode.OK
        entries = self.deciding_configurations
        if self.failed_on:
            return ExitCode.REGRESSION
        verdicts = {result.verdict for entry in entries for result in entry.requested_results}
        if Verdict.FAILED in verdicts:
            return ExitCode.FAILED
        is_open = any(verdict.is_undecided for verdict in verdicts) or bool(
            self.unconfirmed_results
        )
        if is_open or any(skipped.defect for skipped in self.skipped) or not entries:
            return ExitCode.INCONCLUSIVE
        return ExitCode.OK

    @property
    def answer(self) -> str:
        """One or more sentences: the outcome of the worst configuration, then other metrics that
        are worse or undecided.
        """
        headline, addition = self._opening
        opening = "; ".join(filter(None, (headline, addition)))
        return " ".join([f"{opening}.", *self._further_sentences])

    @property
    def headline(self) -> str:
        """The beginning of the answer, as the headline of a page: the outcome, or how many
        configurations have the worst outcome.
        """
        return self._opening[0]

    @property
    def lines_below_headline(self) -> list[str]:
        """The parts of the answer after its headline."""
        return [*filter(None, self._opening[1:]), *self._further_sentences]

    @property
    def _opening(self) -> tuple[str, str]:
        """The headline and what adds to it, or "": together the first sentence of the answer."""
        if self.same_code is not None:
            return self.same_code.answer.rstrip("."), ""
        entries = self.deciding_configurations
        if not entries:
            return phrases.NOTHING, ""
        worst = entries[0]
        if len(entries) == 1:
            return _outcome(self, worst)
        alike, deciding = self.summary.as_the_worst, self.summary.deciding
        if worst.main.verdict is Verdict.SAME:
            return phrases.ALL_SAME.format(count=deciding), ""
        outcome = "; ".join(filter(None, _outcome(self, worst)))
        how_many = phrases.COUNT_OF_WORST.format(alike=alike, count=deciding, word=worst.main.word)
        return how_many, f"{worst.name}: {outcome}"

    @property
    def _further_sentences(self) -> list[str]:
        """The sentences of the answer after the first one."""
        entries = self.deciding_configurations
        if self.same_code is not None or not entries:
            return []
        return [
            *_further_metric_sentences(self, entries),
            *self._confirmation_sentences(),
            *self._accepted_sentences(),
        ]

    def _confirmation_sentences(self) -> Iterator[str]:
        """Yields a sentence for each result that a second experiment confirmed or did not
        confirm.
        """
        for entry in self.deciding_configurations:
            for result in entry.results:
                if result.confirmation is not None:
                    metric = "" if result.metric in SPEEDS else result.metric.name
                    reason = result.confirmation.reason.rstrip(".")
                    finding = reason
                    if metric:
                        finding = phrases.ABOUT.format(name=metric, sentence=reason)
                    template = phrases.CONFIRMED
                    if result.is_unconfirmed:
                        template = phrases.NOT_CONFIRMED
                    yield template.format(finding=finding)

    def _accepted_sentences(self) -> list[str]:
        """Returns a list with one sentence about the regressions that rules accept, or an empty
        list if there are none.
        """
        commits = {
            accepted.source_text
            for entry in self.entries
            for result in entry.results
            if (accepted := result.accepted) is not None and not accepted.has_ended
        }
        sources = "; ".join(sorted(commits))
        return [phrases.ACCEPTED.format(sources=sources)] if commits else []

    @property
    def advice(self) -> str:
        """A sentence that says how to get a verdict on the first inconclusive configuration; "" if
        no configuration is inconclusive.
        """
        entry, result = next(iter(undecided_results(self)), (None, None))
        if entry is None or result is None or result.judgement.needed is None:
            return ""
        more = result.judgement.more or 0
        if result.too_noisy:
            sentence = phrases.REMEDIES.format(
                runs=phrases.plural(result.paired),
                remedies=phrases.alternatives([*_remedy_texts(entry)]),
            )
        elif result.judgement.new_experiment:
            sentence = phrases.NEW_EXPERIMENT.format(pairs=more)
        else:
            sentence = phrases.MORE_RUNS.format(more=phrases.more_runs_text(more, result.paired))
        if len(self.entries) == 1:
            return sentence
        return phrases.ABOUT.format(name=entry.name, sentence=sentence)

    @property
    def repeated_pairs(self) -> int:
        """Number of pairs that were measured again because one of their processes was killed."""
        return repeated_pairs_and_causes(run for entry in self.entries for run in entry.runs)[0]

    @property
    def requested_metrics(self) -> tuple[Metric, ...]:
        """The metrics that the user requested."""
        names = {
            result.metric.name
            for entry in self.deciding_configurations
            for result in entry.requested_results
        }
        return tuple(metric for metric in self.metrics if metric.name in names) or self.metrics[:1]

    @property
    def requested_and_deciding_metrics(self) -> tuple[Metric, ...]:
        """The requested metrics, followed by other metrics, such as CPU time, that determined a
        verdict on a requested metric.
        """
        names = {
            entry.deciding_result(result).metric.name
            for entry in self.deciding_configurations
            for result in entry.requested_results
        }
        return tuple(
            metric
            for metric in self.metrics
            if metric in self.requested_metrics or metric.name in names
        )

    def results_of_metric(self, metric: Metric) -> list[tuple[ComparedConfiguration, MetricResult]]:
        """Returns the configurations that have a result for `metric`, each with this result."""
        results = ((entry, result) for entry in self.entries for result in entry.results)
        return [pair for pair in results if pair[1].metric is metric]

    def deciding_results(self, metric: Metric) -> list[tuple[ComparedConfiguration, MetricResult]]:
        """Returns the configurations that affect the exit code, each with its result for `metric`.
        The worst results are first.
        """
        results = (pair for pair in self.results_of_metric(metric) if pair[0].affects_exit_code)
        return sorted(results, key=lambda pair: pair[1].severity)

    @property
    def deciding_configurations(self) -> list[ComparedConfiguration]:
        """The configurations that affect the exit code, sorted from worst to best."""
        return [entry for entry in self.by_severity() if entry.affects_exit_code]

    def by_severity(self) -> list[ComparedConfiguration]:
        """Returns the configurations, sorted from worst to best: by verdict, then by the size of
        the change.
        """
        return sorted(self.entries, key=lambda entry: entry.main.severity)

    @cached_property
    def geometric_means(self) -> dict[str, GeometricMean]:
        """The geometric mean of the changes of each speed (throughput, bus bandwidth), without
        configurations that cannot be compared.
        """
        means = {}
        for metric in SPEEDS:
            known = (result.judgement.change for _, result in self.results_of_metric(metric))
            changes = [change for change in known if change is not None and -1 < change < math.inf]
            if changes:
                means[metric.name] = GeometricMean(
                    metric=metric.name,
                    change=math.expm1(math.fsum(map(math.log1p, changes)) / len(changes)),
                    configurations=len(changes),
                    of=sum(entry.configuration.kind in metric.judged for entry in self.entries),
                )
        return means

    @property
    def geometric_mean(self) -> GeometricMean | None:
        """Geometric mean of the changes of throughput; None if no runs can be compared."""
        return self.geometric_means.get(THROUGHPUT.name)

    @property
    def bus_bandwidth_mean(self) -> GeometricMean | None:
        """Geometric mean of the changes of the all-reduces' bus bandwidth; None if there are no
        all-reduces.
        """
        return self.geometric_means.get(BUS_BANDWIDTH.name)

    @cached_property
    def summary(self) -> ConfigurationCounts:
        """Numbers of configurations, in total and by metric and verdict."""
        deciding = self.deciding_configurations
        tallies = []
        for metric in self.metrics:
            counts = Counter(result.verdict for _, result in self.results_of_metric(metric))
            tallies += [
                VerdictCount(metric=metric.name, verdict=verdict, configurations=counts[verdict])
                for verdict in Verdict
                if counts[verdict]
            ]
        return ConfigurationCounts(
            deciding=len(deciding),
            as_the_worst=sum(entry.main.word == deciding[0].main.word for entry in deciding),
            tallies=tuple(tallies),
        )


_DIRECTIONS = (Verdict.SLOWER, Verdict.FASTER)
_LIMITED = (Verdict.NOT_SLOWER, Verdict.NOT_FASTER)

_GAP = 1.5
"""Minimum ratio of the two speeds of processes with equal flags. Within each of the two groups, the
ratio of the slowest to the fastest process must be less than the square root of this ratio.
"""

_SHORT_SECONDS = 4.0
"""If the timed steps of a run take less time than this, the first advice is to make them longer."""


def undecided_results(comparison: Comparison) -> list[tuple[ComparedConfiguration, MetricResult]]:
    """Returns each configuration with an inconclusive result, and its inconclusive result that
    needs the most pairs or processes.

    Configurations for which the number of further runs is known are first.
    """
    open_results = []
    for entry in comparison.deciding_configurations:
        inconclusive = [
            result for result in entry.requested_results if result.verdict is Verdict.INCONCLUSIVE
        ]
        if inconclusive:
            open_results.append(
                (entry, max(inconclusive, key=lambda result: result.judgement.needed or 0))
            )
    return sorted(open_results, key=lambda pair: pair[1].judgement.needed is None)


def with_second_experiment(first: Comparison, second: Comparison) -> Comparison:
    """Returns the comparison `first` with the judgements of a second experiment, which measured the
    same configuration again.

    Only results for metrics that were requested in the second experiment are confirmed.
    """
    found = {
        one.metric.name: one.judgement
        for entry in second.entries
        for one in entry.requested_results
    }

    def with_confirmation(result: MetricResult) -> MetricResult:
        again = found.get(result.metric.name)
        if again is None or result.verdict not in _DIRECTIONS:
            return result
        reason = phrases.MEASURED_AGAIN.format(reason=result.judgement.reason, again=again.reason)
        judgement = replace(result.judgement, reason=reason)
        return replace(result, confirmation=again, judgement=judgement)

    entries = (
        replace(one, results=tuple(map(with_confirmation, one.results))) for one in first.entries
    )
    return replace(first, entries=tuple(entries))


_TESTED = (*_DIRECTIONS, *_LIMITED, Verdict.SAME, Verdict.INCONCLUSIVE)
_UNTESTED: Mapping[str, Any] = dict.fromkeys(
    (
        "low",
        "high",
        "p",
        "p_adjusted",
        "needed",
        "more",
        "at_least",
        "verdict_needs",
        "provable_change",
        "new_experiment",
        "decided_by",
    )
)


def without_tests(comparison: Comparison, reason: str) -> Comparison:
    """Returns the comparison of an unfinished experiment: with the estimated changes so far, but
    without tests and their verdicts.

    A test before the end of the experiment would use a part of the significance level. Verdicts
    that follow from records, such as "failed", are kept. `reason` says why there is no verdict.
    """

    def untested(result: MetricResult) -> MetricResult:
        judgement = result.judgement
        if judgement.verdict not in _TESTED:
            return result
        why = reason
        if judgement.change is not None:
            change = phrases.change_text(result.metric, judgement.change, None, None)
            why = phrases.SO_FAR.format(reason=reason, change=change)
        withheld = {**_UNTESTED, "verdict": Verdict.INCONCLUSIVE, "reason": why, "note": None}
        return replace(result, judgement=replace(judgement, **withheld))

    entries = (
        replace(one, results=tuple(map(untested, one.results))) for one in comparison.entries
    )
    return replace(comparison, entries=tuple(entries))


def _outcome(comparison: Comparison, entry: ComparedConfiguration) -> tuple[str, str]:
    """Returns the outcome of a configuration, and what adds to it, such as slow steps ("" if
    nothing does). Neither has a full stop.
    """
    result = entry.main
    judgement, verdict = result.judgement, result.verdict
    if verdict is Verdict.CHANGED_WORK:
        return judgement.reason.rstrip("."), ""
    of_all_pairs = result.unanimous_change
    outcome = _tested_outcome(comparison, entry, result)
    if not outcome:
        word = "undecided" if verdict is Verdict.INCONCLUSIVE else result.word
        reason = judgement.reason.rstrip(".")
        return phrases.ABOUT.format(name=word.capitalize(), sentence=reason), of_all_pairs
    beside = slow_steps_and_median_change_text(
        judgement.median_change, result.slow, comparison.names, result.paired
    )
    if verdict not in _DIRECTIONS or judgement.decided_by is not None:
        beside = "; ".join(filter(None, (beside, of_all_pairs)))
    return outcome, beside


def _tested_outcome(
    comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> str:
    """Returns the outcome of a test; "" if there was none."""
    decisive = entry.deciding_result(result)
    runs = phrases.runs_text(item_count(result.base), item_count(result.new), comparison.paired)
    known = {"base": comparison.names[0], "new": comparison.names[1], "runs": runs}
    known |= {"word": result.word, "metric": result.metric.name}
    is_speed, by_cpu_time = result.metric in SPEEDS, decisive is not result
    # If the CPU time was also judged, numbers of the throughput are labelled, too.
    label = phrases.metric_name(decisive.metric)
    label = "" if is_speed and not result.is_joint else label
    if result.verdict in _DIRECTIONS:
        template = phrases.CHANGED if is_speed else phrases.CHANGED_METRIC
        return (phrases.CHANGED_BY_CPU_TIME if by_cpu_time else template).format(
            size=phrases.size_text(*decisive.interval),
            p=phrases.chance(decisive.judgement.p_adjusted),
            **known,
        )
    change = phrases.change_text(*decisive.interval)
    if result.verdict is Verdict.SAME:
        return phrases.SAME.format(change=phrases.labelled(label, change), **known)
    if result.verdict in _LIMITED:
        if is_speed:
            return phrases.LIMITED.format(change=phrases.labelled(label, change), **known)
        return phrases.LIMITED_METRIC.format(**{**known, "metric": label, "change": change})
    if result.verdict is not Verdict.INCONCLUSIVE or result.judgement.low is None:
        return ""
    if result.too_noisy:
        # The texts name the metrics, if several were judged.
        label = "" if result.is_joint else label
        noise = phrases.labelled(label, "; ".join(_noise_texts(entry, result)))
        return phrases.NOISY.format(noise=noise)
    change = phrases.labelled(label, phrases.known_change(*result.interval))
    return phrases.UNDECIDED.format(change=change, question=result.open_question, **known)


def _further_metric_sentences(
    comparison: Comparison, entries: Sequence[ComparedConfiguration]
) -> Iterator[str]:
    """Yields a sentence for each further metric that is worse, inconclusive or missing in a
    configuration. The sentence is about the worst configuration.

    `entries` are sorted from worst to best. The main result of the first entry is excluded, because
    the answer contains it.
    """
    shown = [entries[0].main.metric]
    for metric in comparison.metrics:
        for entry, result in comparison.deciding_results(metric):
            if metric in shown:
                break
            name, text = metric.name, result.judgement.reason
            if result.verdict is Verdict.NOT_MEASURED:
                name = result.word
            elif result.verdict in _DIRECTIONS and (
                result.is_unconfirmed or comparison.sets_exit_code(entry, result)
            ):
                text = phrases.size_text(*entry.deciding_result(result).interval)
            elif result.asked and result.verdict is Verdict.INCONCLUSIVE:
                if result.judgement.low is not None:
                    text = phrases.known_change(*result.interval)
                text = phrases.STILL_UNDECIDED.format(known=text)
            else:
                continue
            shown.append(metric)
            finding = phrases.ABOUT.format(name=name.capitalize(), sentence=text)
            if len(entries) == 1:
                yield f"{finding}."
            else:
                yield phrases.IN_CONFIGURATION.format(finding=finding, name=entry.name)


def _noise_texts(entry: ComparedConfiguration, result: MetricResult) -> Iterator[str]:
    if entry.two_speeds is not None:
        quick, slow = map(milliseconds, entry.two_speeds)
        yield phrases.TWO_SPEEDS.format(quick=quick, slow=slow)
    elif (scatter := result.judgement.scatter) is not None:
        texts = [phrases.scatter_text(scatter, result.metric, False)]
        if result.is_joint:
            tested = [one for one in entry.results if one.metric in (result.metric, CPU_TIME)]
            texts = [
                phrases.scatter_text(one.judgement.scatter, one.metric, True)
                for one in tested
                if one.judgement.scatter is not None
            ]
        runs = phrases.plural(result.paired)
        yield phrases.DIFFER.format(runs=runs, scatters=" and ".join(texts))
    if entry.other_programs_cpu_text:
        yield entry.other_programs_cpu_text


def _remedy_texts(entry: ComparedConfiguration) -> Iterator[str]:
    runs = [run for run in entry.runs if isinstance(run, RunRecord)]
    timed = [sum(run.step_seconds) for run in runs if run.step_seconds]
    if timed and median(timed) < _SHORT_SECONDS:
        yield phrases.LONGER_RUNS
    flags = runs[-1].config if runs else {}
    if flags.get("device") == "cpu" and flags.get("num_intra_threads") != 1:
        yield phrases.ONE_THREAD
    yield phrases.IDLE_MACHINE
