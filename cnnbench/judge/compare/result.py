"""A comparison as a document: its verdicts, with an answer, advice and means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from cnnbench.base.notebook import Displayed, short_repr
from cnnbench.judge.compare import answers
from cnnbench.judge.compare.disturbance import remeasured_pairs
from cnnbench.judge.compare.judgement import NEEDS, Verdict
from cnnbench.judge.compare.verdicts import (
    TESTED,
    USUAL_FAIL_ON,
    MetricResult,
    Verdicts,
)
from cnnbench.judge.metrics.judged import BUS_BANDWIDTH, SPEEDS, THROUGHPUT
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.rules import Rules
from cnnbench.records.codec import (
    ABSENT,
    HIDDEN,
    NOT_EMPTY,
    OPTIONAL,
    Document,
    JsonKeys,
    Key,
    json_document,
)
from cnnbench.records.explanation import Explanation


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
    of: int = field(default=0, metadata=HIDDEN)


@json_document("cnnbench compare --format=json, cnnbench ab --format=json")
@dataclass(frozen=True, kw_only=True)
class Comparison(Verdicts, Document, Displayed):
    """The result of ``cnnbench compare`` or ``cnnbench ab``, schema 1.

    Attributes:
      next_step: command that would decide a result that is inconclusive or not comparable; empty
        if there is none.
      repeat: command that repeats the experiment in a new folder, on any machine with the same
        commits; absent if unknown.
      base_label, new_label: paths of the records, as given by the user.
      failed_on: the words of `fail_on` that set exit code 1; absent if there are none.
      policy: constants of the tests.
      rules: rules by configuration and metric; absent if there are none.
      bus_bandwidth_mean: mean change of the bus bandwidth of all-reduces; absent if there are none.
      repeated_pairs: number of pairs measured again because a process was killed; absent if 0.
      explanation: location of the difference; absent if nothing was profiled.
      notes: remarks in sentences.
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
    policy: Policy
    rules: Rules | None = field(default=None, metadata=ABSENT)
    explanation: Explanation | None = field(default=None, metadata=ABSENT)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return short_repr(self, self.answer)

    @property
    def _unusual_fail_on(self) -> tuple[str, ...] | None:
        return None if self.fail_on == USUAL_FAIL_ON else self.fail_on

    @property
    def _metric_names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.metrics)

    @property
    def answer(self) -> str:
        """The result in one or more sentences: the outcome of the worst configuration, then other
        metrics that are worse or undecided.
        """
        first = "; ".join(filter(None, answers.opening(self)))
        return " ".join([f"{first}.", *answers.further_sentences(self)])

    @property
    def answer_lines(self) -> list[str]:
        """The parts of the answer. The first part is the headline: the outcome, or how many
        configurations have the worst outcome.
        """
        return [*filter(None, answers.opening(self)), *answers.further_sentences(self)]

    @property
    def advice(self) -> str:
        """How to decide the first inconclusive configuration, and how to compare configurations
        that are not comparable; empty if there are none.
        """
        return answers.advice(self)

    @property
    def repeated_pairs(self) -> int:
        """Number of pairs that were measured again because one of their processes was killed."""
        return remeasured_pairs(run for entry in self.entries for run in entry.runs)[0]

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
        """Geometric mean of the changes of the bus bandwidth; None without all-reduces."""
        return self.geometric_means.get(BUS_BANDWIDTH.name)


_UNTESTED: Mapping[str, Any] = dict.fromkeys(
    ("low", "high", "p", "p_adjusted", "decided_by", *NEEDS)
)


def without_tests(comparison: Comparison, reason: str) -> Comparison:
    """Returns the comparison of an unfinished experiment: with the estimated changes so far, but
    without tests and their verdicts.

    A test before the end of the experiment would use a part of the significance level. Verdicts
    that follow from records, such as "failed", are kept. `reason` says why there is no verdict.
    """

    def untested(result: MetricResult) -> MetricResult:
        judgement = result.judgement
        if judgement.verdict not in TESTED:
            return result
        why = reason
        if judgement.change is not None:
            change = result.metric.change_text(judgement.change)
            why = f"{reason}; so far {change}"
        withheld = {**_UNTESTED, "verdict": Verdict.INCONCLUSIVE, "reason": why, "note": None}
        return replace(result, judgement=replace(judgement, **withheld))

    entries = (
        replace(entry, results=tuple(map(untested, entry.results))) for entry in comparison.entries
    )
    return replace(comparison, entries=tuple(entries))
