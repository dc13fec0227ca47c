"""Matches the runs of BASE with the runs of NEW by configuration, and finds differences in flags
and in recorded properties of machine and software that prevent a verdict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from operator import itemgetter
from typing import Protocol, TypeAlias

from cnnbench.base.files import CHECKOUT
from cnnbench.base.stats import group_by
from cnnbench.base.suggestions import nearest_word
from cnnbench.base.text import alternatives
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS
from cnnbench.flags.declare import ComparedBy, RunPart, names_of_flags
from cnnbench.flags.params import flags_compared_by
from cnnbench.judge.compare import phrases
from cnnbench.judge.compare.configuration import (
    FACTS,
    FLAG,
    FLAG_PLACE,
    GROUPS,
    IMPORTED,
    OWN,
    UNKNOWN,
    Configuration,
    DifferenceEffect,
    FactRule,
    ab_place,
    benchmark_fact_rule,
    fact_rule,
    is_allowed_to_differ,
    records_to_measurements,
)
from cnnbench.judge.metrics import (
    KINDS,
    RUN,
    MeasuredReduction,
    Measurement,
    Origin,
    fact_text,
    fill_in_origins,
    process_facts,
    readable_fact,
)
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import parse_start_time
from cnnbench.records.run import BENCHMARKS, RunRecord

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
        imported = [
            record
            for record in self.records
            if isinstance(record, RunRecord) and record.imported is not None
        ]
        if self.configuration.kind != RUN or not imported:
            return ()
        flags = self.configuration.flags
        lacks_flags = IMPORTED in flags
        names = [name for name in _WORK_FLAGS if lacks_flags and flags.get(name) is None]
        if any(record.placement is None for record in imported):
            names.append("num_workers")
        return tuple(names)

    def text_if_absent(self, rule: FactRule) -> str:
        """Returns the text that stands for a recorded property that a measurement lacks: "unknown"
        or "none". For imported records, the text is always "unknown".
        """
        runs = (record for record in self.records if isinstance(record, RunRecord))
        return UNKNOWN if any(run.imported is not None for run in runs) else rule.absent


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


_Groups: TypeAlias = Sequence[MeasurementGroup]
_Pairs: TypeAlias = list[tuple[MeasurementGroup, MeasurementGroup]]

_VARIANTS = ("model", "benchmark", "data_name", *names_of_flags(FLAGS, RunPart.WORK))
"""Flags that must be equal before two runs are matched as variants. For reductions, see `OWN`."""

_MAX_DIFFERING = 5
"""Maximum number of flags in which two matched configurations may differ."""


def group_by_configuration(*sides: Iterable[Measurement]) -> list[list[MeasurementGroup]]:
    """Groups the runs of each given set, such as BASE and NEW, by configuration. The runs of each
    group are sorted by start time.

    A run may fail before all its flags have their final values. Such a run is added to the
    configuration whose flags agree with its final values, if there is exactly one.
    """
    found = [[(Configuration.of(run), run) for run in sorted(side, key=_start)] for side in sides]
    distinct = {own.key: own for side in found for own, _ in side}
    resolved = tuple(own for own in distinct.values() if own.resolved)
    early = ((key, own) for key, own in distinct.items() if not own.resolved)
    homes = {key: find_resolved_match(own, resolved) for key, own in early}
    made = []
    for side in found:
        early_last = sorted(side, key=lambda pair: not pair[0].resolved)
        placed = [(homes.get(own.key, own), run) for own, run in early_last]
        groups = group_by(placed, lambda pair: pair[0].key).values()
        made.append([MeasurementGroup(one[0][0], tuple(run for _, run in one)) for one in groups])
    return made


def _start(run: Measurement) -> tuple[datetime, str]:
    return parse_start_time(run.started_at), run.run_id


def match_groups(base: _Groups, new: _Groups, patterns: tuple[str, ...] = ()) -> _Pairs:
    """Matches each group of BASE with a group of NEW that has the same kind of measurement. If only
    BASE or only NEW contains a configuration, it is matched with an empty group.

    Groups with equal flags are matched first. Next, groups are matched that differ only in flags
    that match `patterns`, if BASE and NEW contain exactly one such group each. Of the remaining
    groups, the groups with the fewest different flags are matched, so that their differences can
    be reported.
    """
    pairs: _Pairs = []
    for kind in KINDS:
        left, right = ([o for o in side if o.configuration.kind == kind] for side in (base, new))
        matched = _pair_by_key(left, right, lambda group: group.configuration.key)
        if patterns:
            rest = _unmatched(left, right, matched)
            matched += _pair_by_key(*rest, lambda group: _flags_text_without(group, patterns))
        matched += _pair_nearest(*_unmatched(left, right, matched))
        alone, other = _unmatched(left, right, matched)
        pairs += [*matched, *((group, MeasurementGroup(group.configuration)) for group in alone)]
        pairs += [(MeasurementGroup(group.configuration), group) for group in other]
    return pairs


def are_sides_of_experiment(base: Sequence[object], new: Sequence[object]) -> bool:
    """Whether all runs of BASE are from side A of `cnnbench ab`, and those of NEW from side B."""
    return all(
        records and all(ab_place(record).get("side") == side for record in records)
        for side, records in (("a", base), ("b", new))
    )


def keep_complete_pairs(
    base: MeasurementGroup, new: MeasurementGroup
) -> tuple[MeasurementGroup, MeasurementGroup] | None:
    """Returns the runs of BASE and NEW that belong to complete pairs of one process of each. The
    two runs of a pair have the same index.

    Returns None unless every run has a pair number, and BASE and NEW share an experiment.
    """
    left, right = _runs_by_pair(base), _runs_by_pair(new)
    if {seed for seed, _ in left}.isdisjoint(seed for seed, _ in right):
        return None
    shared = [pair for pair in left if pair in right]
    return (
        MeasurementGroup(base.configuration, tuple(left[pair] for pair in shared)),
        MeasurementGroup(new.configuration, tuple(right[pair] for pair in shared)),
    )


def pair_id_of(record: object) -> tuple[int, int] | None:
    """Returns the seed of a run's experiment and the number of its pair; None if it has no pair."""
    place = ab_place(record)
    seed, number = place.get("seed"), place.get("pair")
    return (seed, number) if isinstance(seed, int) and isinstance(number, int) else None


