"""Compares two sets of records and returns a `Comparison`: one entry for each configuration, with a
verdict on each metric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from statistics import fmean
from typing import Any, TypeAlias

from cnnbench.base.inference import AnalysisSchedule, InterimAnalysis, looks_at
from cnnbench.base.stats import group_by, median
from cnnbench.base.terminal import natural_key
from cnnbench.base.text import alternatives, count_text, first_few, integer, number, percent
from cnnbench.judge.compare.comparability import (
    Difference,
    MeasurementGroup,
    are_sides_of_experiment,
    fact_differences,
    group_by_configuration,
    keep_complete_pairs,
    match_groups,
)
from cnnbench.judge.compare.configuration import (
    MODEL_SIZE,
    NOTHING,
    UNKNOWN,
    WORK,
    configuration_name,
    expand_fact_names,
    imported_records_note,
    records_to_measurements,
    unique_configuration_names,
)
from cnnbench.judge.compare.estimate import (
    TwoSamples,
    Verdict,
    aa_spread_of_runs,
    questions_of,
)
from cnnbench.judge.compare.judgement import (
    Judgement,
    joint_judgement,
    judge_all,
    median_step_change_and_slow_steps,
    repeated_pairs_and_causes,
    slow_steps_and_median_change_text,
    throughput_and_cpu_time_samples,
)
from cnnbench.judge.compare.result import (
    ComparedConfiguration,
    Comparison,
    MetricResult,
)
from cnnbench.judge.metrics import (
    CONTEXT,
    CPU_TIME,
    DEFAULT_METRICS,
    KINDS,
    RUN,
    SPEEDS,
    THROUGHPUT,
    Measurement,
    Origin,
    Policy,
    kind_of,
    metrics_to_judge,
    varying_parts,
)
from cnnbench.judge.metrics.rules import Acceptance, Rules
from cnnbench.machine.gpu import EMULATED_NOTICE
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import dataclass_from_sources
from cnnbench.records.metric import METRICS, Metric
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.result_files import SkippedFile
from cnnbench.records.run import RunRecord

# Prepares the samples of each configuration, and finds verdicts that need no statistical test.

_FACTS_NAMED = 3
"""Maximum number of differences that the reason for a verdict contains."""

PlanOf: TypeAlias = Callable[[MeasurementGroup, MeasurementGroup], AnalysisSchedule | None]
"""A function that gets one configuration's runs of BASE and NEW, and returns the plan by which
further pairs will be judged.
"""

_Sides: TypeAlias = tuple[MeasurementGroup, MeasurementGroup, Sequence[Measurement]]
"""The runs of one configuration in BASE and in NEW, and its A/A runs that can be used."""

_Outcome: TypeAlias = tuple[Verdict, str]
"""A verdict that needs no statistical test, and the reason for it."""

_MISTIMED = (
    "step times that alternate between those of two steps and none, as earlier versions of "
    "cnnbench mis-timed steps on GPUs; measure again"
)


def _prepare_configuration(
    base: MeasurementGroup,
    new: MeasurementGroup,
    aa: Sequence[Measurement],
    name: str,
    cases: Sequence[TwoSamples],
    *,
    rules: Rules,
    patterns: tuple[str, ...],
    paired: bool | None,
    looks: Sequence[InterimAnalysis],
    plan: AnalysisSchedule | PlanOf | None,
) -> tuple[ComparedConfiguration, list[TwoSamples]]:
    """Returns a `ComparedConfiguration` without results, and the samples of its metrics, which are
    judged later. The samples are in the order of `METRICS`.

    Args:
      base, new: the runs of BASE and of NEW.
      aa: A/A runs of the configuration.
      name: name of the configuration, which selects the rule.
      cases: one `TwoSamples` without values for each metric of the configuration.
      paired, looks: see `compare_records`.
      plan: plan for judging further pairs, or a function that computes it from the runs of BASE
        and NEW.
    """
    plan = plan(base, new) if callable(plan) else plan
    unlike = fact_differences(base, new, patterns) if base.records and new.records else ()
    kept, is_paired = _runs_to_compare(base, new, paired)
    outcome = next(_incomparable_outcomes(base, new, unlike, cases[0].metric), None)
    if outcome is not None and outcome[0] is Verdict.FAILED:
        # A failed run may lack recorded properties, so a missing property is not a difference.
        unlike = tuple(
            difference
            for difference in unlike
            if {UNKNOWN, NOTHING}.isdisjoint((*difference.base, *difference.new))
        )
    incomplete = None if outcome else next(_incomplete_outcomes(base, new, kept[0]), None)
    if outcome or incomplete:
        kept, is_paired = (base, new), False
    filled: dict[str, TwoSamples] = {}
    for empty in cases:
        made = looks_at(looks, len(kept[0].records)) if is_paired and empty.asked else ()
        case = _fill_in_values(empty, *kept, aa, paired=is_paired, looks=made, plan=plan)
        known = outcome or _missing_metric_outcome(*kept, case.metric, case.asked) or incomplete
        missing = outcome or incomplete or not (case.base or case.new)
        if case.asked or not (known and missing):
            filled[case.metric.name] = replace(case, known=known)
    speed = filled.get(THROUGHPUT.name)
    if speed is not None and speed.known is None:
        for case in throughput_and_cpu_time_samples(speed, *kept, aa) or ():
            own = filled.get(case.metric.name, replace(case, asked=False))
            filled[case.metric.name] = replace(case, asked=own.asked, policy=own.policy)
    draft = ComparedConfiguration(
        name=name,
        rule=rules.title_for(name),
        configuration=base.configuration,
        base=kept[0].records,
        new=kept[1].records,
        differences=unlike,
    )
    return draft, [*filled.values()]


def _runs_to_compare(
    base: MeasurementGroup, new: MeasurementGroup, paired: bool | None
) -> tuple[tuple[MeasurementGroup, MeasurementGroup], bool]:
    """Returns the runs of BASE and NEW to compare, and whether the runs are compared in pairs.

    For the argument `paired`, see `compare_records`. If the records contain no pairs, all runs are
    compared.
    """
    pairs = keep_complete_pairs(base, new)
    if paired is None:
        paired = pairs is not None and are_sides_of_experiment(base.records, new.records)
    return (base, new) if pairs is None or not paired else pairs, paired


def _fill_in_values(
    case: TwoSamples,
    base: MeasurementGroup,
    new: MeasurementGroup,
    aa: Sequence[Measurement],
    **more: Any,
) -> TwoSamples:
    """Returns a copy of `case` with the metric's values from the successful runs of BASE and NEW.
    The runs `aa` of an A/A measurement determine its A/A spread.

    `more` contains further attributes to set in the copy.
    """
    values, of_base = case.metric.values([*base.successful, *new.successful]), len(base.successful)
    before, after = (
        tuple(value for value in side if value is not None)
        for side in (values[:of_base], values[of_base:])
    )
    noise = aa_spread_of_runs(aa, case.metric, case.policy)
    return replace(case, base=before, new=after, noise=noise, **more)


def _missing_metric_outcome(
    base: MeasurementGroup, new: MeasurementGroup, metric: Metric, is_requested: bool
) -> _Outcome | None:
    """Returns a verdict and its reason if some successful runs of BASE or NEW did not measure the
    metric; otherwise None.
    """
    for side, group in (("BASE", base), ("NEW", new)):
        if missing := sum(metric.value(record) is None for record in group.successful):
            verdict = Verdict.NOT_MEASURED if is_requested else Verdict.INCONCLUSIVE
            return (
                verdict,
                f"{_share_of_runs_text(missing, side, group)} did not measure {metric.name}",
            )
    return None


def _share_of_runs_text(number: int, side: str, group: MeasurementGroup) -> str:
    return f"{number} of {count_text(len(group.records), 'run', 'runs')} in {side}"


def _incomparable_outcomes(
    base: MeasurementGroup, new: MeasurementGroup, unlike: Sequence[Difference], metric: Metric
) -> Iterator[_Outcome]:
    """Yields a verdict with its reason for each problem that makes the runs of a configuration
    incomparable, such as failed runs. The caller uses only the first one.
    """
    sides = (("BASE", base), ("NEW", new))
    if not (base.records and new.records):
        absent, there = ("NEW", "BASE") if base.records else ("BASE", "NEW")
        yield Verdict.MISSING, f"{absent} has no run of this configuration, only {there} has"
    if failures := [*filter(None, (_failed_runs_text(*side) for side in sides))]:
        yield Verdict.FAILED, "; ".join(failures)
    if blocking := [difference for difference in unlike if difference.blocks]:
        if answer := _changed_work_text(base, new, metric, blocking):
            yield Verdict.CHANGED_WORK, answer
        yield Verdict.NOT_COMPARABLE, first_few([*map(str, blocking)], _FACTS_NAMED)
    for side, group in sides:
        if mixed := varying_parts(group.by_origin()):
            parts = ", ".join(f"{name} is {alternatives(texts)}" for name, texts in mixed.items())
            how = f"give the files of one as {side}: a subfolder or a quoted pattern"
            yield Verdict.NOT_COMPARABLE, f"{parts} within {side}; {how}"


def _incomplete_outcomes(
    base: MeasurementGroup, new: MeasurementGroup, kept: MeasurementGroup
) -> Iterator[_Outcome]:
    """Yields a verdict with its reason for each problem that makes measurements incomplete or
    wrong, such as an interrupted run. The caller uses only the first one.

    `kept` contains the runs of BASE that have a partner in NEW.
    """
    for side, group in (("BASE", base), ("NEW", new)):
        if stopped := sum(record.status == "interrupted" for record in group.records):
            verb = "was" if stopped == 1 else "were"
            text = f"{_share_of_runs_text(stopped, side, group)} {verb} interrupted"
            yield Verdict.INCONCLUSIVE, text
        if wrong := sum(map(_has_alternating_step_times, group.records)):
            verb = "has" if wrong == 1 else "have"
            yield (
                Verdict.INCONCLUSIVE,
                f"{_share_of_runs_text(wrong, side, group)} {verb} {_MISTIMED}",
            )
    if shared := {record.run_id for record in base.records} & {
        record.run_id for record in new.records
    }:
        runs = count_text(len(shared), "run is", "runs are")
        yield Verdict.INCONCLUSIVE, f"{runs} in BASE and in NEW; a comparison needs two sets"
    if not kept.records:
        yield Verdict.INCONCLUSIVE, "no run in BASE has its partner in NEW"


def _has_alternating_step_times(measurement: Measurement) -> bool:
    """Whether the step times of a GPU run alternate between zero and twice the mean step time.

    In earlier versions of cnnbench, copying the result of a step could wait for the next step. The
    mean of such times is correct, but their median and percentiles are wrong.
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


