"""Two sets of run records in, a verdict per configuration and metric out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import count, first_few
from cnnbench.base.text.table import natural_key
from cnnbench.judge.compare import changed_work, cpu_time
from cnnbench.judge.compare.comparability import Difference, Group, differences
from cnnbench.judge.compare.configuration import Configuration, labels
from cnnbench.judge.compare.disturbance import disturbance, measured_again
from cnnbench.judge.compare.estimate import Case
from cnnbench.judge.compare.judge import Judgement, judge_all
from cnnbench.judge.compare.matching import (
    groups,
    in_pairs,
    match,
    share_pairs,
    sides_of_experiment,
)
from cnnbench.judge.compare.noise import spread, usable_groups
from cnnbench.judge.compare.reductions import measurements
from cnnbench.judge.compare.result import Comparison, Entry, Result
from cnnbench.judge.metrics.comparable_facts import expand
from cnnbench.judge.metrics.measurement import CONTEXT, KINDS, RUN, Measurement
from cnnbench.judge.metrics.policy import Policy, Verdict
from cnnbench.judge.metrics.registry import CPU_TIME, DEFAULT_METRICS, METRICS, Metric, judged
from cnnbench.records.load import Skipped
from cnnbench.records.run import RunRecord

if TYPE_CHECKING:
    from cnnbench.records.allreduce import AllReduceRecord

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
    allow_changed_work: bool = False,
    base_label: str = "BASE",
    new_label: str = "NEW",
    skipped: Sequence[Skipped] = (),
) -> Comparison:
    """Compares runs and all-reduces, configuration by configuration.

    Args:
      base, new: records of both sides, one per process. Every row of an all-reduce
        record is a configuration of its own.
      policy: the constants.
      metrics: names in `METRICS`; each kind of measurement has metrics of its own for them.
        The first that a kind has is what its comparison is about.
      allow_different: facts, groups of facts and patterns that may differ, see
        `cnnbench.judge.metrics.comparable_facts`.
      aa: runs of an A/A measurement, from which the spread of each configuration is taken.
      paired: runs are compared pair by pair: the pairs of `cnnbench ab` if the records name
        them, else the i-th runs of both sides in order of their start. None: in pairs where
        the records name them.
      allow_changed_work: a network or batch of another size is no regression.
      base_label, new_label: where the records came from, for output.
      skipped: files that gave no record.

    Raises:
      KeyError: an unknown metric.
    """
    if unknown := set(metrics).difference(METRICS):
        raise KeyError(", ".join(sorted(unknown)))
    patterns = expand(tuple(allow_different))
    processes = (tuple(base), tuple(new))
    found = groups(*measurements(*processes, aa or (), patterns=patterns))
    left_out = _left_out(found[:2], metrics)
    base_groups, new_groups, aa_groups = (
        [group for group in side if _metrics({group.configuration.kind}, metrics)] for side in found
    )
    aa_runs, aa_notes = usable_groups(base_groups, aa_groups, policy, patterns)
    drafts = []
    for one, other in match(base_groups, new_groups, patterns):
        present = one or other
        assert present is not None
        kind = present.configuration.kind
        asked = _metrics({kind}, metrics)
        like = aa_runs.get(present.configuration.key)
        measured = (*asked, CPU_TIME) if kind == RUN else asked
        spreads = {metric.name: spread(like, metric, policy) for metric in measured}
        drafts.append(_draft(one, other, asked, spreads, patterns, paired, policy))
    entries = _judged(drafts, policy)
    return Comparison(
        entries=tuple(sorted(entries, key=lambda entry: natural_key(entry.name))),
        policy=policy,
        metrics=_shown(drafts, metrics),
        paired=_in_pairs(drafts) if paired is None else paired,
        allow_changed_work=allow_changed_work,
        notes=(
            *left_out,
            *_unsuccessful_notes(entries),
            *_repeat_notes(entries),
            *_interrupted_notes(processes),
            *aa_notes,
            *_unpaired_notes(drafts, entries),
            *_loss_notes(entries),
        ),
        base_label=base_label,
        new_label=new_label,
        names=("A", "B") if sides_of_experiment(*processes) else ("BASE", "NEW"),
        skipped=tuple(skipped),
    )


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """An entry before it is judged.

    Attributes:
      base, new: its runs; None where a side lacks it.
      differences: facts that differ.
      cases: to be judged.
      results: those that need no judgement.
      unpaired: runs that were left out because they have no partner.
      with_cpu_time: whether the first case, throughput, and the last one, CPU time, have one
        verdict together.
    """

    base: Group | None
    new: Group | None
    differences: tuple[Difference, ...] = ()
    cases: tuple[Case, ...] = ()
    results: tuple[Result, ...] = ()
    unpaired: int = 0
    with_cpu_time: bool = False

    @property
    def runs(self) -> tuple[Measurement, ...]:
        """Of both sides."""
        return tuple(run for one in (self.base, self.new) if one for run in one.records)

    @property
    def configuration(self) -> Configuration:
        group = self.base or self.new
        assert group is not None
        return group.configuration


def _in_pairs(drafts: Iterable[_Draft]) -> bool:
    cases = [case for draft in drafts for case in draft.cases]
    return bool(cases) and all(case.paired for case in cases)


def _judged(drafts: Sequence[_Draft], policy: Policy) -> list[Entry]:
    """The entries of drafts, whose cases are judged together."""
    judgements = iter(judge_all([case for draft in drafts for case in draft.cases], policy))
    titles = labels(draft.configuration for draft in drafts)
    entries = []
    for draft in drafts:
        found = [next(judgements) for _ in draft.cases]
        if draft.with_cpu_time:
            found[0] = cpu_time.together(found[0], found[-1], policy, draft.runs)
        results = [
            Result(
                metric=case.metric,
                base=tuple(case.base),
                new=tuple(case.new),
                judgement=_with_disturbance(judgement, draft),
            )
            for case, judgement in zip(draft.cases, found, strict=True)
        ]
        entries.append(
            Entry(
                name=titles[draft.configuration.key],
                configuration=draft.configuration,
                base=() if draft.base is None else draft.base.records,
                new=() if draft.new is None else draft.new.records,
                results=(*results, *draft.results),
                differences=draft.differences,
            )
        )
    return entries


def _with_disturbance(judgement: Judgement, draft: _Draft) -> Judgement:
    """What scatters too much with what disturbed it."""
    if judgement.needed is None:
        return judgement
    clause = disturbance(draft.runs)
    return replace(judgement, reason=f"{judgement.reason}; {clause}") if clause else judgement


def _metrics(kinds: Container[str], names: Sequence[str]) -> tuple[Metric, ...]:
    """The metrics of some kinds of measurements, in the order asked for."""
    found = {
        metric.name: metric
        for name in names
        for kind in KINDS
        if kind in kinds and (metric := judged(kind).get(name)) is not None
    }
    return tuple(found.values())


def _shown(drafts: Sequence[_Draft], names: Sequence[str]) -> tuple[Metric, ...]:
    """The metrics of all drafts; CPU time, too, where it takes part in a verdict."""
    found = _metrics({draft.configuration.kind for draft in drafts} or {RUN}, names)
    beside = any(draft.with_cpu_time for draft in drafts) and CPU_TIME not in found
    return (*found, CPU_TIME) if beside else found


def _left_out(sides: Iterable[Sequence[Group]], names: Sequence[str]) -> list[str]:
    """A note per kind of measurement that has none of the metrics asked for."""
    keys: dict[str, set[str]] = {}
    for one in (group.configuration for side in sides for group in side):
        keys.setdefault(one.kind, set()).add(one.key)
    return [
        f"{count(len(found), 'configuration', 'configurations')} of {KINDS[kind]} left out: "
        f"they have no {' or '.join(names)}"
        for kind, found in keys.items()
        if kind not in CONTEXT and not _metrics({kind}, names)
    ]


def _draft(
    base: Group | None,
    new: Group | None,
    metrics: Sequence[Metric],
    spreads: Mapping[str, float | None],
    patterns: tuple[str, ...],
    paired: bool | None,
    policy: Policy,
) -> _Draft:
    """The cases of a configuration, or the verdict that it has without any.

    Args:
      base, new: its runs; None where a side lacks it.
      metrics: to be judged.
      spreads: A/A spreads by metric, None if not measured.
      patterns: of the facts that may differ.
      paired: runs are compared pair by pair; None: if they name their pairs.
      policy: the constants.
    """
    if base is None or new is None:
        absent, present = ("BASE", "NEW") if base is None else ("NEW", "BASE")
        reason = f"{absent} has no run of this configuration, only {present} has"
        return _settled(base, new, metrics[0], Verdict.MISSING, reason)
    unlike = differences(base, new, patterns)
    outcome = _outcome(base, new, unlike, metrics[0])
    if outcome is not None and outcome[0] is Verdict.FAILED:
        # What a failed run did not live to find out differs from nothing.
        unlike = tuple(one for one in unlike if not one.lacks)
    if outcome is not None:
        return _settled(base, new, metrics[0], *outcome, unlike)
    measured = (base, new)
    if paired is None:
        paired = sides_of_experiment(base.records, new.records) and share_pairs(base, new)
    if paired:
        base, new = in_pairs(base, new)
    if not base.records:
        reason = "no run in BASE has its partner in NEW"
        return _settled(*measured, metrics[0], Verdict.INCONCLUSIVE, reason, unlike)
    cases, partial = [], []
    for metric in metrics:
        before, after = base.values(metric), new.values(metric)
        lacking = _lacking("BASE", base, metric) or _lacking("NEW", new, metric)
        if lacking is None:
            noise = spreads[metric.name]
            cases.append(Case(base=before, new=after, metric=metric, paired=paired, noise=noise))
        elif before or after:
            judgement = Judgement(verdict=Verdict.INCONCLUSIVE, reason=lacking)
            partial.append(Result(metric=metric, base=before, new=after, judgement=judgement))
    both = (
        cpu_time.cases(cases[0], base, new, spreads.get(CPU_TIME.name), policy) if cases else None
    )
    if both is not None:
        others = [case for case in cases[1:] if case.metric is not CPU_TIME]
        cases = [both[0], *others, both[1]]
    return _Draft(
        base=base,
        new=new,
        differences=unlike,
        cases=tuple(cases),
        with_cpu_time=both is not None,
        results=tuple(partial),
        unpaired=sum(len(side.records) for side in measured) - len(base.records) - len(new.records),
    )


def _lacking(side: str, group: Group, metric: Metric) -> str | None:
    """Which complete runs of a side did not measure a metric, or None."""
    runs = count(len(group.records), "run", "runs")
    complete = (record for record in group.records if record.status == "ok")
    missing = sum(metric.value(record) is None for record in complete)
    return f"{missing} of {runs} in {side} did not measure {metric.name}" if missing else None


def _outcome(
    base: Group, new: Group, unlike: Sequence[Difference], metric: Metric
) -> tuple[Verdict, str] | None:
    """The verdict that needs no statistics, with its reason; None if there is none.

    Args:
      base, new: runs of a configuration.
      unlike: facts that differ.
      metric: that the comparison is about.
    """
    sides = (("BASE", base), ("NEW", new))
    failures = [found for side, group in sides if (found := _failure(side, group))]
    lacking = [found for side, group in sides if (found := _lacking(side, group, metric))]
    if failures or lacking:
        return Verdict.FAILED, "; ".join(failures or lacking[:1])
    blocking = [one for one in unlike if one.blocks]
    if blocking:
        if changed_work.of(base, new, blocking):
            return Verdict.CHANGED_WORK, changed_work.answer(base, new, metric, blocking)
        facts = first_few([*map(str, blocking)], changed_work.FACTS_NAMED)
        return Verdict.NOT_COMPARABLE, facts
    for side, group in sides:
        stopped = sum(record.status == "interrupted" for record in group.records)
        if stopped:
            runs = count(len(group.records), "run", "runs")
            return Verdict.INCONCLUSIVE, f"{stopped} of {runs} in {side} was interrupted"
    shared = {one.run_id for one in base.records} & {one.run_id for one in new.records}
    if shared:
        runs = count(len(shared), "run is", "runs are")
        return Verdict.INCONCLUSIVE, f"{runs} in BASE and in NEW; a comparison needs two sets"
    for side, group in sides:
        mixed = group.mixture()
        if mixed is not None:
            reason = f"{mixed} within {side}; give the runs of one"
            return Verdict.NOT_COMPARABLE, reason
    return None


def _failure(side: str, group: Group) -> str | None:
    """The first error of a side, or None."""
    errors = [record.error for record in group.records if record.error is not None]
    if not errors:
        return None
    runs = count(len(group.records), "run", "runs")
    message = " ".join(errors[0].message.split())[:200]
    return f"{len(errors)} of {runs} in {side} failed: {errors[0].type}: {message}"


def _settled(
    base: Group | None,
    new: Group | None,
    metric: Metric,
    verdict: Verdict,
    reason: str,
    unlike: tuple[Difference, ...] = (),
) -> _Draft:
    """A draft whose verdict is there already."""
    values = [() if group is None else group.values(metric) for group in (base, new)]
    medians = [median(side) if side else None for side in values]
    judgement = Judgement(
        verdict=verdict, reason=reason, base_median=medians[0], new_median=medians[1]
    )
    result = Result(metric=metric, base=values[0], new=values[1], judgement=judgement)
    return _Draft(base=base, new=new, differences=unlike, results=(result,))


def _unsuccessful_notes(entries: Sequence[Entry]) -> list[str]:
    """How many measurements of each side are in no value, as they did not succeed."""
    notes = []
    for side in ("BASE", "NEW"):
        for kind, plural in KINDS.items():
            found = [
                one
                for entry in entries
                if entry.configuration.kind == kind
                for one in (entry.base if side == "BASE" else entry.new)
            ]
            statuses = Counter(one.status for one in found if one.status != "ok")
            if statuses:
                what = ", ".join(f"{number} {status}" for status, number in statuses.items())
                number = f"{statuses.total()} of {len(found)} {plural} in {side}"
                notes.append(f"left out of medians and values: {number} ({what})")
    return notes


def _interrupted_notes(sides: Sequence[Sequence[RunRecord | AllReduceRecord]]) -> list[str]:
    """All-reduce processes that were interrupted, which their complete rows do not show."""
    notes = []
    for name, records in zip(("BASE", "NEW"), sides, strict=True):
        reduced = [record for record in records if not isinstance(record, RunRecord)]
        stopped = sum(record.status == "interrupted" for record in reduced)
        if stopped:
            of = count(len(reduced), "all-reduce measurement", "all-reduce measurements")
            verb = "was" if stopped == 1 else "were"
            notes.append(
                f"{stopped} of {of} in {name} {verb} interrupted: rows not reached are missing"
            )
    return notes


def _unpaired_notes(drafts: Sequence[_Draft], entries: Sequence[Entry]) -> list[str]:
    return [
        f"{entry.name}: {count(draft.unpaired, 'run', 'runs')} left out, without a partner"
        for draft, entry in zip(drafts, entries, strict=True)
        if draft.unpaired
    ]


def _repeat_notes(entries: Sequence[Entry]) -> list[str]:
    _, text = measured_again(run for entry in entries for run in (*entry.base, *entry.new))
    return [text] if text else []


def _loss_notes(entries: Sequence[Entry]) -> list[str]:
    """Numbers of runs with losses that are not finite, by configuration and side."""
    notes = []
    for entry in entries:
        for side, records in (("BASE", entry.base), ("NEW", entry.new)):
            diverged = sum(
                isinstance(record, RunRecord) and not all(map(math.isfinite, record.losses))
                for record in records
            )
            if diverged:
                runs = count(len(records), "run", "runs")
                notes.append(
                    f"{entry.name}: losses of {diverged} of {runs} in {side} are not finite"
                )
    return notes
