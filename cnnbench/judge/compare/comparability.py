"""Whether runs can be compared: groups the runs of a configuration, finds differences between BASE
and NEW in flags and in recorded properties that prevent a verdict, and finds verdicts that need no
statistical test: runs that are missing, failed, incomplete or not comparable, or that did other
work.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import itemgetter
from statistics import fmean
from typing import TypeAlias

from cnnbench.base.locks import CHECKOUT
from cnnbench.base.stats import group_by, median
from cnnbench.base.text import (
    alternatives,
    billions,
    count_text,
    first_few,
    integer,
    nearest_word,
    percent,
)
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS, ComparedBy, RunPart, flags_compared_by, names_of_flags
from cnnbench.judge.compare.configuration import IMPORTED, Configuration
from cnnbench.judge.compare.facts import (
    FACTS,
    FLAG,
    FLAG_PLACE,
    GROUPS,
    MODEL_SIZE,
    UNKNOWN,
    WORK,
    DifferenceEffect,
    FactRule,
    fact_rule,
    is_allowed_to_differ,
)
from cnnbench.judge.compare.judgement import Verdict
from cnnbench.judge.compare.rows import records_to_measurements
from cnnbench.judge.metrics.judged import SPEEDS
from cnnbench.judge.metrics.measurement import (
    MeasuredReduction,
    Measurement,
    fact_text,
    process_facts,
    readable_fact,
)
from cnnbench.judge.metrics.origin import Origin, fill_in_origins, varying_parts
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.metric import Metric
from cnnbench.records.metrics.figures import throughput
from cnnbench.records.run import RunRecord

_PLACES = flags_compared_by(ComparedBy.PRESENCE)

_WORK_FLAGS = names_of_flags(FLAGS, RunPart.STEP_WORK)
_UNKNOWN_WORK = FactRule(
    DifferenceEffect.BLOCKS, "an imported run of unknown work may have done other work"
)

_FACTS_NAMED = 3
"""Maximum number of differences that the reason for a verdict contains."""

_WORKTREE = re.compile(rf"(/[^\s'/]+)*/{CHECKOUT}[a-z0-9_]{{8}}/[^\s'/]+/?")
"""The path of a temporary git worktree, from which A or B of an experiment was measured."""


@dataclass(frozen=True)
class Difference:
    """A flag or a recorded property, such as the CPU model, that differs between the runs of BASE
    and NEW, or among the runs of one of them.

    Attributes:
      fact: name of the flag or of the recorded property.
      base, new: values in the runs of BASE and of NEW, as text. A missing value is "unknown" or
        "none".
      blocks: whether the difference prevents a verdict.
      reason: why the difference does or does not prevent a verdict.
    """

    fact: str
    base: tuple[str, ...]
    new: tuple[str, ...]
    blocks: bool
    reason: str

    def __str__(self) -> str:
        return differing_values_text(self.fact, self.base, self.new)


@dataclass(frozen=True, eq=False)
class MeasurementGroup:
    """The measurements of one configuration in BASE or NEW, one per process; there may be none."""

    configuration: Configuration
    records: tuple[Measurement, ...] = ()

    @property
    def successful(self) -> tuple[Measurement, ...]:
        """The successful measurements. Values are computed only from successful measurements."""
        return tuple(record for record in self.records if record.status == "ok")

    @property
    def imported(self) -> list[RunRecord]:
        """The runs that were imported from results of other programs."""
        runs = (record for record in self.records if isinstance(record, RunRecord))
        return [run for run in runs if run.imported is not None]

    def by_origin(self) -> dict[Origin, list[Measurement]]:
        """Groups the measurements by origin (code, TensorFlow version, machine). Origins are in the
        order of their first measurement.
        """
        origins = [Origin.of(record) for record in self.records]
        whole = fill_in_origins(origins)
        by_origin: dict[Origin, list[Measurement]] = {}
        for record, origin in zip(self.records, origins, strict=True):
            by_origin.setdefault(whole[origin], []).append(record)
        return by_origin

    def facts(self) -> dict[str, frozenset[str]]:
        """Maps the name of each flag and each recorded property to the set of its values in the
        measurements, as text. If a measurement lacks a property, the set contains the text from
        `text_if_absent`.
        """
        seen = group_by(
            (fact for record in self.records for fact in _fact_items(record)), itemgetter(0)
        )
        texts = {}
        for name, pairs in seen.items():
            values = {value for _, value in pairs}
            if len(pairs) != len(self.records):
                values.add(self.text_if_absent(fact_rule(name)))
            texts[name] = frozenset(values)
        lacks_flags = IMPORTED in self.configuration.flags
        flags = {
            name: frozenset([UNKNOWN if value is None and lacks_flags else fact_text(value)])
            for name, value in self.configuration.flags.items()
            if name not in _PLACES
        }
        return {**flags, **texts}

    def unknown_work(self) -> tuple[str, ...]:
        """Names of the flags and properties that say how much an imported run computed, but
        that are unknown: network, precision, batch size and number of processes.
        """
        imported, flags = self.imported, self.configuration.flags
        if not imported:
            return ()
        lacks_flags = IMPORTED in flags
        names = [name for name in _WORK_FLAGS if lacks_flags and flags.get(name) is None]
        if any(record.placement is None for record in imported):
            names.append("num_workers")
        return tuple(names)

    def text_if_absent(self, rule: FactRule) -> str:
        """Returns the text for a recorded property that a measurement does not have: "unknown" or
        "none". For imported records, the text is always "unknown".
        """
        return UNKNOWN if self.imported else rule.absent


def fact_differences(
    base: MeasurementGroup, new: MeasurementGroup, allowed: tuple[str, ...] = ()
) -> tuple[Difference, ...]:
    """Returns the flags and recorded properties that differ between the runs of BASE and NEW.
    Differences that prevent a verdict are first. Without runs on both sides, there are none.
    `allowed` are the patterns of properties that never prevent a verdict.
    """
    if not (base.records and new.records):
        return ()
    sides = (base.facts(), new.facts())
    flags = {*base.configuration.flags, *new.configuration.flags}
    unlike_flags = set(base.configuration.differing_flags(new.configuration))
    unknown = dict.fromkeys((*base.unknown_work(), *new.unknown_work()))
    differing = []
    for name in dict.fromkeys((*unknown, *sides[0], *sides[1])):
        if name in unknown:
            rule = _UNKNOWN_WORK
        elif name in unlike_flags:
            rule = FLAG
        elif name in _PLACES:
            rule = FLAG_PLACE
        elif name in flags:
            continue
        else:
            rule = fact_rule(name)
        values = [
            side.get(name, frozenset([rule.absent if name in flags else of.text_if_absent(rule)]))
            for side, of in zip(sides, (base, new), strict=True)
        ]
        both = values[0] | values[1]
        certain, blocks = name in unknown, rule.effect is DifferenceEffect.BLOCKS
        certain |= len(both - {UNKNOWN}) > 1
        is_listed = name in unknown or (len(both) > 1 and (certain or blocks))
        if rule.effect is not DifferenceEffect.IGNORED and is_listed:
            base_texts, new_texts = (tuple(sorted(side)) for side in values)
            blocks = blocks and certain and not is_allowed_to_differ(name, allowed)
            differing.append(Difference(name, base_texts, new_texts, blocks, rule.reason))
    explicit = {flag for record in (*base.records, *new.records) for flag in record.explicit_flags}
    # Differences that prevent a verdict come first, then the other differences. In both groups, the
    # order is: an imported program, flags and variables that the user has set, everything else.
    explicit.add(IMPORTED)
    differing.sort(
        key=lambda difference: (
            not difference.blocks,
            difference.fact not in explicit and not difference.fact.startswith("env_"),
            difference.fact != IMPORTED,
        )
    )
    return tuple(differing)


def differing_values_text(name: str, base: tuple[str, ...], new: tuple[str, ...]) -> str:
    """Returns text with the name of a flag or recorded property and its values in BASE and in NEW:
    "cpu_model is Fast CPU in BASE and Slow CPU in NEW".
    """
    sides = ([readable_fact(name, one) for one in side] for side in (base, new))
    before, after = map(alternatives, sides)
    if base != new:
        return f"{name} is {before} in BASE and {after} in NEW"
    if base == (UNKNOWN,):
        return f"{name} is unknown in BASE and in NEW"
    return f"{name} is {before} within BASE and within NEW"


def check_fact_names(names: Collection[str], *sides: Iterable[RunRecord | AllReduceRecord]) -> None:
    """Raises FlagError if a name in --allow_different matches no recorded property, flag or group
    of properties (see `unknown_fact_names`). `sides` are sets of records, such as BASE and NEW.
    """
    if not names:
        return
    measured = chain(*records_to_measurements(*sides))
    for name, close in unknown_fact_names(names, measured).items():
        hint = f"did you mean {close}?" if close else "cnnbench env lists the facts"
        raise FlagError("allow_different", name, f"no such fact; {hint}")


def unknown_fact_names(names: Iterable[str], measured: Iterable[Measurement]) -> dict[str, str]:
    """Returns the names that match no recorded property, flag or group of properties. Each is
    mapped to the most similar known name, or to "" if no known name is similar.
    """
    flags = (spec.name for spec in FLAGS)
    own = (name for record in measured for name in (*record.config, *dict(_fact_items(record))))
    known = sorted({*FACTS, *GROUPS, *flags, *own})
    unknown = [
        name
        for name in names
        if not any(is_allowed_to_differ(pattern, (name,)) for pattern in known)
    ]
    return {name: nearest_word(name, known) for name in unknown}


def _fact_items(record: Measurement) -> Iterator[tuple[str, str]]:
    facts = record.facts if isinstance(record, MeasuredReduction) else _run_facts(record)
    places = ((name, str(record.config[name])) for name in _PLACES if record.config.get(name))
    for name, text in chain(facts, places):
        # The worktrees of A and B always have different paths, so the paths are removed.
        yield name, _WORKTREE.sub("", text) if CHECKOUT in text else text


def _run_facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    yield from process_facts(record)
    if record.model is not None:
        yield "model_parameters", str(record.model.parameters)
        yield "model_trainable_parameters", str(record.model.trainable_parameters)
        yield "model_forward_flops", str(record.model.forward_flops_per_image)
        yield "model_training_flops", str(record.model.training_flops_per_image)
    if record.batch is not None:
        yield "global_batch", str(record.batch.global_)
    if record.placement is not None:
        yield "num_workers", str(record.placement.num_workers)
        yield "all_reduce", ",".join(record.placement.all_reduce) or "none"


# Verdicts that need no statistical test.

Outcome: TypeAlias = tuple[Verdict, str]
"""A verdict that needs no statistical test, and the reason for it."""


def share_of_runs(number: int, runs: int, side: str) -> str:
    """Returns a number of runs as a part of the runs of a side: "2 of 5 runs in NEW"."""
    return f"{number} of {count_text(runs, 'run', 'runs')} in {side}"


def missing_metric_outcome(
    base: MeasurementGroup, new: MeasurementGroup, metric: Metric, is_requested: bool
) -> Outcome | None:
    """Returns a verdict and its reason if some successful runs lack the metric; otherwise None."""
    for side, group in (("BASE", base), ("NEW", new)):
        if missing := sum(metric.value(record) is None for record in group.successful):
            verdict = Verdict.NOT_MEASURED if is_requested else Verdict.INCONCLUSIVE
            runs = share_of_runs(missing, len(group.records), side)
            return verdict, f"{runs} did not measure {metric.name}"
    return None


def incomparable_outcome(
    base: MeasurementGroup, new: MeasurementGroup, unlike: Sequence[Difference], metric: Metric
) -> Outcome | None:
    """A verdict and its reason if runs, such as failed ones, cannot be compared; or None."""
    sides = (("BASE", base), ("NEW", new))
    if not (base.records and new.records):
        absent, there = ("NEW", "BASE") if base.records else ("BASE", "NEW")
        return Verdict.MISSING, f"{absent} has no run of this configuration, only {there} has"
    if failures := [*filter(None, (_failures(*side) for side in sides))]:
        return Verdict.FAILED, "; ".join(failures)
    if blocking := [difference for difference in unlike if difference.blocks]:
        if answer := _changed_work(base, new, metric, blocking):
            return Verdict.CHANGED_WORK, answer
        return Verdict.NOT_COMPARABLE, first_few([*map(str, blocking)], _FACTS_NAMED)
    for side, group in sides:
        if mixed := varying_parts(group.by_origin()):
            parts = ", ".join(f"{name} is {alternatives(texts)}" for name, texts in mixed.items())
            remedy = f"give the files of one as {side}: a subfolder or a quoted pattern"
            return Verdict.NOT_COMPARABLE, f"{parts} within {side}; {remedy}"
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
            runs = share_of_runs(stopped, len(group.records), side)
            verb = "was" if stopped == 1 else "were"
            return Verdict.INCONCLUSIVE, f"{runs} {verb} interrupted"
        if wrong := sum(map(_alternates, group.records)):
            runs = share_of_runs(wrong, len(group.records), side)
            text = "step times that alternate between those of two steps and none, as earlier "
            text += "versions of cnnbench mis-timed steps on GPUs; measure again"
            return Verdict.INCONCLUSIVE, f"{runs} {'has' if wrong == 1 else 'have'} {text}"
    ids, others = ({record.run_id for record in group.records} for group in (base, new))
    if shared := ids & others:
        runs = count_text(len(shared), "run is", "runs are")
        return Verdict.INCONCLUSIVE, f"{runs} in BASE and in NEW; a comparison needs two sets"
    if not kept.records:
        return Verdict.INCONCLUSIVE, "no run in BASE has its partner in NEW"
    return None


def _alternates(measurement: Measurement) -> bool:
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
    runs = share_of_runs(len(errors), len(group.records), side)
    return f"{runs} failed: {errors[0].type}: {message}"


def _changed_work(
    base: MeasurementGroup, new: MeasurementGroup, metric: Metric, blocking: Sequence[Difference]
) -> str:
    """Returns the reason for the verdict "changed work": sentences about the difference in the work
    per step between BASE and NEW, such as a wider network or another batch size.

    Changed work can make training many times slower, although the flags are equal. Users declare an
    intended change with --allow_changed_work. Otherwise, the answer says what changed instead of
    reporting a change in speed. Returns "" if a flag also differs, because that is a different
    experiment, if the work is unknown, or if the runs within BASE or within NEW differ. `blocking`
    contains the differences that prevent a verdict.
    """
    work = {one.fact: (*one.base, *one.new) for one in blocking if one.fact in WORK}
    others = [difference for difference in blocking if difference.fact not in work]
    flags = {*base.configuration.flags, *new.configuration.flags}
    is_clear = all(len(both) == 2 and UNKNOWN not in both for both in work.values())
    if not work or not is_clear or any(difference.fact in flags for difference in others):
        return ""
    network = list(_network_changes(work, bool(base.configuration.flags.get("forward_only"))))
    # If both have the same number of images per step, that number explains nothing, so the text
    # names the flags that differ.
    batch = [f"{name} {_arrow(both)}" for name, both in work.items() if name not in MODEL_SIZE]
    if "global_batch" in work:
        batch = [f"{_arrow(work['global_batch'])} images per step"]
    names = [name for name, parts in (("network", network), ("batch", batch)) if parts]
    judged = "Speed" if metric in SPEEDS else metric.name.capitalize()
    kinds, changes = " and ".join(names), ", ".join((*network, *batch))
    sentences = [f"Different {kinds}: {changes}. {judged} not judged."]
    rates = [_median_flop_rate(side) for side in (base, new)]
    known = [billions(rate) for rate in rates if rate]
    if len(known) == len(rates):
        sentences.append(f"Measured rate: {_arrow(known)} GFLOP/s.")
    if others:
        listed = first_few([*map(str, others)], _FACTS_NAMED)
        sentences.append(f"Also different: {listed}.")
    return " ".join(sentences)


def _network_changes(work: Mapping[str, Sequence[str]], forward_only: bool) -> Iterable[str]:
    if "model_parameters" in work:
        yield f"{_arrow(work['model_parameters'])} parameters"
    elif "model_trainable_parameters" in work:
        yield f"{_arrow(work['model_trainable_parameters'])} trainable parameters"
    names = ("model_training_flops", "model_forward_flops")
    flops = [work[name] for name in (names[::-1] if forward_only else names) if name in work]
    if flops:
        yield f"{_percent_change(flops[0])} FLOPs per image"
    elif set(work) & set(MODEL_SIZE):
        yield "the same FLOPs per image"


def _percent_change(base_and_new: Sequence[str]) -> str:
    """Returns text with the change from `base_and_new[0]` to `base_and_new[1]` in per cent. If the
    change rounds to 0 %, the text contains both numbers instead.
    """
    before, after = map(int, base_and_new)
    share = after / before - 1 if before else 0.0
    return percent(share, signed=True) if round(100 * share, 1) else _arrow(base_and_new)


def _arrow(base_and_new: Sequence[str]) -> str:
    before, after = (integer(int(text)) if text.isdecimal() else text for text in base_and_new)
    return f"{before} → {after}"


def _median_flop_rate(group: MeasurementGroup) -> float | None:
    values = [
        speed * flops
        for record in group.successful
        if isinstance(record, RunRecord)
        and (speed := throughput(record)) is not None
        and (flops := record.flops_per_image()) is not None
    ]
    return median(values) if values else None