def _failed_runs_text(side: str, group: MeasurementGroup) -> str | None:
    """Returns text with the number of failed runs in `side` (BASE or NEW) and the first error
    message; None if no run failed.
    """
    errors = [record.error for record in group.records if record.error is not None]
    if not errors:
        return None
    message = " ".join(errors[0].message.split())[:200]
    return f"{_share_of_runs_text(len(errors), side, group)} failed: {errors[0].type}: {message}"


def _changed_work_text(
    base: MeasurementGroup, new: MeasurementGroup, metric: Metric, blocking: Sequence[Difference]
) -> str:
    """Returns the reason for the verdict "changed work": sentences about the difference in the work
    per step between BASE and NEW, such as a wider network or another batch size.

    Changed work can make training many times slower, although the flags are equal. Users declare an
    intended change with --allow_changed_work. Otherwise, the answer says what changed instead of
    reporting a change in speed. Returns "" if a flag also differs, because that is a different
    experiment, or if the runs within BASE or within NEW differ. `blocking` contains the
    differences that prevent a verdict.
    """
    work = {
        difference.fact: (*difference.base, *difference.new)
        for difference in blocking
        if difference.fact in WORK
    }
    others = [difference for difference in blocking if difference.fact not in work]
    flags = {*base.configuration.flags, *new.configuration.flags}
    is_clear = all(len(both) == 2 for both in work.values())
    if not work or not is_clear or any(difference.fact in flags for difference in others):
        return ""
    network = list(_network_change_texts(work, bool(base.configuration.flags.get("forward_only"))))
    # If BASE and NEW have the same number of images per step, the text contains differing flags.
    batch = [
        f"{name} {_before_after_text(both)}"
        for name, both in work.items()
        if name not in MODEL_SIZE
    ]
    if "global_batch" in work:
        batch = [f"{_before_after_text(work['global_batch'])} images per step"]
    names = [name for name, parts in (("network", network), ("batch", batch)) if parts]
    judged = "Speed" if metric in SPEEDS else metric.name.capitalize()
    text = f"Different {' and '.join(names)}: {', '.join((*network, *batch))}. {judged} not judged."
    rates = [_median_flops_per_sec(side) for side in (base, new)]
    known = [number(rate / 1e9) for rate in rates if rate]
    if len(known) == len(rates):
        text += f" Measured rate: {_before_after_text(known)} GFLOP/s."
    if others:
        text += f" Also different: {first_few([*map(str, others)], _FACTS_NAMED)}."
    return text


