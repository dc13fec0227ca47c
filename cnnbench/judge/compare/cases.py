"""Cases of a configuration: the values to be judged, and verdicts that need no test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, TypeAlias

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import count, first_few, integer, number, percent
from cnnbench.judge.compare import disturbance
from cnnbench.judge.compare.comparability import (
    Difference,
    Group,
    differences,
    in_pairs,
    sides_of_experiment,
)
from cnnbench.judge.compare.estimate import TwoSamples, spread_of
from cnnbench.judge.compare.judgement import Judgement, Verdict
from cnnbench.judge.compare.sequential import Continuation
from cnnbench.judge.metrics.comparable_facts import MODEL_SIZE, NOTHING, UNKNOWN, WORK
from cnnbench.judge.metrics.measurement import Measurement, varying
from cnnbench.judge.metrics.policy import Policy
from cnnbench.judge.metrics.registry import DEFAULT_METRICS, SPEEDS, THROUGHPUT, Metric, judged
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import RunRecord

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
        both = disturbance.cpu_time_cases(throughput, *kept, aa.records, policy)
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
