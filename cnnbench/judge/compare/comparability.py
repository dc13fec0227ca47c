"""Matches configurations and runs of two sides, and finds differences that block a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Protocol, TypeAlias

from cnnbench.base.stats import group_by
from cnnbench.base.text import nearest_word
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS
from cnnbench.flags.declare import IdentityShare, RunPart, names_of_flags
from cnnbench.flags.params import flags_with_identity_share
from cnnbench.judge.compare.configuration import (
    FACTS,
    FLAG,
    FLAG_PLACE,
    GROUPS,
    IMPORTED,
    OWN,
    UNKNOWN,
    Configuration,
    Effect,
    FactRule,
    fact,
    is_allowed_to_differ,
)
from cnnbench.judge.metrics import (
    KINDS,
    RUN,
    MeasuredReduction,
    Measurement,
    Origin,
    complete_origins,
    fact_text,
    process_facts,
    readable_fact,
)
from cnnbench.records.codec import started
from cnnbench.records.run import BENCHMARKS, RunRecord

_PLACES = flags_with_identity_share(IdentityShare.PRESENCE)


@dataclass(frozen=True)
class Difference:
    """A fact with more than one value in the runs of both sides.

    Attributes:
      fact: name of the fact.
      base, new: values in the runs of BASE and of NEW, as text. A missing value is "unknown" or
        "none".
      blocks: whether the difference prevents a verdict.
      reason: why it prevents a verdict, or why it does not.
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
    """Measurements of one configuration on one side, one per process. May be empty."""

    configuration: Configuration
    records: tuple[Measurement, ...] = ()

    @property
    def good(self) -> tuple[Measurement, ...]:
        """Successful measurements. All values are computed from them."""
        return tuple(record for record in self.records if record.status == "ok")

    def origins(self) -> dict[Origin, list[Measurement]]:
        """Groups runs by origin, in the order of the first run of each origin."""
        origins = [Origin.of(record) for record in self.records]
        whole = complete_origins(origins)
        by_origin: dict[Origin, list[Measurement]] = {}
        for record, origin in zip(self.records, origins, strict=True):
            by_origin.setdefault(whole[origin], []).append(record)
        return by_origin

    def facts(self) -> dict[str, frozenset[str]]:
        """All values of every fact. For runs without the fact, the value is the text of
        `absent`.
        """
        seen = group_by(
            (fact for record in self.records for fact in _fact_items(record)), itemgetter(0)
        )
        texts = {
            name: frozenset(value for _, value in pairs)
            | (frozenset() if len(pairs) == len(self.records) else {self.absent(fact(name))})
            for name, pairs in seen.items()
        }
        flags = {
            name: frozenset([fact_text(value)])
            for name, value in self.configuration.flags.items()
            if name not in _PLACES
        }
        return {**flags, **texts}

    def absent(self, rule: FactRule) -> str:
        """The meaning of a missing fact. In imported records, it always means that the fact is
        unknown.
        """
        return UNKNOWN if IMPORTED in self.configuration.flags else rule.absent


def fact_differences(
    base: MeasurementGroup, new: MeasurementGroup, patterns: tuple[str, ...] = ()
) -> tuple[Difference, ...]:
    """Facts that differ. Facts that block a verdict are first. Facts that match `patterns` never
    block.
    """
    sides = (base.facts(), new.facts())
    flags = {*base.configuration.flags, *new.configuration.flags}
    unlike_flags = set(base.configuration.differing(new.configuration))
    differing = []
    for name in dict.fromkeys((*sides[0], *sides[1])):
        if name in unlike_flags:
            rule = FLAG
        elif name in _PLACES:
            rule = FLAG_PLACE
        elif name in flags:
            continue
        else:
            rule = fact(name)
        values = [
            side.get(name, frozenset([rule.absent if name in flags else of.absent(rule)]))
            for side, of in zip(sides, (base, new), strict=True)
        ]
        both = values[0] | values[1]
        certain, blocks = len(both - {UNKNOWN}) > 1, rule.effect is Effect.BLOCKS
        if rule.effect is not Effect.IGNORED and len(both) > 1 and (certain or blocks):
            base_texts, new_texts = (tuple(sorted(side)) for side in values)
            blocks = blocks and certain and not is_allowed_to_differ(name, patterns)
            differing.append(Difference(name, base_texts, new_texts, blocks, rule.reason))
    explicit = {flag for record in (*base.records, *new.records) for flag in record.explicit_flags}
    # Sort order: first a different program, then flags that were given, then flags that depend on
    # them.
    explicit.add(IMPORTED)
    return tuple(
        sorted(
            differing,
            key=lambda difference: (
                not difference.blocks,
                difference.fact not in explicit,
                difference.fact != IMPORTED,
            ),
        )
    )