def _network_change_texts(work: Mapping[str, Sequence[str]], forward_only: bool) -> Iterable[str]:
    if "model_parameters" in work:
        yield f"{_before_after_text(work['model_parameters'])} parameters"
    elif "model_trainable_parameters" in work:
        yield f"{_before_after_text(work['model_trainable_parameters'])} trainable parameters"
    names = ("model_training_flops", "model_forward_flops")
    flops = [work[name] for name in (names[::-1] if forward_only else names) if name in work]
    if flops:
        yield f"{_percent_change_text(flops[0])} FLOPs per image"
    elif set(work) & set(MODEL_SIZE):
        yield "the same FLOPs per image"


def _percent_change_text(base_and_new: Sequence[str]) -> str:
    """Returns text with the change from `base_and_new[0]` to `base_and_new[1]` in per cent. If the
    change rounds to 0 %, the text contains both numbers instead.
    """
    before, after = map(int, base_and_new)
    share = after / before - 1 if before else 0.0
    return (
        percent(share, signed=True) if round(100 * share, 1) else _before_after_text(base_and_new)
    )


def _before_after_text(base_and_new: Sequence[str]) -> str:
    before, after = (integer(int(text)) if text.isdecimal() else text for text in base_and_new)
    return f"{before} → {after}"


def _median_flops_per_sec(group: MeasurementGroup) -> float | None:
    values = [
        speed * flops
        for record in group.successful
        if isinstance(record, RunRecord)
        and (speed := throughput(record)) is not None
        and (flops := record.flops_per_image()) is not None
    ]
    return median(values) if values else None


