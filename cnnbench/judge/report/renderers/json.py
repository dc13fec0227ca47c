"""A comparison as a JSON document, schema 1; docs/schemas/comparison.schema.json describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cnnbench.judge.compare.comparability import Difference
from cnnbench.judge.compare.judgement import Judgement, Verdict
from cnnbench.judge.compare.result import (
    ComparedConfiguration,
    Comparison,
    ConfigurationCounts,
    GeometricMean,
    MetricResult,
    advice,
    answer,
)
from cnnbench.judge.metrics.measurement import BUS_BANDWIDTH, KINDS, RUN, THROUGHPUT, Policy
from cnnbench.records.codec import ABSENT, OPTIONAL, Document, gathered, one_of
from cnnbench.records.load import SkippedFile
from cnnbench.records.metric import METRICS, Metric
from cnnbench.records.profiles import Explanation


@dataclass(frozen=True, kw_only=True)
class PolicyDocument(Policy):
    """Constants of the verdicts, and rules of single metrics.

    Attributes:
      memory_threshold, startup_threshold, accuracy_threshold: smallest change that counts of these.
      memory_bytes: smallest change of peak memory that counts, in bytes.
    """

    memory_threshold: float = METRICS["memory"].threshold or 0.0
    memory_bytes: int = int(METRICS["memory"].least)
    startup_threshold: float = METRICS["startup"].threshold or 0.0
    accuracy_threshold: float = METRICS["accuracy"].threshold or 0.0


@dataclass(frozen=True, kw_only=True)
class ResultDocument(Judgement):
    """One metric of one configuration.

    Attributes:
      metric: name of the metric.
      unit: unit of the values.
      higher_is_better: whether higher values are better.
      relative: whether changes are shares of the base; otherwise they are differences.
      word: the verdict in the words of the metric, such as "more" for memory.
      asked: whether an open question about it counts for the exit code.
      base_values, new_values: values of BASE and of NEW, one per process.
      base_slow_steps, new_slow_steps: slow steps of BASE and of NEW, in words; absent where the
        change at the median step is that of the throughput, or a side has none.
    """

    metric: str
    unit: str
    higher_is_better: bool
    relative: bool
    word: str
    asked: bool = field(metadata=OPTIONAL)
    base_values: tuple[float, ...]
    new_values: tuple[float, ...]
    base_slow_steps: str | None = field(default=None, metadata=ABSENT)
    new_slow_steps: str | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, kw_only=True)
class EntryDocument:
    """One configuration.

    Attributes:
      name: short, unique name.
      key: hash of the flags.
      kind: kind of its measurements; absent for runs.
      decides: whether it counts for the exit code; absent for runs, which do.
      verdict: worst verdict on the metrics that were asked for; without --metrics, on the speed.
      flags: flags that are not at their defaults.
      base_runs, new_runs: run_ids of BASE and of NEW.
      results: one result per metric.
      differences: facts that differ.
      disturbance: the number of disturbed runs and the causes, in words; absent if unknown.
      others: what other programs use of the CPUs, in words; absent if unknown or little.
      two_speeds: seconds per step of two groups of like processes; absent if there is one group.
    """

    name: str
    key: str
    kind: str | None = field(default=None, metadata={**ABSENT, **one_of(tuple(KINDS))})
    decides: bool | None = field(default=None, metadata=ABSENT)
    verdict: Verdict
    flags: Mapping[str, Any]
    base_runs: tuple[str, ...]
    new_runs: tuple[str, ...]
    results: tuple[ResultDocument, ...]
    differences: tuple[Difference, ...]
    disturbance: str | None = field(default=None, metadata=ABSENT)
    others: str | None = field(default=None, metadata=ABSENT)
    two_speeds: tuple[float, ...] | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True, kw_only=True)
class ComparisonDocument(Document):
    """The outcome of ``cnnbench compare`` or ``ab``, schema 1.

    Attributes:
      exit_code: exit code of the command.
      answer: the result in one or two sentences.
      advice: what would decide an inconclusive result; empty if nothing is inconclusive.
      next_step: the command that would decide it; empty if there is none.
      base, new: paths of the records, as given.
      paired: whether runs were compared pair by pair.
      allow_changed_work: whether a network or batch of another size is no regression.
      policy: constants of the verdicts.
      metrics: names of the judged metrics, whose order changes nothing.
      geometric_mean: mean change of throughput; None without runs that can be compared.
      bus_bandwidth_mean: mean change of the bus bandwidth of all-reduces; absent without any.
      summary: numbers of configurations.
      configurations: configurations in natural order of their names.
      repeated_pairs: number of pairs measured again because a process was killed; absent if 0.
      explanation: where the difference is; absent where nothing was profiled.
      notes: remarks in sentences.
      skipped: files that gave no record.
    """

    kind: ClassVar[str] = "comparison"
    schema: ClassVar[int] = 1

    exit_code: int
    answer: str = field(metadata=OPTIONAL)
    advice: str = field(metadata=OPTIONAL)
    next_step: str = field(metadata=OPTIONAL)
    base: str
    new: str
    paired: bool
    allow_changed_work: bool = field(metadata=OPTIONAL)
    policy: PolicyDocument
    metrics: tuple[str, ...]
    geometric_mean: GeometricMean | None
    bus_bandwidth_mean: GeometricMean | None = field(metadata=ABSENT)
    summary: ConfigurationCounts | None = field(default=None, metadata=ABSENT)
    configurations: tuple[EntryDocument, ...]
    repeated_pairs: int | None = field(default=None, metadata=ABSENT)
    explanation: Explanation | None = field(default=None, metadata=ABSENT)
    notes: tuple[str, ...]
    skipped: tuple[SkippedFile, ...]


def render(comparison: Comparison) -> str:
    """The document, indented, valid for strict parsers."""
    return json.dumps(document(comparison).to_dict(), indent=1, allow_nan=False) + "\n"


def document(comparison: Comparison) -> ComparisonDocument:
    """The content of the document."""
    return gathered(
        ComparisonDocument,
        comparison,
        policy=PolicyDocument(**vars(comparison.policy)),
        answer=answer(comparison),
        advice=advice(comparison),
        base=comparison.base_label,
        new=comparison.new_label,
        metrics=tuple(metric.name for metric in comparison.metrics),
        geometric_mean=comparison.means.get(THROUGHPUT.name),
        bus_bandwidth_mean=comparison.means.get(BUS_BANDWIDTH.name),
        configurations=tuple(map(_entry, comparison.entries)),
        repeated_pairs=comparison.repeated_pairs or None,
    )


def _entry(entry: ComparedConfiguration) -> EntryDocument:
    run = entry.configuration.kind == RUN
    return gathered(
        EntryDocument,
        entry,
        entry.configuration,
        **({"kind": None, "decides": None} if run else {}),
        verdict=entry.main.verdict,
        flags=entry.configuration.not_default(),
        disturbance=entry.disturbance or None,
        others=entry.others or None,
        results=tuple(map(_result, entry.results)),
    )


def _result(result: MetricResult) -> ResultDocument:
    metric: Metric = result.metric
    sides: dict[str, Any] = {"base_values": result.base, "new_values": result.new}
    if (beside := result.median_step) is not None:
        before, after = beside.slow
        sides |= {"base_slow_steps": before or None, "new_slow_steps": after or None}
    return gathered(ResultDocument, result.judgement, metric, result, metric=metric.name, **sides)
