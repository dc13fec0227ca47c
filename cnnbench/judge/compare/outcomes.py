"""Finds verdicts that need no statistical test: runs that are missing, failed, incomplete or not
comparable, or that did other work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TypeAlias

from cnnbench.base.stats import median
from cnnbench.base.text import alternatives, billions, first_few, integer, percent
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.comparability import Difference, MeasurementGroup
from cnnbench.judge.compare.facts import MODEL_SIZE, WORK
from cnnbench.judge.compare.judgement import Verdict
from cnnbench.judge.metrics.judged import SPEEDS
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.judge.metrics.origin import varying_parts
from cnnbench.records.metric import Metric
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import RunRecord

_FACTS_NAMED = 3
"""Maximum number of differences that the reason for a verdict contains."""

Outcome: TypeAlias = tuple[Verdict, str]
"""A verdict that needs no statistical test, and the reason for it."""


def missing_metric_outcome(
    base: MeasurementGroup, new: MeasurementGroup, metric: Metric, is_requested: bool
) -> Outcome | None:
    """Returns a verdict and its reason if some successful runs lack the metric; otherwise None."""
    for side, group in (("BASE", base), ("NEW", new)):
        if missing := sum(metric.value(record) is None for record in group.successful):
            verdict = Verdict.NOT_MEASURED if is_requested else Verdict.INCONCLUSIVE
            runs = phrases.share_of_runs(missing, len(group.records), side)
            return verdict, phrases.NOT_MEASURED.format(runs=runs, metric=metric.name)
    return None


def incomparable_outcome(
    base: MeasurementGroup, new: MeasurementGroup, unlike: Sequence[Difference], metric: Metric
) -> Outcome | None:
    """A verdict and its reason if runs, such as failed ones, cannot be compared; or None."""
    sides = (("BASE", base), ("NEW", new))
    if not (base.records and new.records):
        absent, there = ("NEW", "BASE") if base.records else ("BASE", "NEW")
        return Verdict.MISSING, phrases.ONLY_ONE_SIDE.format(absent=absent, there=there)
    if failures := [*filter(None, (_failures(*side) for side in sides))]:
        return Verdict.FAILED, "; ".join(failures)
    if blocking := [difference for difference in unlike if difference.blocks]:
        if answer := _changed_work(base, new, metric, blocking):
            return Verdict.CHANGED_WORK, answer
        return Verdict.NOT_COMPARABLE, first_few([*map(str, blocking)], _FACTS_NAMED)
    for side, group in sides:
        if mixed := varying_parts(group.by_origin()):
            parts = ", ".join(f"{name} is {alternatives(texts)}" for name, texts in mixed.items())
            return Verdict.NOT_COMPARABLE, phrases.MIXED_SIDE.format(parts=parts, side=side)
    return None


def incomplete_outcome(
    base: MeasurementGroup, new: MeasurementGroup, kept: MeasurementGroup
) -> Outcome | None:
    """Returns a verdict and its reason if measurements are incomplete or wrong, such as
    interrupted runs; otherwise None.

    `kept` contains the runs of BASE that have a partner in NEW.
    """
    for side, group in (("BASE", base), ("NEW", new)):
        if stopped := sum(record.status == "interrupted" for record in group.records):
            runs = phrases.share_of_runs(stopped, len(group.records), side)
            return Verdict.INCONCLUSIVE, phrases.interrupted(stopped, runs)
        if wrong := sum(map(_is_mistimed, group.records)):
            runs = phrases.share_of_runs(wrong, len(group.records), side)
            return Verdict.INCONCLUSIVE, phrases.mistimed(wrong, runs)
    ids, others = ({record.run_id for record in group.records} for group in (base, new))
    if shared := ids & others:
        return Verdict.INCONCLUSIVE, phrases.shared_runs(len(shared))
    if not kept.records:
        return Verdict.INCONCLUSIVE, phrases.NO_PARTNERS
    return None


def _is_mistimed(measurement: Measurement) -> bool:
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


def _failures(side: str, group: MeasurementGroup) -> str | None:
    """Returns text with the number of failed runs and the first error message; None without one."""
    errors = [record.error for record in group.records if record.error is not None]
    if not errors:
        return None
    message = " ".join(errors[0].message.split())[:200]
    runs = phrases.share_of_runs(len(errors), len(group.records), side)
    return phrases.FAILED.format(runs=runs, kind=errors[0].type, message=message)


def _changed_work(
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
    work = {one.fact: (*one.base, *one.new) for one in blocking if one.fact in WORK}
    others = [difference for difference in blocking if difference.fact not in work]
    flags = {*base.configuration.flags, *new.configuration.flags}
    is_clear = all(len(both) == 2 for both in work.values())
    if not work or not is_clear or any(difference.fact in flags for difference in others):
        return ""
    network = list(_network_changes(work, bool(base.configuration.flags.get("forward_only"))))
    # If BASE and NEW have the same number of images per step, the text contains differing flags.
    batch = [f"{name} {_arrow(both)}" for name, both in work.items() if name not in MODEL_SIZE]
    if "global_batch" in work:
        batch = [phrases.IMAGES.format(change=_arrow(work["global_batch"]))]
    names = [name for name, parts in (("network", network), ("batch", batch)) if parts]
    judged = "Speed" if metric in SPEEDS else metric.name.capitalize()
    kinds, changes = " and ".join(names), ", ".join((*network, *batch))
    sentences = [phrases.DIFFERENT_WORK.format(kinds=kinds, changes=changes, metric=judged)]
    rates = [_median_rate(side) for side in (base, new)]
    known = [billions(rate) for rate in rates if rate]
    if len(known) == len(rates):
        sentences.append(phrases.MEASURED_RATE.format(rates=_arrow(known)))
    if others:
        listed = first_few([*map(str, others)], _FACTS_NAMED)
        sentences.append(phrases.OTHER_DIFFERENCES.format(facts=listed))
    return " ".join(sentences)


def _network_changes(work: Mapping[str, Sequence[str]], forward_only: bool) -> Iterable[str]:
    if "model_parameters" in work:
        yield phrases.PARAMETERS.format(change=_arrow(work["model_parameters"]))
    elif "model_trainable_parameters" in work:
        yield phrases.TRAINABLE.format(change=_arrow(work["model_trainable_parameters"]))
    names = ("model_training_flops", "model_forward_flops")
    flops = [work[name] for name in (names[::-1] if forward_only else names) if name in work]
    if flops:
        yield phrases.FLOPS.format(change=_percent_change(flops[0]))
    elif set(work) & set(MODEL_SIZE):
        yield phrases.FLOPS.format(change="the same")


def _percent_change(base_and_new: Sequence[str]) -> str:
    """Returns text with the change from `base_and_new[0]` to `base_and_new[1]` in per cent. If the
    change rounds to 0 %, the text contains both numbers instead.
    """
    before, after = map(int, base_and_new)
    share = after / before - 1 if before else 0.0
    return percent(share, signed=True) if round(100 * share, 1) else _arrow(base_and_new)


def _arrow(base_and_new: Sequence[str]) -> str:
    before, after = (integer(int(text)) if text.isdecimal() else text for text in base_and_new)
    return phrases.BEFORE_AFTER.format(before=before, after=after)


def _median_rate(group: MeasurementGroup) -> float | None:
    values = [
        speed * flops
        for record in group.successful
        if isinstance(record, RunRecord)
        and (speed := throughput(record)) is not None
        and (flops := record.flops_per_image()) is not None
    ]
    return median(values) if values else None