# Compares two sets of records, and writes notes about runs that were left out or failed.

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
    looks: Sequence[InterimAnalysis] = (),
    plan: AnalysisSchedule | PlanOf | None = None,
    allow_changed_work: bool = False,
    fail_on: Sequence[str] | None = None,
    rules: Rules | None = None,
    base_label: str = "BASE",
    new_label: str = "NEW",
    skipped: Sequence[SkippedFile] = (),
) -> Comparison:
    """Compares the records of BASE with the records of NEW, separately for each configuration.

    Args:
      base, new: records, one per process. Each row of an all-reduce record is a configuration.
      metrics: names in `METRICS`, in any order. Inconclusive results of these metrics set the exit
        code. None means `DEFAULT_METRICS`, of which only speeds set the exit code.
      allow_different: properties, groups and patterns that may differ, see --allow_different.
      aa: runs of an A/A measurement, from which the spread of each configuration is computed.
      paired: if True, pairs of `cnnbench ab` are compared or, if the records contain no pairs, the
        i-th run of BASE by start time with the i-th run of NEW. If None, runs are compared in
        pairs only if the records contain pairs.
      looks: interim analyses of the experiment up to this one; empty if the pairs are judged once.
        Metrics that are not requested are judged once, because they do not end an experiment.
      plan: plan for judging further pairs, or a function from a configuration's runs of BASE and
        NEW to the plan. None means that further pairs are judged together with these pairs by the
        same policy.
      fail_on: words of --fail_on, which say what a verdict must answer. They have priority over the
        words of rules.
      rules: rules by configuration and metric. `metrics` has priority over the metrics of rules.
    """
    if unknown := set(metrics or ()).difference(METRICS):
        raise KeyError(", ".join(sorted(unknown)))
    rules, patterns = rules or Rules(), expand_fact_names(tuple(allow_different))
    if metrics is not None:
        rules = rules.without_judged_metrics()
    processes = (tuple(base), tuple(new))
    names = {*DEFAULT_METRICS, *rules.judged_metrics} if metrics is None else {*metrics}
    matched, left_out, aa_notes = _match_runs(processes, aa or (), names, policy, patterns)
    drafts = [
        _prepare_configuration(
            *sides,
            name,
            cases,
            rules=rules,
            patterns=patterns,
            paired=paired,
            looks=looks,
            plan=plan,
        )
        for sides, (name, cases) in zip(
            matched, _make_empty_samples(matched, metrics, fail_on, rules, policy), strict=True
        )
    ]
    entries = _judge_drafts(drafts, policy, rules)
    tested = [case for _, cases in drafts for case in cases if case.known is None]
    return Comparison(
        entries=tuple(sorted(entries, key=lambda entry: natural_key(entry.name))),
        policy=policy,
        metrics=_shown_metrics(names, entries),
        paired=bool(tested) and all(case.paired for case in tested) if paired is None else paired,
        allow_changed_work=allow_changed_work,
        fail_on=None if fail_on is None else tuple(fail_on),
        rules=rules if rules != Rules() else None,
        notes=(*left_out, *_comparison_notes(processes, matched, entries, rules, aa_notes)),
        base_label=base_label,
        new_label=new_label,
        names=("A", "B") if are_sides_of_experiment(*processes) else ("BASE", "NEW"),
        skipped=tuple(skipped),
    )


