"""Compares two sets of records and returns a `Comparison`: one entry for each configuration, with a
verdict on each metric.

`compare_records` tells the whole way: the runs are matched by configuration, alpha is shared among
the metrics, the values become `Samples`, and `judge_all` returns a judgement of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

from cnnbench.base.inference import analyses_until
from cnnbench.base.tables import natural_key
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.comparability import (
    MeasurementGroup,
    fact_differences,
    incomparable_outcome,
    incomplete_outcome,
    missing_metric_outcome,
)
from cnnbench.judge.compare.configuration import unique_names
from cnnbench.judge.compare.criteria import Criteria, share_alpha
from cnnbench.judge.compare.disturbance import joint_judgement, with_cpu_time
from cnnbench.judge.compare.estimate import Samples
from cnnbench.judge.compare.facts import NOTHING, UNKNOWN
from cnnbench.judge.compare.judgement import Case, Judgement, Verdict, judge_all
from cnnbench.judge.compare.matching import (
    are_sides_of_experiment,
    group_by_configuration,
    keep_complete_pairs,
    match_groups,
)
from cnnbench.judge.compare.median_step import change_and_slow_steps
from cnnbench.judge.compare.notes import comparison_notes, left_out_notes
from cnnbench.judge.compare.result import Comparison
from cnnbench.judge.compare.rows import records_to_measurements
from cnnbench.judge.compare.verdicts import ComparedConfiguration, MetricResult
from cnnbench.judge.metrics.judged import CPU_TIME, THROUGHPUT, metrics_to_judge
from cnnbench.judge.metrics.measurement import RUN
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.rules import Rules
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.load import SkippedFile
from cnnbench.records.metric import Metric
from cnnbench.records.run import RunRecord

_Sides: TypeAlias = tuple[MeasurementGroup, MeasurementGroup]
"""The runs of one configuration in BASE and in NEW."""

_DEFAULT = Criteria()


def compare_records(
    base: Iterable[RunRecord | AllReduceRecord],
    new: Iterable[RunRecord | AllReduceRecord],
    criteria: Criteria = _DEFAULT,
    *,
    labels: tuple[str, str] = ("BASE", "NEW"),
    skipped: Sequence[SkippedFile] = (),
) -> Comparison:
    """Compares the records of BASE with the records of NEW, separately for each configuration.

    Args:
      base, new: records, one per process. Each row of an all-reduce record is a configuration.
      criteria: by what the records are judged.
      labels: paths or names of BASE and NEW in the output.
      skipped: files that contain no usable record.
    """
    processes = (tuple(base), tuple(new))
    matched, left_out = _match_runs(processes, criteria)
    by_key = unique_names([group.configuration for group, _ in matched])
    named = [(by_key[group.configuration.key], group.configuration.kind) for group, _ in matched]
    shared = share_alpha(criteria, named)
    prepared = [
        _prepare_cases(sides, name, policies, criteria)
        for sides, (name, _), policies in zip(matched, named, shared, strict=True)
    ]
    cases = [case for _, own in prepared for case in own]
    judgements = iter(judge_all(cases))
    rules = criteria.applied_rules
    entries = [
        _add_results(entry, own, [*islice(judgements, len(own))], rules) for entry, own in prepared
    ]
    tested = [case.samples.paired for case in cases if case.known is None]
    unpaired = [
        len(before.records) + len(after.records) - len(entry.runs)
        for (before, after), entry in zip(matched, entries, strict=True)
    ]
    notes = comparison_notes(processes, entries, unpaired, rules)
    is_paired = criteria.paired
    return Comparison(
        entries=tuple(sorted(entries, key=lambda entry: natural_key(entry.name))),
        policy=criteria.policy,
        metrics=_shown_metrics(criteria.metric_names, entries),
        paired=bool(tested) and all(tested) if is_paired is None else is_paired,
        allow_changed_work=criteria.allow_changed_work,
        fail_on=None if criteria.fail_on is None else tuple(criteria.fail_on),
        rules=rules if rules != Rules() else None,
        notes=(*left_out, *notes),
        base_label=labels[0],
        new_label=labels[1],
        names=("A", "B") if are_sides_of_experiment(*processes) else ("BASE", "NEW"),
        skipped=tuple(skipped),
    )


def are_comparable(
    base: Iterable[RunRecord], new: Iterable[RunRecord], criteria: Criteria = _DEFAULT
) -> bool:
    """Whether further runs like these may lead to a verdict: whether the runs succeeded, and only
    differ in what may differ. Nothing is tested.
    """
    matched, _ = _match_runs((tuple(base), tuple(new)), criteria)
    for before, after in matched:
        unlike = fact_differences(before, after, criteria.patterns)
        if incomparable_outcome(before, after, unlike, THROUGHPUT) is not None:
            return False
    return True


def _match_runs(
    processes: Sequence[Sequence[RunRecord | AllReduceRecord]], criteria: Criteria
) -> tuple[list[_Sides], list[str]]:
    """Matches the runs of BASE and NEW by configuration. Returns the configurations that have one
    of the metrics to judge, and notes about configurations without these metrics.
    """
    names, patterns = criteria.metric_names, criteria.patterns
    sides = group_by_configuration(*records_to_measurements(*processes, patterns=patterns))
    base, new = (
        [group for group in side if metrics_to_judge(names, {group.configuration.kind})]
        for side in sides
    )
    return match_groups(base, new, patterns), left_out_notes(sides, names)


def _prepare_cases(
    sides: _Sides, name: str, policies: Sequence[tuple[Metric, Policy]], criteria: Criteria
) -> tuple[ComparedConfiguration, list[Case]]:
    """Returns a configuration with the runs to compare, without results, and the samples of its
    metrics, with the verdicts that need no test. The samples are in the order of `METRICS`.

    Args:
      name: name of the configuration.
      policies: its metrics to judge, and how they are judged.
    """
    (base, new), rules = sides, criteria.applied_rules
    pairs, is_paired = keep_complete_pairs(base, new), criteria.paired
    if is_paired is None:
        is_paired = pairs is not None and are_sides_of_experiment(base.records, new.records)
    # Without pairs, all runs are compared.
    kept = (base, new) if pairs is None or not is_paired else pairs
    unlike = fact_differences(base, new, criteria.patterns)
    outcome = incomparable_outcome(base, new, unlike, policies[0][0])
    if outcome is not None and outcome[0] is Verdict.FAILED:
        # A failed run may have ended before a property was recorded, so a missing property does not
        # count as a difference.
        missing = {UNKNOWN, NOTHING}
        unlike = tuple(one for one in unlike if missing.isdisjoint((*one.base, *one.new)))
    incomplete = None if outcome else incomplete_outcome(base, new, kept[0])
    if outcome or incomplete:
        kept, is_paired = (base, new), False
    looks = analyses_until(criteria.looks, len(kept[0].records)) if is_paired else ()
    plan = criteria.plan(base, new) if callable(criteria.plan) else criteria.plan
    cases = []
    for metric, policy in policies:
        samples = Samples(
            *_values(*kept, metric),
            metric,
            paired=is_paired,
            looks=looks if policy.asked else (),
            plan=plan,
        )
        known = outcome or missing_metric_outcome(*kept, metric, policy.asked) or incomplete
        is_missing = outcome or incomplete or not (samples.base or samples.new)
        if policy.asked or not (known and is_missing):
            cases.append(Case(samples, policy, known))
    entry = ComparedConfiguration(
        name=name,
        rule=rules.title(rules.rule_for(name)[0]),
        configuration=base.configuration,
        base=kept[0].records,
        new=kept[1].records,
        differences=unlike,
    )
    return entry, with_cpu_time(cases, *kept)


def _values(
    base: MeasurementGroup, new: MeasurementGroup, metric: Metric
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the metric's values from the successful runs of BASE and of NEW."""
    values, of_base = metric.values([*base.successful, *new.successful]), len(base.successful)
    sides = (values[:of_base], values[of_base:])
    before, after = (tuple(one for one in side if one is not None) for side in sides)
    return before, after