def differing_values_text(name: str, base: tuple[str, ...], new: tuple[str, ...]) -> str:
    """A fact with its values on both sides, as text: "cpu_model is A in BASE and B in NEW"."""
    before, after = (
        " or ".join(readable_fact(name, value) for value in side) for side in (base, new)
    )
    if base == new:
        return f"{name} is {before} within each side"
    return f"{name} is {before} in BASE and {after} in NEW"


def check_fact_names(names: Iterable[str], measured: Iterable[Measurement]) -> None:
    """Raises FlagError if --allow_different contains an unknown fact (see `unknown_fact_names`)."""
    for name, close in unknown_fact_names(names, measured).items():
        hint = f"did you mean {close}?" if close else "cnnbench env names the facts"
        raise FlagError("allow_different", name, f"no such fact; {hint}")


def unknown_fact_names(names: Iterable[str], measured: Iterable[Measurement]) -> dict[str, str]:
    """Names that match no fact, flag or group. Each has the most similar known name, or ""."""
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
    if isinstance(record, MeasuredReduction):
        yield from record.facts
    else:
        yield from _run_facts(record)
    for name in _PLACES:
        if record.config.get(name):
            yield name, str(record.config[name])


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


_Pairs: TypeAlias = list[tuple[MeasurementGroup, MeasurementGroup]]

_VARIANTS = ("model", "benchmark", "data_name", *names_of_flags(FLAGS, RunPart.WORK))
"""Flags that variants of a run have in common. For reductions, see `OWN`."""

_MAX_DIFFERING = 5
"""Maximum number of different flags in matched configurations."""


def group_by_configuration(*sides: Iterable[Measurement]) -> list[list[MeasurementGroup]]:
    """Groups the runs of each side by configuration. Runs are sorted by start time.

    A run that failed before its flags were resolved is added to the configuration with the same
    resolved flags, if there is exactly one.
    """
    configured = [
        [
            (Configuration.of(record), record)
            for record in sorted(
                side, key=lambda record: (started(record.started_at), record.run_id)
            )
        ]
        for side in sides
    ]
    distinct = {
        configuration.key: configuration for side in configured for configuration, _ in side
    }
    resolved = tuple(configuration for configuration in distinct.values() if configuration.resolved)
    homes = {
        key: find_resolved_match(configuration, resolved)
        for key, configuration in distinct.items()
        if not configuration.resolved
    }

    def resolved_configuration(pair: tuple[Configuration, Measurement]) -> Configuration:
        return homes.get(pair[0].key, pair[0])

    made = []
    for side in configured:
        early_last = sorted(side, key=lambda pair: not pair[0].resolved)
        members = group_by(early_last, lambda pair: resolved_configuration(pair).key).values()
        made.append(
            [
                MeasurementGroup(
                    resolved_configuration(cluster[0]), tuple(record for _, record in cluster)
                )
                for cluster in members
            ]
        )
    return made


def match_groups(
    base: Sequence[MeasurementGroup],
    new: Sequence[MeasurementGroup],
    patterns: tuple[str, ...] = (),
) -> _Pairs:
    """Pairs of groups of the same kind. If a side lacks a configuration, its group is empty.

    Groups with equal flags are matched first. Then follow groups that differ only in facts of
    `patterns`, if each side has only one. The nearest variants are matched last, so that their
    differences can be reported.
    """
    pairs: _Pairs = []
    for kind in KINDS:
        left, right = ([o for o in side if o.configuration.kind == kind] for side in (base, new))
        matched = _pair_by_key(left, right, lambda group: group.configuration.key)
        if patterns:
            rest = _unmatched_groups(left, right, matched)
            matched += _pair_by_key(*rest, lambda group: _flags_text_without(group, patterns))
        matched += _pair_nearest_groups(*_unmatched_groups(left, right, matched))
        alone, other = _unmatched_groups(left, right, matched)
        pairs += [*matched, *((group, MeasurementGroup(group.configuration)) for group in alone)]
        pairs += [(MeasurementGroup(group.configuration), group) for group in other]
    return pairs


def are_sides_of_experiment(base: Sequence[object], new: Sequence[object]) -> bool:
    """Whether all runs of BASE are side A of an experiment and all runs of NEW are side B."""
    return all(
        records and all(_ab_placement(record).get("side") == side for record in records)
        for side, records in (("a", base), ("b", new))
    )


