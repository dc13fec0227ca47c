"""Groups the runs of a configuration, and finds differences between BASE and NEW in flags and in
recorded properties of machine and software that prevent a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

from cnnbench.base.locks import CHECKOUT
from cnnbench.base.stats import group_by
from cnnbench.base.suggestions import nearest_word
from cnnbench.base.text import alternatives
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS
from cnnbench.flags.declare import names_of_flags
from cnnbench.flags.identity import flags_compared_by
from cnnbench.flags.roles import ComparedBy, RunPart
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.configuration import IMPORTED, Configuration
from cnnbench.judge.compare.facts import (
    FACTS,
    FLAG,
    FLAG_PLACE,
    GROUPS,
    UNKNOWN,
    DifferenceEffect,
    FactRule,
    benchmark_fact_rule,
    fact_rule,
    is_allowed_to_differ,
)
from cnnbench.judge.compare.rows import records_to_measurements
from cnnbench.judge.metrics.measurement import (
    RUN,
    MeasuredReduction,
    Measurement,
    fact_text,
    process_facts,
    readable_fact,
)
from cnnbench.judge.metrics.origin import Origin, fill_in_origins
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.imported import BENCHMARKS
from cnnbench.records.run import RunRecord

_PLACES = flags_compared_by(ComparedBy.PRESENCE)

_WORK_FLAGS = names_of_flags(FLAGS, RunPart.STEP_WORK)
_UNKNOWN_WORK = FactRule(
    DifferenceEffect.BLOCKS, "an imported run of unknown work may have done other work"
)

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
        if self.configuration.kind != RUN or not imported:
            return ()
        lacks_flags = IMPORTED in flags
        names = [name for name in _WORK_FLAGS if lacks_flags and flags.get(name) is None]
        if any(record.placement is None for record in imported):
            names.append("num_workers")
        return tuple(names)

    def text_if_absent(self, rule: FactRule) -> str:
        """Returns the text that stands for a recorded property that a measurement lacks: "unknown"
        or "none". For imported records, the text is always "unknown".
        """
        return UNKNOWN if self.imported else rule.absent


def fact_differences(
    base: MeasurementGroup, new: MeasurementGroup, patterns: tuple[str, ...] = ()
) -> tuple[Difference, ...]:
    """Returns the flags and recorded properties that differ between the runs of BASE and NEW.
    Differences that prevent a verdict are first. Properties that match `patterns` never prevent a
    verdict.
    """
    sides = (base.facts(), new.facts())
    flags = {*base.configuration.flags, *new.configuration.flags}
    unlike_flags = set(base.configuration.differing_flags(new.configuration))
    unknown = dict.fromkeys((*base.unknown_work(), *new.unknown_work()))
    is_benchmark = base.configuration.kind in BENCHMARKS
    differing = []
    for name in dict.fromkeys((*unknown, *sides[0], *sides[1])):
        if name in unknown:
            rule = _UNKNOWN_WORK
        elif name in unlike_flags:
            rule = (benchmark_fact_rule(name) if is_benchmark else None) or FLAG
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
            blocks = blocks and certain and not is_allowed_to_differ(name, patterns)
            differing.append(Difference(name, base_texts, new_texts, blocks, rule.reason))
    explicit = {flag for record in (*base.records, *new.records) for flag in record.explicit_flags}
    # Differences that prevent a verdict are first.
    # Within each group, an imported program is first, followed by flags and variables of the user.
    explicit.add(IMPORTED)
    differing.sort(
        key=lambda difference: (
            not difference.blocks,
            difference.fact not in explicit and not difference.fact.startswith("env_"),
            difference.fact != IMPORTED,
        )
    )
    return tuple(differing)


def differing_values_text(
    name: str, base: tuple[str, ...], new: tuple[str, ...], there: str = "NEW"
) -> str:
    """Returns text with the name of a flag or recorded property and its values in BASE and in
    `there`: "cpu_model is Fast CPU in BASE and Slow CPU in NEW".
    """
    texts = [alternatives([readable_fact(name, one) for one in side]) for side in (base, new)]
    template = phrases.UNLIKE
    if base == new:
        template = phrases.UNKNOWN_IN_BOTH if base == (UNKNOWN,) else phrases.UNLIKE_WITHIN_BOTH
    return template.format(name=name, base=texts[0], new=texts[1], there=there)


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
        # The worktrees of A and B have different paths, whatever is measured.
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