def _add_results(
    entry: ComparedConfiguration,
    prepared: Sequence[Case],
    judgements: Sequence[Judgement],
    rules: Rules,
) -> ComparedConfiguration:
    """Returns a configuration with the result for each of its cases, from their judgements.

    Reasons also name slow steps and disturbances. The result of a regression that the rules accept
    contains what accepts it.
    """
    cases = {case.samples.metric.name: case for case in prepared}
    judged = dict(zip(cases, judgements, strict=True))
    speed = cases.get(THROUGHPUT.name)
    if speed is not None and speed.policy.split < 1:
        both = judged[THROUGHPUT.name], judged[CPU_TIME.name]
        judged[THROUGHPUT.name] = joint_judgement(*both, speed.policy, entry.runs)
    sides = (entry.base, entry.new)
    results = []
    for name, case in cases.items():
        samples, policy, own = case.samples, case.policy, judged[name]
        change, slow = change_and_slow_steps(samples, own.change, *sides, policy)
        disturbance = "" if own.needed is None else entry.disturbance
        steps = phrases.slow_steps(change, slow, ("BASE", "NEW"), samples.paired)
        result = MetricResult(
            judgement=replace(own.adding(disturbance, steps), median_change=change),
            samples=samples,
            policy=policy,
            base_slow_steps=slow[0],
            new_slow_steps=slow[1],
            accepted=entry.acceptance(rules, samples.metric, own.verdict),
        )
        results.append(result)
    return replace(entry, results=tuple(results))


def _shown_metrics(
    names: Collection[str], entries: Sequence[ComparedConfiguration]
) -> tuple[Metric, ...]:
    """The requested metrics, and the CPU time if any configuration was judged by both together."""
    metrics = metrics_to_judge(names, {entry.configuration.kind for entry in entries} or {RUN})
    joint = any(result.is_joint for entry in entries for result in entry.results)
    return (*metrics, CPU_TIME) if joint and CPU_TIME not in metrics else metrics