def _match_runs(
    processes: Sequence[Sequence[RunRecord | AllReduceRecord]],
    aa: Iterable[RunRecord | AllReduceRecord],
    names: Collection[str],
    policy: Policy,
    patterns: tuple[str, ...],
) -> tuple[list[_Sides], list[str], list[str]]:
    """Matches the runs of BASE, NEW and the A/A measurement by configuration. Returns the
    configurations that have one of the metrics `names`, and two lists of notes.

    The first list contains notes about configurations without these metrics. The second list
    contains notes about A/A runs.
    """
    sides = group_by_configuration(*records_to_measurements(*processes, aa, patterns=patterns))
    base, new, alike = (
        [group for group in side if metrics_to_judge(names, {group.configuration.kind})]
        for side in sides
    )
    usable, notes = _usable_aa_runs(base, alike, policy, patterns)
    matched = [
        (before, after, usable.get(before.configuration.key, ()))
        for before, after in match_groups(base, new, patterns)
    ]
    return matched, _left_out_configuration_notes(sides[:2], names), notes


def _make_empty_samples(
    matched: Sequence[_Sides],
    requested_metrics: Collection[str] | None,
    fail_on: Sequence[str] | None,
    rules: Rules,
    policy: Policy,
) -> Iterator[tuple[str, list[TwoSamples]]]:
    """Yields the name of each matched configuration, and a `TwoSamples` for each of its metrics to
    judge. The values are filled in later.

    If several metrics can set the exit code, their tests share alpha. Kinds of measurements share
    alpha in the same way; see `Rules.policy_for`. If neither `requested_metrics` nor a rule
    requests a metric, the speed sets the exit code.

    Args:
      requested_metrics: names of the requested metrics. They have priority over the metrics of
        rules.
    """
    configurations = [base.configuration for base, *_ in matched]
    by_key = unique_configuration_names(configurations)
    names = [by_key[configuration.key] for configuration in configurations]
    kinds = [configuration.kind for configuration in configurations]
    chosen: list[tuple[tuple[Metric, ...], tuple[Metric, ...]]] = []
    for kind, name in zip(kinds, names, strict=True):
        _, rule = rules.rule_for(name)
        requested = rule.judge if requested_metrics is None else requested_metrics
        metrics = asked = metrics_to_judge(requested, {kind})
        if requested_metrics is None and not asked:
            metrics = metrics_to_judge(DEFAULT_METRICS, {kind})
            asked = metrics[:1]
        chosen.append((metrics, asked))
    deciding = [
        () if kind in CONTEXT else asked for kind, (_, asked) in zip(kinds, chosen, strict=True)
    ]
    shares_alpha = len({metric.name for asked in deciding for metric in asked}) > 1
    number = len({kind for kind, asked in zip(kinds, deciding, strict=True) if asked})
    for name, sharing, (metrics, asked) in zip(names, deciding, chosen, strict=True):
        shared = (sharing if shares_alpha else (), number)
        cases = []
        for metric in metrics:
            own = rules.policy_for(policy, name, metric, *shared)
            questions = questions_of(own.fail_on if fail_on is None else fail_on)
            case = TwoSamples(base=(), new=(), metric=metric, policy=own, questions=questions)
            cases.append(replace(case, asked=metric in asked))
        yield name, cases