class MeasuredProcess(Protocol):
    """Protocol for a measured process that may belong to a `cnnbench ab` experiment.

    For `pair`, see `pair_id_of`. `started` is in UTC.

    A commit such as GOOD of a bisection is compared with several commits at different times, and
    the state of the machine varies. Therefore processes of one commit are pooled only if they were
    compared with the same commit.
    """

    @property
    def origin(self) -> Origin: ...  # noqa: D102
    @property
    def started(self) -> datetime: ...  # noqa: D102
    @property
    def pair(self) -> tuple[int, int] | None: ...  # noqa: D102


Pair: TypeAlias = tuple[MeasuredProcess, MeasuredProcess]
"""Processes of base and head in a pair of `cnnbench ab`."""

Revision: TypeAlias = tuple[str, str, bool | None, str, str]
"""State of the measured code (see `Origin.code_state`) and, if its commit is unknown, the day."""


def revision_of(process: MeasuredProcess) -> Revision:
    """Returns the revision that a process measured or, if its commit is unknown, the day."""
    origin = process.origin
    return (*origin.code_state, "" if origin.revision else f"{process.started:%Y-%m-%d}")


def match_complete_pairs(processes: Iterable[MeasuredProcess]) -> list[Pair]:
    """Returns the pairs of `cnnbench ab` for which both processes are given, each as (process of
    side A, process of side B). Pairs are sorted by the start of their first process.
    """
    sides: dict[tuple[int, int], tuple[list[MeasuredProcess], list[MeasuredProcess]]] = {}
    for process in processes:
        if process.pair is not None and process.origin.side in ("a", "b"):
            both = sides.setdefault(process.pair, ([], []))
            both[process.origin.side == "b"].append(process)
    # Pairs of different experiments with the same seed have equal keys.
    pairs = [pair for both in sides.values() for pair in zip(*both, strict=False)]
    return sorted(pairs, key=lambda pair: min(process.started for process in pair))


