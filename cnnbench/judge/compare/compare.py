"""Comparing two sets of records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from statistics import fmean
from typing import Any, TypeAlias

from cnnbench.base.stats import grouped, median
from cnnbench.base.terminal import natural_key
from cnnbench.base.text import count, first_few, integer, number, percent
from cnnbench.judge.compare.comparability import (
    Difference,
    Group,
    differences,
    groups,
    in_pairs,
    match,
    sides_of_experiment,
)
from cnnbench.judge.compare.configuration import (
    MODEL_SIZE,
    NOTHING,
    UNKNOWN,
    WORK,
    expand,
    label,
    labels,
    measurements,
)
from cnnbench.judge.compare.disturbance import (
    cpu_time_cases,
    disturbance,
    joint_judgement,
    measured_again,
    median_step,
    others_text,
)
from cnnbench.judge.compare.estimate import Continuation, TwoSamples, spread_of, usable_values
from cnnbench.judge.compare.judgement import Judgement, Verdict, judge_all
from cnnbench.judge.compare.result import (
    ComparedConfiguration,
    Comparison,
    MetricResult,
    two_speeds,
)
from cnnbench.judge.metrics.measurement import (
    CONTEXT,
    CPU_TIME,
    DEFAULT_METRICS,
    KINDS,
    RUN,
    SPEEDS,
    THROUGHPUT,
    Measurement,
    Policy,
    judged,
    varying,
)
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import gathered
from cnnbench.records.load import SkippedFile
from cnnbench.records.metric import METRICS, Metric
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import RunRecord

# Cases of a configuration: the values to be judged, and verdicts that need no test.

_FACTS_NAMED = 3
"""Number of facts that a reason names."""

_Outcome: TypeAlias = tuple[Verdict, str]
"""A verdict that needs no test, and its reason."""

_MISTIMED = (
    "step times that alternate between those of two steps and none, as earlier versions of "
    "cnnbench mis-timed steps on GPUs; measure again"
)


@dataclass(frozen=True, kw_only=True)
class Cases:
    """What is to be judged of one configuration: a case per metric.

    Attributes:
      base, new: the runs that are compared.
      differences: facts that differ, those that block a verdict first.
      cases: the values of both sides by metric, in the order of `METRICS`.
      untested: judgements of the cases that need no test, by name of their metric.
      asked: names of the metrics whose open questions count for the exit code.
    """

    base: Group
    new: Group
    differences: tuple[Difference, ...]
    cases: tuple[TwoSamples, ...]
    untested: Mapping[str, Judgement]
    asked: frozenset[str]

    @property
    def tested(self) -> list[TwoSamples]:
        """The cases that need a test."""
        return [one for one in self.cases if one.metric.name not in self.untested]

    @property
    def runs(self) -> tuple[Measurement, ...]:
        """Runs of both sides."""
        return (*self.base.records, *self.new.records)


def cases_of(
    base: Group,
    new: Group,
    aa: Group,
    names: Collection[str] | None,
    policy: Policy,
    *,
    patterns: tuple[str, ...] = (),
    paired: bool | None = None,
    plan: Continuation | None = None,
) -> Cases:
    """The cases of a configuration.

    Args:
      aa: A/A runs of the configuration, if there are any.
      names: metrics that were asked for; None: the usual ones, of which the speed is asked for.
      paired: None: runs are paired where records name pairs.
      plan: how further pairs are judged.
    """
    metrics = judged(DEFAULT_METRICS if names is None else names, {base.configuration.kind})
    asked = frozenset(one.name for one in (metrics[:1] if names is None else metrics))
    unlike = differences(base, new, patterns) if base.records and new.records else ()
    kept = in_pairs(base, new)
    if paired is None:
        paired = kept is not None and sides_of_experiment(base.records, new.records)
    if kept is None or not paired:
        kept = base, new
    outcome = next(_not_comparable(base, new, unlike, metrics), None)
    if outcome is not None and outcome[0] is Verdict.FAILED:
        # Facts that a failed run did not collect are no differences.
        unknown = {UNKNOWN, NOTHING}
        unlike = tuple(one for one in unlike if unknown.isdisjoint((*one.base, *one.new)))
    incomplete = None if outcome else next(_incomplete(base, new, kept[0]), None)
    if outcome or incomplete:
        kept, paired, plan = (base, new), False, None
    cases: dict[str, TwoSamples] = {}
    untested: dict[str, Judgement] = {}
    for metric in metrics:
        case = _case(metric, *kept, aa.records, policy, paired=paired, plan=plan)
        found = outcome or _lacking(*kept, metric, metric.name in asked) or incomplete
        if found is not None:
            if metric.name not in asked and (outcome or incomplete or not (case.base or case.new)):
                continue
            untested[metric.name] = _known(case, *found)
        cases[metric.name] = case
    throughput = cases.get(THROUGHPUT.name)
    if throughput is not None and THROUGHPUT.name not in untested:
        both = cpu_time_cases(throughput, *kept, aa.records, policy)
        cases |= {one.metric.name: one for one in both or ()}
    return Cases(
        base=kept[0],
        new=kept[1],
        differences=unlike,
        cases=tuple(cases.values()),
        untested=untested,
        asked=asked,
    )


def _case(
    metric: Metric, base: Group, new: Group, aa: Sequence[Measurement], policy: Policy, **more: Any
) -> TwoSamples:
    """Values of both sides, taken together, of the runs that succeeded and measured the metric."""
    values, of_base = metric.values([*base.good, *new.good]), len(base.good)
    before, after = (
        tuple(value for value in side if value is not None)
        for side in (values[:of_base], values[of_base:])
    )
    noise = spread_of(aa, metric, policy)
    return TwoSamples(metric=metric, base=before, new=after, noise=noise, **more)


def _known(case: TwoSamples, verdict: Verdict, reason: str) -> Judgement:
    """The judgement of a case that needs no test."""
    before, after = (median(side) if side else None for side in (case.base, case.new))
    return Judgement(verdict=verdict, reason=reason, base_median=before, new_median=after)


def _lacking(base: Group, new: Group, metric: Metric, asked: bool) -> _Outcome | None:
    """The verdict where successful runs of a side lack a metric; None if none does."""
    for side, group in (("BASE", base), ("NEW", new)):
        if missing := sum(metric.value(record) is None for record in group.good):
            verdict = Verdict.NOT_MEASURED if asked else Verdict.INCONCLUSIVE
            return verdict, f"{_part(missing, side, group)} did not measure {metric.name}"
    return None


def _part(number: int, side: str, group: Group) -> str:
    return f"{number} of {count(len(group.records), 'run', 'runs')} in {side}"


def _not_comparable(
    base: Group, new: Group, unlike: Sequence[Difference], metrics: Sequence[Metric]
) -> Iterator[_Outcome]:
    """Verdicts on configurations that are not compared, of which the first counts."""
    sides = (("BASE", base), ("NEW", new))
    if not (base.records and new.records):
        absent, there = ("NEW", "BASE") if base.records else ("BASE", "NEW")
        yield Verdict.MISSING, f"{absent} has no run of this configuration, only {there} has"
    if failures := [*filter(None, (_failure(*side) for side in sides))]:
        yield Verdict.FAILED, "; ".join(failures)
    if blocking := [one for one in unlike if one.blocks]:
        if answer := _changed_work(base, new, metrics[0], blocking):
            yield Verdict.CHANGED_WORK, answer
        yield Verdict.NOT_COMPARABLE, first_few([*map(str, blocking)], _FACTS_NAMED)
    for side, group in sides:
        if mixed := varying(group.origins()):
            parts = ", ".join(f"{name} is {' or '.join(texts)}" for name, texts in mixed.items())
            yield Verdict.NOT_COMPARABLE, f"{parts} within {side}; give the runs of one"


def _incomplete(base: Group, new: Group, kept: Group) -> Iterator[_Outcome]:
    """Verdicts where measurements are incomplete or wrong, of which the first counts.

    `kept` are the runs of the base that have a partner.
    """
    for side, group in (("BASE", base), ("NEW", new)):
        if stopped := sum(record.status == "interrupted" for record in group.records):
            yield Verdict.INCONCLUSIVE, f"{_part(stopped, side, group)} was interrupted"
        if wrong := sum(map(_is_mistimed, group.records)):
            verb = "has" if wrong == 1 else "have"
            yield Verdict.INCONCLUSIVE, f"{_part(wrong, side, group)} {verb} {_MISTIMED}"
    if shared := {one.run_id for one in base.records} & {one.run_id for one in new.records}:
        runs = count(len(shared), "run is", "runs are")
        yield Verdict.INCONCLUSIVE, f"{runs} in BASE and in NEW; a comparison needs two sets"
    if not kept.records:
        yield Verdict.INCONCLUSIVE, "no run in BASE has its partner in NEW"


def _is_mistimed(measurement: Measurement) -> bool:
    """Whether the step times of a GPU alternate between those of two steps and none.

    In earlier versions the copy of a result could wait for the next step. Means of such times are
    right; medians and percentiles are not.
    """
    if not isinstance(measurement, RunRecord) or len(measurement.step_seconds) < 6:
        return False
    if measurement.placement is None or measurement.placement.kind == "cpu":
        return False
    mean = fmean(measurement.step_seconds)
    pairs = sum(
        1.5 * mean < before < 2.5 * mean and after < 0.25 * mean
        for before, after in pairwise(measurement.step_seconds)
    )
    return pairs >= max(3, 0.1 * len(measurement.step_seconds))


def _failure(side: str, group: Group) -> str | None:
    """Number of failed runs of a side and the first error, in words; None if none."""
    errors = [record.error for record in group.records if record.error is not None]
    if not errors:
        return None
    message = " ".join(errors[0].message.split())[:200]
    return f"{_part(len(errors), side, group)} failed: {errors[0].type}: {message}"


def _changed_work(base: Group, new: Group, metric: Metric, blocking: Sequence[Difference]) -> str:
    """How the work differs, such as a wider network or another batch size, in sentences.

    Such a change can make training many times slower with equal flags. Whether it was intended is
    for the user to say (--allow_changed_work); the answer names what changed, without a change of
    speed. It is "" if a flag differs too, which is another experiment, or if runs of a side differ.
    `blocking` are the facts that differ and may not.
    """
    work = {one.fact: (*one.base, *one.new) for one in blocking if one.fact in WORK}
    others = [one for one in blocking if one.fact not in work]
    flags = {*base.configuration.flags, *new.configuration.flags}
    is_clear = all(len(both) == 2 for both in work.values())
    if not work or not is_clear or any(one.fact in flags for one in others):
        return ""
    network = list(_network(work, bool(base.configuration.flags.get("forward_only"))))
    # Images per step; where these are equal, the flags that differ.
    batch = [f"{name} {_arrow(both)}" for name, both in work.items() if name not in MODEL_SIZE]
    if "global_batch" in work:
        batch = [f"{_arrow(work['global_batch'])} images per step"]
    names = [name for name, parts in (("network", network), ("batch", batch)) if parts]
    judged = "Speed" if metric in SPEEDS else metric.name.capitalize()
    text = f"Different {' and '.join(names)}: {', '.join((*network, *batch))}. {judged} not judged."
    rates = [_flops_per_sec(side) for side in (base, new)]
    known = [number(rate / 1e9) for rate in rates if rate]
    if len(known) == len(rates):
        text += f" Both sides: {_arrow(known)} GFLOP/s."
    if others:
        text += f" Also different: {first_few([*map(str, others)], _FACTS_NAMED)}."
    return text


def _network(work: Mapping[str, Sequence[str]], forward_only: bool) -> Iterable[str]:
    if "model_parameters" in work:
        yield f"{_arrow(work['model_parameters'])} parameters"
    elif "model_trainable_parameters" in work:
        yield f"{_arrow(work['model_trainable_parameters'])} trainable parameters"
    names = ("model_training_flops", "model_forward_flops")
    flops = [work[name] for name in (names[::-1] if forward_only else names) if name in work]
    if flops:
        yield f"{_change(flops[0])} FLOPs per image"
    elif set(work) & set(MODEL_SIZE):
        yield "the same FLOPs per image"


def _change(both: Sequence[str]) -> str:
    """A change in per cent, or both values where the percentage rounds to 0."""
    before, after = map(int, both)
    share = after / before - 1 if before else 0.0
    return percent(share, signed=True) if round(100 * share, 1) else _arrow(both)


def _arrow(both: Sequence[str]) -> str:
    before, after = (integer(int(text)) if text.isdecimal() else text for text in both)
    return f"{before} → {after}"


def _flops_per_sec(group: Group) -> float | None:
    found = [
        speed * flops
        for record in group.good
        if isinstance(record, RunRecord)
        and (speed := throughput(record)) is not None
        and (flops := record.flops_per_image()) is not None
    ]
    return median(found) if found else None


# Comparison of two sets of records: a verdict per configuration and metric, and notes.

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
        `cnnbench.judge.compare.configuration`.
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