def _shown_metrics(
    names: Collection[str], entries: Sequence[ComparedConfiguration]
) -> tuple[Metric, ...]:
    """The requested metrics, followed by the CPU time if any configuration was judged by throughput
    and CPU time together.
    """
    metrics = metrics_to_judge(names, {entry.configuration.kind for entry in entries} or {RUN})
    joint = any(result.share < 1 for entry in entries for result in entry.results)
    return (*metrics, CPU_TIME) if joint and CPU_TIME not in metrics else metrics


def _judge_drafts(
    drafts: Sequence[tuple[ComparedConfiguration, Sequence[TwoSamples]]],
    policy: Policy,
    rules: Rules,
) -> list[ComparedConfiguration]:
    """Judges the samples of all configurations together, and returns the configurations with their
    results.
    """
    judgements = iter(judge_all([case for _, cases in drafts for case in cases]))
    return [
        replace(draft, results=_metric_results(draft, cases, judgements, policy, rules))
        for draft, cases in drafts
    ]


def _rule_notes(rules: Rules, entries: Sequence[ComparedConfiguration]) -> Iterator[str]:
    """Yields a note for each rule, with the configurations to which the rule applies, and a note
    for each regression that a rule accepts.
    """
    for place in range(1, len(rules.rules) + 1):
        title = rules.title(place)
        names = [entry.name for entry in entries if entry.rule == title]
        what = "fits no configuration"
        if names:
            what = f"applies to {first_few(names, _NAMED)}: {rules.rules[place - 1].effects()}"
        yield f"{rules.short_source}, digest {rules.digest}: {title} {what}"
    for entry in entries:
        for result in entry.results:
            if (acceptance := result.accepted) is not None:
                when = "was accepted" if acceptance.has_ended else "is accepted"
                text = f"{entry.name}: {result.word} of {result.metric.name}"
                yield f"{text} {when} by {acceptance.source_text}"
            elif (acceptance := _acceptance(entry, result, rules.with_messages())) is not None:
                text = f"{acceptance.source_text} accepts this only if rules contain "
                yield f"{entry.name}: {text}accept_by_message = true"
    if text := rules.unknown_commits_text():
        yield text


