"""Comparison of two sets of records: a verdict per configuration and metric, and notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TypeAlias

from cnnbench.base.grouping import grouped
from cnnbench.base.text.numbers import count
from cnnbench.base.text.table import natural_key
from cnnbench.judge.compare.all_reduce import measurements
from cnnbench.judge.compare.cases import Cases, cases_of
from cnnbench.judge.compare.comparability import (
    Group,
    differences,
    groups,
    match,
    sides_of_experiment,
)
from cnnbench.judge.compare.configuration import label, labels
from cnnbench.judge.compare.disturbance import (
    disturbance,
    joint_judgement,
    measured_again,
    median_step,
    others_text,
)
from cnnbench.judge.compare.estimate import spread_of, usable_values
from cnnbench.judge.compare.judgement import Judgement, judge_all
from cnnbench.judge.compare.result import (
    ComparedConfiguration,
    Comparison,
    MetricResult,
    two_speeds,
)
from cnnbench.judge.compare.sequential import Continuation
from cnnbench.judge.metrics.comparable_facts import expand
from cnnbench.judge.metrics.measurement import CONTEXT, KINDS, RUN
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import CPU_TIME, DEFAULT_METRICS, METRICS, THROUGHPUT, judged
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import gathered
from cnnbench.records.load import SkippedFile
from cnnbench.records.run import RunRecord

PlanOf: TypeAlias = Callable[[Group, Group], Continuation | None]
"""How further pairs are judged, by the runs of BASE and of NEW of a configuration."""

_DEFAULT = Policy()


def compare_records(
    base: Iterable[RunRecord | AllReduceRecord],
    new: Iterable[RunRecord | AllReduceRecord],
    policy: Policy = _DEFAULT,
    *,
    metrics: Collection[str] | None = None,
    allow_different: Sequence[str] = (),
    aa: Iterable[RunRecord | AllReduceRecord] | None = None,
    paired: bool | None = None,
    plan: Continuation | PlanOf | None = None,
    allow_changed_work: bool = False,
    base_label: str = "BASE",
    new_label: str = "NEW",
    skipped: Sequence[SkippedFile] = (),
) -> Comparison:
    """Compares runs and all-reduces, configuration by configuration.

    Args:
      base, new: one record per process. Every row of an all-reduce record is a configuration.
      metrics: names in `METRICS`, in any order, whose open questions count for the exit code; None:
        `DEFAULT_METRICS`, of which only those of the speed count.
      allow_different: facts, groups and patterns that may differ, see
        `cnnbench.judge.metrics.comparable_facts`.
      aa: runs of an A/A measurement, which give the spread of each configuration.
      paired: True compares the pairs of `cnnbench ab` if the records name them, else the i-th runs
        of both sides in order of their start; None compares in pairs only where the records name
        them.
      plan: how further pairs are judged, of each configuration or by its runs of BASE and of NEW;
        None: together with these, by the same policy.
    """
    if unknown := set(metrics or ()).difference(METRICS):
        raise KeyError(", ".join(sorted(unknown)))
    patterns = expand(tuple(allow_different))
    processes = (tuple(base), tuple(new))
    names = DEFAULT_METRICS if metrics is None else metrics
    found = groups(*measurements(*processes, aa or (), patterns=patterns))
    base_groups, new_groups, aa_groups = (
        [group for group in side if judged(names, {group.configuration.kind})] for side in found
    )
    aa_runs, aa_notes = usable_groups(base_groups, aa_groups, policy, patterns)
    matched = match(base_groups, new_groups, patterns)
    compared = [
        cases_of(
            one,
            other,
            aa_runs.get(one.configuration.key, Group(one.configuration)),
            metrics,
            policy,
            patterns=patterns,
            paired=paired,
            plan=plan(one, other) if callable(plan) else plan,
        )
        for one, other in matched
    ]
    tested = [case for each in compared for case in each.tested]
    judgements = iter(judge_all(tested, policy))
    titles = labels(each.base.configuration for each in compared)
    entries = [
        _entry(each, titles[each.base.configuration.key], judgements, policy) for each in compared
    ]
    shown = judged(names, {one.configuration.kind for one in entries} or {RUN})
    if CPU_TIME not in shown and any(CPU_TIME is case.metric for case in tested):
        shown = (*shown, CPU_TIME)
    if paired is None:
        paired = bool(tested) and all(case.paired for case in tested)
    return Comparison(
        entries=tuple(sorted(entries, key=lambda entry: natural_key(entry.name))),
        policy=policy,
        metrics=shown,
        paired=paired,
        allow_changed_work=allow_changed_work,
        notes=(
            *_left_out(found[:2], names),
            *_notes(processes, matched, entries, aa_notes),
        ),
        base_label=base_label,
        new_label=new_label,
        names=("A", "B") if sides_of_experiment(*processes) else ("BASE", "NEW"),
        skipped=tuple(skipped),
    )


def _entry(
    cases: Cases, name: str, judgements: Iterator[Judgement], policy: Policy
) -> ComparedConfiguration:
    """A configuration with its results; `judgements` are those of its tested cases, in order."""
    by_metric = {one.metric.name: next(judgements) for one in cases.tested}
    throughput = by_metric.get(THROUGHPUT.name)
    if throughput is not None and any(one.share < 1 for one in cases.tested):
        cpu_time = by_metric[CPU_TIME.name]
        by_metric[THROUGHPUT.name] = joint_judgement(throughput, cpu_time, policy, cases.runs)
    base, new = cases.base.records, cases.new.records
    told = disturbance(cases.runs)
    results = []
    for case in cases.cases:
        judgement = by_metric.get(case.metric.name) or cases.untested[case.metric.name]
        beside = median_step(case, judgement.change, base, new, policy)
        more = told if judgement.needed is not None else ""
        further = (more, "" if beside is None else beside.text(("BASE", "NEW")))
        results.append(
            gathered(
                MetricResult,
                case,
                judgement=replace(
                    judgement,
                    reason="; ".join(filter(None, (judgement.reason, *further))),
                    median_change=None if beside is None else beside.change,
                ),
                asked=case.metric.name in cases.asked,
                median_step=beside,
            )
        )
    return ComparedConfiguration(
        name=name,
        configuration=cases.base.configuration,
        base=base,
        new=new,
        results=tuple(results),
        differences=cases.differences,
        disturbance=told,
        others=others_text(cases.runs),
        two_speeds=two_speeds(base, new),
    )


def _left_out(sides: Iterable[Sequence[Group]], names: Collection[str]) -> list[str]:
    """A note per kind of measurement that has none of the metrics."""
    keys = dict.fromkeys(
        (group.configuration.kind, group.configuration.key) for side in sides for group in side
    )
    return [
        f"{count(len(found), 'configuration', 'configurations')} of {KINDS[kind]} left out: "
        f"they have no {' or '.join(name for name in METRICS if name in names)}"
        for kind, found in grouped(keys, itemgetter(0)).items()
        if kind not in CONTEXT and not judged(names, {kind})
    ]


def _notes(
    processes: Sequence[Sequence[RunRecord | AllReduceRecord]],
    matched: Sequence[tuple[Group, Group]],
    entries: Sequence[ComparedConfiguration],
    aa_notes: Sequence[str],
) -> Iterator[str]:
    if any(one.environment.get("emulated_gpus") for side in processes for one in side):
        yield EMULATED_NOTICE
    yield from _unsuccessful(entries)
    _, repeated = measured_again(run for one in entries for run in one.runs)
    yield from filter(None, [repeated])
    yield from _interrupted(processes)
    yield from aa_notes
    for sides, entry in zip(matched, entries, strict=True):
        unpaired = sum(len(one.records) for one in sides) - len(entry.runs)
        if unpaired:
            runs = count(unpaired, "run", "runs")
            yield f"{entry.name}: {runs} left out, without a partner"
    for entry in entries:
        for side, records in (("BASE", entry.base), ("NEW", entry.new)):
            trained = (record for record in records if isinstance(record, RunRecord))
            if diverged := sum(not all(map(math.isfinite, one.losses)) for one in trained):
                runs = count(len(records), "run", "runs")
                yield f"{entry.name}: losses of {diverged} of {runs} in {side} are not finite"


def _unsuccessful(entries: Sequence[ComparedConfiguration]) -> Iterator[str]:
    """Numbers of measurements of each side that did not succeed and are left out."""
    sides = {
        side: [run for one in entries for run in getattr(one, side)] for side in ("base", "new")
    }
    for side, runs in sides.items():
        for kind, plural in KINDS.items():
            found = [run.status for run in runs if run.kind == kind]
            bad = Counter(status for status in found if status != "ok")
            if bad:
                what = ", ".join(f"{number} {status}" for status, number in bad.items())
                number = f"{bad.total()} of {len(found)} {plural} in {side.upper()}"
                yield f"left out of medians and values: {number} ({what})"


def _interrupted(sides: Sequence[Sequence[RunRecord | AllReduceRecord]]) -> Iterator[str]:
    """Numbers of interrupted all-reduce processes, which complete rows do not show."""
    for name, records in zip(("BASE", "NEW"), sides, strict=True):
        reduced = [record for record in records if not isinstance(record, RunRecord)]
        if stopped := sum(record.status == "interrupted" for record in reduced):
            of = count(len(reduced), "all-reduce measurement", "all-reduce measurements")
            verb = "was" if stopped == 1 else "were"
            yield f"{stopped} of {of} in {name} {verb} interrupted: rows not reached are missing"


_NAMED = 5
"""Largest number of configurations with the same reason that are named one by one."""


def usable_groups(
    base: Sequence[Group], aa: Sequence[Group], policy: Policy, patterns: tuple[str, ...] = ()
) -> tuple[dict[str, Group], list[str]]:
    """A/A runs of the configurations of `base`, by key, and notes on those that cannot be used."""
    found: dict[str, Group] = {}
    refused: dict[str, list[str]] = {}
    for one, other in match(base, aa, patterns):
        if not (one.records and other.records):
            continue
        reason = _refusal(one, other, policy, patterns)
        if reason is None:
            found[one.configuration.key] = other
        elif one.configuration.kind not in CONTEXT:
            refused.setdefault(reason, []).append(label(one.configuration))
    notes = []
    for reason, names in refused.items():
        if len(names) > _NAMED:
            names = [f"{names[0]} and {len(names) - 1} more configurations"]
        notes += [f"A/A runs of {name} cannot be used: {reason}" for name in names]
    configurations = [one.configuration for one in base if one.configuration.kind not in CONTEXT]
    missing = sum(one.key not in found for one in configurations)
    if aa and missing:
        without = count(missing, "configuration", "configurations")
        notes.append(f"no A/A spread for {without}: the threshold alone is the floor")
    return found, notes


def spread_lines(comparison: Comparison, policy: Policy) -> list[str]:
    """The A/A spread of every metric with enough values, over both sides, a line each."""
    records = [run for entry in comparison.entries for run in entry.runs]
    lines = []
    for metric in comparison.metrics:
        found = spread_of(records, metric, policy)
        if found is not None:
            noise = metric.change_text(found, signed=False)
            processes = count(len(usable_values(records, metric)), "process", "processes")
            deviations = f"{policy.noise_factor:g} standard deviations of {processes}"
            lines.append(f"A/A spread of {metric.name}: {noise} ({deviations})")
    return lines or [f"no A/A spread: it needs at least {policy.min_processes} processes"]


def _refusal(base: Group, aa: Group, policy: Policy, patterns: tuple[str, ...]) -> str | None:
    for one in differences(base, aa, patterns):
        if one.blocks:
            return str(one).replace(" in NEW", " in the A/A runs")
    runs = sum(record.status == "ok" for record in aa.records)
    if runs < policy.min_processes:
        return f"{count(runs, 'run', 'runs')}, at least {policy.min_processes} are needed"
    return None