def compared_commit_lookup(pairs: Sequence[Pair]) -> Callable[[MeasuredProcess], str]:
    """Returns a function that takes a process and returns the abbreviated commit that the process
    was compared with, or "" if there is no such commit.

    A process without a pair is assigned to the first experiment that measured its commit.
    """
    exact: dict[int, str] = {}
    first: dict[tuple[Revision, str], str] = {}
    for pair in pairs:
        for record, other in (pair, pair[::-1]):
            exact[id(record)] = other.origin.short_revision
            first.setdefault((revision_of(record), record.origin.side), other.origin.short_revision)
    return lambda record: (
        exact.get(id(record)) or first.get((revision_of(record), record.origin.side), "")
    )


def compared_commit_text(opponent: str) -> str:
    """Returns text that distinguishes groups of runs of the same commit: "against 1a2b3c4" if the
    runs were compared with commit 1a2b3c4, or "alone" if they were compared with no commit.
    """
    return f"against {opponent}" if opponent else "alone"


def _runs_by_pair(group: MeasurementGroup) -> dict[tuple[int, int], Measurement]:
    """Maps (seed of the experiment, number of the pair) to the run. Returns {} if a run belongs to
    no pair, or if two runs belong to the same pair.
    """
    by_pair = {pair: record for record in group.records if (pair := pair_id_of(record)) is not None}
    return by_pair if len(by_pair) == len(group.records) else {}


def find_resolved_match(
    unresolved: Configuration, resolved: Sequence[Configuration]
) -> Configuration:
    """Returns the only configuration in `resolved` that agrees with `unresolved`, the
    configuration of a run that failed before all its flags had final values. If no configuration or
    several agree, returns `unresolved`.
    """
    alike = (one for one in resolved if one.kind == unresolved.kind)
    agreeing = [one for one in alike if not one.differing_flags(unresolved)]
    return agreeing[0] if len(agreeing) == 1 else unresolved


def _unmatched(left: _Groups, right: _Groups, pairs: _Pairs) -> tuple[_Groups, _Groups]:
    taken = {group for pair in pairs for group in pair}
    rest, other = ([one for one in side if one not in taken] for side in (left, right))
    return rest, other


def _pair_by_key(left: _Groups, right: _Groups, key: Callable[[MeasurementGroup], str]) -> _Pairs:
    """Pairs each group of `left` with the group of `right` that has the same key. Keys that occur
    more than once in `left` or in `right` are ignored.
    """
    first, second = (group_by(side, key) for side in (left, right))
    single = (text for text, own in first.items() if len(own) == len(second.get(text, ())) == 1)
    return [(first[text][0], second[text][0]) for text in single]


def _flags_text_without(group: MeasurementGroup, patterns: tuple[str, ...]) -> str:
    flags = sorted(group.configuration.flags.items())
    return json.dumps([flag for flag in flags if not is_allowed_to_differ(flag[0], patterns)])


def _pair_nearest(left: _Groups, right: _Groups) -> _Pairs:
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    variants = group_by(range(len(right)), lambda j: _variant_key(right[j]))
    distances = sorted(
        (len(group.configuration.differing_flags(right[j].configuration)), i, j)
        for i, group in enumerate(left)
        for j in variants.get(_variant_key(group), ())
    )
    pairs: _Pairs = []
    taken: set[MeasurementGroup] = set()
    for distance, i, j in distances:
        pair = left[i], right[j]
        if distance <= _MAX_DIFFERING and taken.isdisjoint(pair):
            pairs.append(pair)
            taken.update(pair)
    return pairs


def _variant_key(group: MeasurementGroup) -> str:
    configuration = group.configuration
    names = _VARIANTS if configuration.kind in (RUN, *BENCHMARKS) else OWN
    return json.dumps([configuration.flags.get(name) for name in names])