_ACCEPTABLE = {Verdict.SLOWER: "slower", Verdict.CHANGED_WORK: "changed"}
"""Verdicts that can be accepted, with their words in --fail_on."""


def _acceptance(
    entry: ComparedConfiguration, result: MetricResult, rules: Rules
) -> Acceptance | None:
    """Returns what accepts the result of a configuration by the rules; None if nothing does."""
    if result.verdict not in _ACCEPTABLE or not rules.accepts:
        return None
    revisions = ([Origin.of(run).revision for run in side] for side in (entry.base, entry.new))
    word = _ACCEPTABLE[result.verdict]
    return rules.acceptance_between(entry.name, result.metric, word, *revisions)


def _metric_results(
    draft: ComparedConfiguration,
    cases: Sequence[TwoSamples],
    judgements: Iterator[Judgement],
    policy: Policy,
    rules: Rules,
) -> tuple[MetricResult, ...]:
    """Returns a `MetricResult` for each sample in `cases`, which are all from one configuration.
    The result of a regression that the rules accept contains the accepted commit.

    Takes one item for each case from the iterator `judgements`.
    """
    by_metric = {case.metric.name: next(judgements) for case in cases}
    if any(case.share < 1 for case in cases):
        both = by_metric[THROUGHPUT.name], by_metric[CPU_TIME.name]
        questions = cases[0].questions
        by_metric[THROUGHPUT.name] = joint_judgement(*both, policy, draft.runs, questions)
    results = []
    for case in cases:
        judgement = by_metric[case.metric.name]
        change, slow = median_step_change_and_slow_steps(
            case, judgement.change, draft.base, draft.new, case.policy
        )
        more = draft.disturbance if judgement.needed is not None else ""
        sides = ("BASE", "NEW")
        further = (more, slow_steps_and_median_change_text(change, slow, sides, case.paired))
        judgement = replace(
            judgement,
            reason="; ".join(filter(None, (judgement.reason, *further))),
            median_change=change,
        )
        result = dataclass_from_sources(MetricResult, case, judgement=judgement, slow=slow)
        result = replace(result, accepted=_acceptance(draft, result, rules))
        results.append(result)
    return tuple(results)


def _left_out_configuration_notes(
    sides: Iterable[Sequence[MeasurementGroup]], names: Collection[str]
) -> list[str]:
    """Returns a note for each kind of measurement with the number of configurations that are left
    out, because they have none of the metrics `names`.
    """
    keys = dict.fromkeys(
        (group.configuration.kind, group.configuration.key) for side in sides for group in side
    )
    return [
        f"{count_text(len(left_out), 'configuration', 'configurations')} of {KINDS[kind]} left "
        "out: "
        f"they have no {' or '.join(name for name in METRICS if name in names)}"
        for kind, left_out in group_by(keys, itemgetter(0)).items()
        if kind not in CONTEXT and not metrics_to_judge(names, {kind})
    ]


def _comparison_notes(
    processes: Sequence[Sequence[RunRecord | AllReduceRecord]],
    matched: Sequence[_Sides],
    entries: Sequence[ComparedConfiguration],
    rules: Rules,
    aa_notes: Sequence[str],
) -> Iterator[str]:
    if any(record.environment.get("emulated_gpus") for side in processes for record in side):
        yield EMULATED_NOTICE
    yield from filter(
        None,
        [imported_records_note(record for side in processes for record in side)],
    )
    yield from _unsuccessful_run_notes(entries)
    _, repeated = repeated_pairs_and_causes(run for entry in entries for run in entry.runs)
    yield from filter(None, [repeated])
    yield from _interrupted_all_reduce_notes(processes)
    yield from aa_notes
    for (base, new, _), entry in zip(matched, entries, strict=True):
        unpaired = len(base.records) + len(new.records) - len(entry.runs)
        if unpaired:
            runs = count_text(unpaired, "run", "runs")
            yield f"{entry.name}: {runs} left out, without a partner"
    for entry in entries:
        for side, records in (("BASE", entry.base), ("NEW", entry.new)):
            trained = (record for record in records if isinstance(record, RunRecord))
            if diverged := sum(not all(map(math.isfinite, run.losses)) for run in trained):
                runs = count_text(len(records), "run", "runs")
                yield f"{entry.name}: losses of {diverged} of {runs} in {side} are not finite"
    yield from _rule_notes(rules, entries)


