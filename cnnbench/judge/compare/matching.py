"""Matching of the configurations of BASE and NEW, and of their runs in pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from cnnbench.judge.compare.comparability import Group
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.compare.reductions import OWN
from cnnbench.judge.metrics.comparable_facts import allowed
from cnnbench.judge.metrics.measurement import KINDS, RUN, Measurement
from cnnbench.records.codec import started
from cnnbench.records.run import RunRecord

_Pairs: TypeAlias = list[tuple[Group, Group]]
_Numbered: TypeAlias = dict[tuple[int, int], Measurement]

_VARIANTS = ("model", "data_name", "eval", "forward_only", "input_only")
"""Flags that variants of a run share; those of reductions are `OWN`."""

_MAX_DIFFERING = 5
"""Configurations that differ by more flags are not matched."""


def groups(*sides: Iterable[Measurement]) -> list[list[Group]]:
    """Configurations of every side and their runs, in order of start.

    A run that failed early joins the only configuration that agrees in the resolved flags.
    """
    found = [
        [(Configuration.of(one), one) for one in sorted(side, key=lambda o: started(o.started_at))]
        for side in sides
    ]
    resolved = {one.key: one for side in found for one, _ in side if one.resolved}
    return [_grouped(side, tuple(resolved.values())) for side in found]


def match(
    base: Sequence[Group], new: Sequence[Group], patterns: tuple[str, ...] = ()
) -> list[tuple[Group | None, Group | None]]:
    """Pairs of groups of a kind; None where the other side lacks the configuration.

    First those of equal flags; then those that differ only in the facts of `patterns`, if each side
    has only one; then the nearest variants, so that their differences can be named.
    """
    pairs: list[tuple[Group | None, Group | None]] = []
    for kind in KINDS:
        left, right = ([o for o in side if o.configuration.kind == kind] for side in (base, new))
        twins = {one.configuration.key: one for one in right}
        matched = [
            (one, twins[one.configuration.key]) for one in left if one.configuration.key in twins
        ]
        matched += _but_for(*_rest(left, right, matched), patterns)
        matched += _nearest(*_rest(left, right, matched))
        alone, other = _rest(left, right, matched)
        pairs += [*matched, *((one, None) for one in alone), *((None, one) for one in other)]
    return pairs


def share_pairs(base: Group, new: Group) -> bool:
    """Whether all runs belong to pairs of an experiment that both sides have."""
    return _of_one_experiment(_by_pair(base), _by_pair(new))


def sides_of_experiment(base: Sequence[object], new: Sequence[object]) -> bool:
    """Whether all runs of BASE are side A of an experiment, and those of NEW side B."""
    return all(
        records and all(_place(one).get("side") == side for one in records)
        for side, records in (("a", base), ("b", new))
    )


def in_pairs(base: Group, new: Group) -> tuple[Group, Group]:
    """Both sides with partners at the same index, and without runs that lack a partner.

    Unchanged unless all runs name a pair of an experiment that both sides have.
    """
    left, right = _by_pair(base), _by_pair(new)
    if not _of_one_experiment(left, right):
        return base, new
    shared = [pair for pair in left if pair in right]
    return (
        Group(base.configuration, tuple(left[pair] for pair in shared)),
        Group(new.configuration, tuple(right[pair] for pair in shared)),
    )


def _of_one_experiment(left: _Numbered, right: _Numbered) -> bool:
    return not {seed for seed, _ in left}.isdisjoint(seed for seed, _ in right)


def pair_of(record: object) -> tuple[int, int] | None:
    """Seed of the experiment of `cnnbench ab` and number of the pair; None without one."""
    place = _place(record)
    seed, number = place.get("seed"), place.get("pair")
    return (seed, number) if isinstance(seed, int) and isinstance(number, int) else None


def _by_pair(group: Group) -> _Numbered:
    """Runs by experiment and number of their pair; empty unless each has a pair of its own."""
    found = {}
    for record in group.records:
        pair = pair_of(record)
        if pair is not None:
            found[pair] = record
    return found if len(found) == len(group.records) else {}


def _place(record: object) -> Mapping[str, object]:
    return record.ab or {} if isinstance(record, RunRecord) else {}


def _grouped(
    side: Sequence[tuple[Configuration, Measurement]], resolved: Sequence[Configuration]
) -> list[Group]:
    members: dict[str, tuple[Configuration, list[Measurement]]] = {}
    joined: dict[str, Configuration] = {}
    for configuration, record in sorted(side, key=lambda pair: not pair[0].resolved):
        if not configuration.resolved:
            if configuration.key not in joined:
                joined[configuration.key] = home(configuration, resolved)
            configuration = joined[configuration.key]
        members.setdefault(configuration.key, (configuration, []))[1].append(record)
    return [Group(configuration, tuple(records)) for configuration, records in members.values()]


def home(early: Configuration, resolved: Sequence[Configuration]) -> Configuration:
    """The only configuration that agrees with one of unresolved flags, else itself."""
    agreeing = [one for one in resolved if one.kind == early.kind and not one.differing(early)]
    return agreeing[0] if len(agreeing) == 1 else early


def _rest(
    left: Sequence[Group], right: Sequence[Group], pairs: _Pairs
) -> tuple[list[Group], list[Group]]:
    taken = {one for pair in pairs for one in pair}
    return [one for one in left if one not in taken], [one for one in right if one not in taken]


def _but_for(left: Sequence[Group], right: Sequence[Group], patterns: tuple[str, ...]) -> _Pairs:
    if not patterns:
        return []
    alike: dict[str, tuple[list[Group], list[Group]]] = {}
    for place, side in enumerate((left, right)):
        for group in side:
            flags = group.configuration.flags
            kept = [(name, flags[name]) for name in sorted(flags) if not allowed(name, patterns)]
            alike.setdefault(json.dumps(kept), ([], []))[place].append(group)
    return [(a[0], b[0]) for a, b in alike.values() if len(a) == len(b) == 1]


def _nearest(left: Sequence[Group], right: Sequence[Group]) -> _Pairs:
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]  # the only candidates
    variants: dict[str, list[int]] = {}
    for j, other in enumerate(right):
        variants.setdefault(_variant(other), []).append(j)
    distances = sorted(
        (len(one.configuration.differing(right[j].configuration)), i, j)
        for i, one in enumerate(left)
        for j in variants.get(_variant(one), ())
    )
    pairs: _Pairs = []
    taken: tuple[set[int], set[int]] = (set(), set())
    for distance, i, j in distances:
        if distance <= _MAX_DIFFERING and i not in taken[0] and j not in taken[1]:
            pairs.append((left[i], right[j]))
            taken[0].add(i)
            taken[1].add(j)
    return pairs


def _variant(group: Group) -> str:
    configuration = group.configuration
    names = _VARIANTS if configuration.kind == RUN else OWN
    return json.dumps([configuration.flags.get(name) for name in names])