def paired_groups(
    base: MeasurementGroup, new: MeasurementGroup
) -> tuple[MeasurementGroup, MeasurementGroup] | None:
    """The runs of both sides, without unpaired runs. The runs of a pair have the same index.

    None unless both sides contain pairs of the same experiment, and all runs belong to a pair.
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
    """Seed of the `cnnbench ab` experiment and number of the pair; None if the run has no pair."""
    place = _ab_placement(record)
    seed, number = place.get("seed"), place.get("pair")
    return (seed, number) if isinstance(seed, int) and isinstance(number, int) else None


class MeasuredProcess(Protocol):
    """A process that may belong to an experiment.

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
"""State of the measured code (see `Origin.code`), and the day if the commit is unknown."""


def revision_of(process: MeasuredProcess) -> Revision:
    """The revision that a process measured."""
    origin = process.origin
    return (*origin.code, "" if origin.revision else f"{process.started:%Y-%m-%d}")


def match_complete_pairs(processes: Iterable[MeasuredProcess]) -> list[Pair]:
    """Complete pairs of processes, sorted by the start of the earlier process."""
    sides: dict[tuple[int, int], tuple[list[MeasuredProcess], list[MeasuredProcess]]] = {}
    for process in processes:
        if process.pair is not None and process.origin.side in ("a", "b"):
            both = sides.setdefault(process.pair, ([], []))
            both[process.origin.side == "b"].append(process)
    # Experiments with the same seed have pairs with the same keys, at different times.
    pairs = [pair for both in sides.values() for pair in zip(*both, strict=False)]
    return sorted(pairs, key=lambda pair: min(process.started for process in pair))


def compared_commit_lookup(pairs: Sequence[Pair]) -> Callable[[MeasuredProcess], str]:
    """Returns a function: process to the short commit with which it was compared; "" if there is
    none.

    An unpaired process belongs to the first experiment of its commit.
    """
    exact: dict[int, str] = {}
    first: dict[tuple[Revision, str], str] = {}
    for pair in pairs:
        for record, other in (pair, pair[::-1]):
            exact[id(record)] = other.origin.short
            first.setdefault((revision_of(record), record.origin.side), other.origin.short)
    return lambda record: (
        exact.get(id(record)) or first.get((revision_of(record), record.origin.side), "")
    )


def compared_commit_text(opponent: str) -> str:
    """Text that distinguishes the groups of a commit, if it was compared with several commits."""
    return f"against {opponent}" if opponent else "alone"


def _runs_by_pair(group: MeasurementGroup) -> dict[tuple[int, int], Measurement]:
    """Maps experiment and pair number to runs. Empty if two runs have the same pair."""
    by_pair = {pair: record for record in group.records if (pair := pair_id_of(record)) is not None}
    return by_pair if len(by_pair) == len(group.records) else {}


def _ab_placement(record: object) -> Mapping[str, object]:
    return record.ab or {} if isinstance(record, RunRecord) else {}


def find_resolved_match(early: Configuration, resolved: Sequence[Configuration]) -> Configuration:
    """The resolved configuration that matches `early`, if it is unique; otherwise `early`."""
    agreeing = [
        configuration
        for configuration in resolved
        if configuration.kind == early.kind and not configuration.differing(early)
    ]
    return agreeing[0] if len(agreeing) == 1 else early


def _unmatched_groups(
    left: Sequence[MeasurementGroup], right: Sequence[MeasurementGroup], pairs: _Pairs
) -> tuple[list[MeasurementGroup], list[MeasurementGroup]]:
    taken = {group for pair in pairs for group in pair}
    return [group for group in left if group not in taken], [
        group for group in right if group not in taken
    ]


def _pair_by_key(
    left: Sequence[MeasurementGroup],
    right: Sequence[MeasurementGroup],
    key: Callable[[MeasurementGroup], str],
) -> _Pairs:
    """Pairs of groups with equal keys. The key must be unique on both sides."""
    first, second = (group_by(side, key) for side in (left, right))
    return [
        (groups_of_text[0], second[text][0])
        for text, groups_of_text in first.items()
        if len(groups_of_text) == len(second.get(text, ())) == 1
    ]


def _flags_text_without(group: MeasurementGroup, patterns: tuple[str, ...]) -> str:
    flags = sorted(group.configuration.flags.items())
    return json.dumps([flag for flag in flags if not is_allowed_to_differ(flag[0], patterns)])


def _pair_nearest_groups(
    left: Sequence[MeasurementGroup], right: Sequence[MeasurementGroup]
) -> _Pairs:
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]  # There is only one candidate on each side.
    variants = group_by(range(len(right)), lambda j: _variant_key(right[j]))
    distances = sorted(
        (len(group.configuration.differing(right[j].configuration)), i, j)
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
