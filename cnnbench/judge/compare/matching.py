"""Which runs belong together: the runs of a configuration in BASE and in NEW, and the pairs of
`cnnbench ab`, which are one process of side A and one of side B, measured together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from cnnbench.base.stats import group_by
from cnnbench.flags import FLAGS, RunPart, names_of_flags
from cnnbench.judge.compare.comparability import MeasurementGroup
from cnnbench.judge.compare.configuration import Configuration, ab_place
from cnnbench.judge.compare.facts import is_allowed_to_differ
from cnnbench.judge.compare.rows import OWN
from cnnbench.judge.metrics.measurement import KINDS, RUN, Measurement
from cnnbench.judge.metrics.origin import Origin
from cnnbench.records.codec import parse_start_time

_Groups: TypeAlias = Sequence[MeasurementGroup]
_Pairs: TypeAlias = list[tuple[MeasurementGroup, MeasurementGroup]]

_VARIANTS = ("model", "data_name", *names_of_flags(FLAGS, RunPart.WORK))
"""Flags that must be equal before two runs are matched as variants. For reductions, see `OWN`."""

_MAX_DIFFERING = 5
"""Maximum number of flags in which two matched configurations may differ."""


def group_by_configuration(*sides: Iterable[Measurement]) -> list[list[MeasurementGroup]]:
    """Groups the runs of each given set, such as BASE and NEW, by configuration. The runs of each
    group are sorted by start time.

    A run may fail before all its flags have their final values. Such a run is added to the
    configuration whose flags agree with its final values, if there is exactly one.
    """
    found = [
        [(Configuration.of(run), run) for run in sorted(side, key=_start_key)] for side in sides
    ]
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


def _start_key(run: Measurement) -> tuple[datetime, str]:
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
            matched += _pair_by_key(*rest, lambda group: _key_without(group, patterns))
        matched += _pair_nearest(*_unmatched(left, right, matched))
        alone, other = _unmatched(left, right, matched)
        pairs += [*matched, *((group, MeasurementGroup(group.configuration)) for group in alone)]
        pairs += [(MeasurementGroup(group.configuration), group) for group in other]
    return pairs


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


def _key_without(group: MeasurementGroup, patterns: tuple[str, ...]) -> str:
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
    """The values of the flags that distinguish variants of a configuration, as a key."""
    configuration = group.configuration
    names = _VARIANTS if configuration.kind == RUN else OWN
    return json.dumps([configuration.flags.get(name) for name in names])


# Pairs of `cnnbench ab`.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProcess:
    """A measured process, which may belong to an experiment of `cnnbench ab`.

    A commit such as GOOD of a bisection is compared with several commits at different times, and
    the state of the machine varies. Therefore processes of one commit are pooled only if they were
    compared with the same commit.

    Attributes:
      started: start of the process, in UTC.
      pair: seed of an experiment of `cnnbench ab`, and number of the pair; None for other runs.
    """

    origin: Origin
    started: datetime
    pair: tuple[int, int] | None = None


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