def _unsuccessful_run_notes(entries: Sequence[ComparedConfiguration]) -> Iterator[str]:
    """Yields notes with the number of unsuccessful runs in BASE and in NEW. Medians and values
    exclude unsuccessful runs.
    """
    sides = {
        side: [run for entry in entries for run in getattr(entry, side)] for side in ("base", "new")
    }
    for side, runs in sides.items():
        for kind, plural in KINDS.items():
            statuses = [run.status for run in runs if kind_of(run) == kind]
            bad = Counter(status for status in statuses if status != "ok")
            if bad:
                what = ", ".join(f"{number} {status}" for status, number in bad.items())
                number = f"{bad.total()} of {len(statuses)} {plural} in {side.upper()}"
                yield f"left out of medians and values: {number} ({what})"


def _interrupted_all_reduce_notes(
    sides: Sequence[Sequence[RunRecord | AllReduceRecord]],
) -> Iterator[str]:
    """Yields notes with the number of interrupted all-reduce processes in BASE and in NEW. An
    interrupted process may have completed some of its rows.
    """
    for name, records in zip(("BASE", "NEW"), sides, strict=True):
        reduced = [record for record in records if not isinstance(record, RunRecord)]
        if stopped := sum(record.status == "interrupted" for record in reduced):
            of = count_text(len(reduced), "all-reduce measurement", "all-reduce measurements")
            verb = "was" if stopped == 1 else "were"
            yield f"{stopped} of {of} in {name} {verb} interrupted: rows not reached are missing"


_NAMED = 5
"""Maximum number of configurations with the same reason that notes list individually."""


def _usable_aa_runs(
    base: Sequence[MeasurementGroup],
    aa: Sequence[MeasurementGroup],
    policy: Policy,
    patterns: tuple[str, ...],
) -> tuple[dict[str, Sequence[Measurement]], list[str]]:
    """Returns the A/A runs that can be used for the configurations of `base`, as a mapping from
    configuration key to runs, and notes on A/A runs that cannot be used.
    """
    by_key: dict[str, Sequence[Measurement]] = {}
    refused: dict[str, list[str]] = {}
    for group, other in match_groups(base, aa, patterns):
        if not (group.records and other.records):
            continue
        reason = _reason_to_exclude_aa_runs(group, other, policy, patterns)
        if reason is None:
            by_key[group.configuration.key] = other.records
        elif group.configuration.kind not in CONTEXT:
            refused.setdefault(reason, []).append(configuration_name(group.configuration))
    notes = []
    for reason, names in refused.items():
        if len(names) > _NAMED:
            names = [f"{names[0]} and {len(names) - 1} more configurations"]
        notes += [f"A/A runs of {name} cannot be used: {reason}" for name in names]
    configurations = [
        group.configuration for group in base if group.configuration.kind not in CONTEXT
    ]
    missing = sum(configuration.key not in by_key for configuration in configurations)
    if aa and missing:
        without = count_text(missing, "configuration", "configurations")
        notes.append(f"no A/A spread for {without}: only the threshold is used")
    return by_key, notes


def _reason_to_exclude_aa_runs(
    base: MeasurementGroup, aa: MeasurementGroup, policy: Policy, patterns: tuple[str, ...]
) -> str | None:
    for difference in fact_differences(base, aa, patterns):
        if difference.blocks:
            return str(difference).replace(" in NEW", " in the A/A runs")
    runs = sum(record.status == "ok" for record in aa.records)
    if runs < policy.min_processes:
        return f"{count_text(runs, 'run', 'runs')}, at least {policy.min_processes} are needed"
    return None
