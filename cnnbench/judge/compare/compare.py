"""Comparison of two sets of records: a verdict per configuration and metric, and notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

from cnnbench.base.grouping import grouped
from cnnbench.base.text.numbers import count
from cnnbench.base.text.table import natural_key
from cnnbench.judge.compare.all_reduce import measurements
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
)
from cnnbench.judge.compare.draft import draft_of
from cnnbench.judge.compare.estimate import spread_of, usable_values
from cnnbench.judge.compare.further import Continuation
from cnnbench.judge.compare.judgement import Judgement, judge_all
from cnnbench.judge.compare.result import UNJUDGED, ComparedConfiguration, Comparison
from cnnbench.judge.metrics.comparable_facts import expand
from cnnbench.judge.metrics.measurement import CONTEXT, KINDS, RUN
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import CPU_TIME, DEFAULT_METRICS, METRICS, judged
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.load import SkippedFile
from cnnbench.records.run import RunRecord

_DEFAULT = Policy()


def compare_records(
    base: Iterable[RunRecord | AllReduceRecord],
    new: Iterable[RunRecord | AllReduceRecord],
    policy: Policy = _DEFAULT,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    allow_different: Sequence[str] = (),
    aa: Iterable[RunRecord | AllReduceRecord] | None = None,
    paired: bool | None = None,
    plan: Continuation | None = None,
    allow_changed_work: bool = False,
    base_label: str = "BASE",
    new_label: str = "NEW",
    skipped: Sequence[SkippedFile] = (),
) -> Comparison:
    """Compares runs and all-reduces, configuration by configuration.

    Args:
      base, new: one record per process. Every row of an all-reduce record is a configuration.
      metrics: names in `METRICS`; the first that a kind of measurement has is its main one.
      allow_different: facts, groups and patterns that may differ, see
        `cnnbench.judge.metrics.comparable_facts`.
      aa: runs of an A/A measurement, which give the spread of each configuration.
      paired: True compares the pairs of `cnnbench ab` if the records name them, else the i-th runs
        of both sides in order of their start; None compares in pairs only where the records name
        them.
      plan: how further pairs are judged; None: together with these, by the same policy.
    """
    if unknown := set(metrics).difference(METRICS):
        raise KeyError(", ".join(sorted(unknown)))
    patterns = expand(tuple(allow_different))
    processes = (tuple(base), tuple(new))
    found = groups(*measurements(*processes, aa or (), patterns=patterns))
    left_out = _left_out(found[:2], metrics)
    base_groups, new_groups, aa_groups = (
        [group for group in side if judged(metrics, {group.configuration.kind})] for side in found
    )
    aa_runs, aa_notes = usable_groups(base_groups, aa_groups, policy, patterns)
    matched = match(base_groups, new_groups, patterns)
    drafts = [
        draft_of(one, other, aa_runs, metrics, policy, patterns, paired) for one, other in matched
    ]
    tested = [one for draft in drafts for one in draft.results if one.judgement is UNJUDGED]
    entries = _judged(drafts, judge_all(tested, policy, plan), policy)
    shown = judged(metrics, {one.configuration.kind for one in entries} or {RUN})
    if CPU_TIME not in shown and any(one.with_cpu_time for one in entries):
        shown = (*shown, CPU_TIME)
    if paired is None:
        paired = bool(tested) and all(one.paired for one in tested)
    return Comparison(
        entries=tuple(sorted(entries, key=lambda entry: natural_key(entry.name))),
        policy=policy,
        metrics=shown,
        paired=paired,
        allow_changed_work=allow_changed_work,
        notes=(*left_out, *_notes(processes, matched, entries, aa_notes)),
        base_label=base_label,
        new_label=new_label,
        names=("A", "B") if sides_of_experiment(*processes) else ("BASE", "NEW"),
        skipped=tuple(skipped),
    )


def _judged(
    drafts: Sequence[ComparedConfiguration], judgements: Iterable[Judgement], policy: Policy
) -> list[ComparedConfiguration]:
    """The entries, with names and the judgements of results that were tested, in their order."""
    tested = iter(judgements)
    titles = labels(draft.configuration for draft in drafts)
    entries = []
    for draft in drafts:
        found = [
            next(tested) if one.judgement is UNJUDGED else one.judgement for one in draft.results
        ]
        if draft.with_cpu_time:
            place = [one.metric for one in draft.results].index(CPU_TIME)
            found[0] = joint_judgement(found[0], found[place], policy, draft.runs)
        results = []
        for one, judgement in zip(draft.results, found, strict=True):
            if judgement.needed is not None and (clause := disturbance(draft.runs)):
                judgement = replace(judgement, reason=f"{judgement.reason}; {clause}")
            beside = median_step(one, judgement.change, draft.base, draft.new, policy)
            if beside is not None:
                reason = f"{judgement.reason}; {beside.text(('BASE', 'NEW'))}"
                judgement = replace(judgement, reason=reason, median_change=beside.change)
            results.append(replace(one, judgement=judgement, median_step=beside))
        name = titles[draft.configuration.key]
        entries.append(replace(draft, name=name, results=tuple(results)))
    return entries


def _left_out(sides: Iterable[Sequence[Group]], names: Sequence[str]) -> list[str]:
    """A note per kind of measurement that has none of the metrics."""
    keys = dict.fromkeys(
        (group.configuration.kind, group.configuration.key) for side in sides for group in side
    )
    return [
        f"{count(len(found), 'configuration', 'configurations')} of {KINDS[kind]} left out: "
        f"they have no {' or '.join(names)}"
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
