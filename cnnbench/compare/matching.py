"""Which configuration of NEW belongs to which of BASE."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from cnnbench.compare.comparability import Group, M
from cnnbench.compare.configuration import Configuration
from cnnbench.compare.kinds import KINDS
from cnnbench.metrics.comparable_facts import allowed
from cnnbench.records.timestamps import started

_Pairs: TypeAlias = list[tuple[Group[M], Group[M]]]

_MAX_DIFFERING = 5
"""Configurations that differ by more flags have nothing to do with each other."""


def groups(*sides: Iterable[M]) -> list[list[Group[M]]]:
    """The configurations of every side, in order of their first run.

    A run that failed so early that its record holds some flags as given, not as they
    turned out, joins the only configuration of any side that agrees in the others.

    Args:
      *sides: the runs of each side.

    Returns:
      A list of groups per side; the runs of a group are in order of their start.
    """
    found = [_by_key(side) for side in sides]
    resolved = {
        one.configuration.key: one.configuration
        for side in found
        for one in side
        if one.configuration.resolved
    }
    return [_joined(side, tuple(resolved.values())) for side in found]


def match(
    base: Sequence[Group[M]], new: Sequence[Group[M]], patterns: tuple[str, ...] = ()
) -> list[tuple[Group[M] | None, Group[M] | None]]:
    """Pairs of groups of a kind, None where the other side lacks the configuration.

    First those of equal flags; then those that differ only in what may differ, if there is
    one such on each side; then the nearest variants, so that one can say what differs.

    Args:
      base, new: configurations of each side.
      patterns: of the facts that may differ.
    """
    pairs: list[tuple[Group[M] | None, Group[M] | None]] = []
    for kind in KINDS:
        left, right = ([o for o in side if o.configuration.kind == kind] for side in (base, new))
        pairs += _matched(left, right, patterns)
    return pairs


def _matched(
    left: Sequence[Group[M]], right: Sequence[Group[M]], patterns: tuple[str, ...]
) -> list[tuple[Group[M] | None, Group[M] | None]]:
    pairs = _equal(left, right)
    pairs += _but_for(*_rest(left, right, pairs), patterns)
    pairs += _nearest(*_rest(left, right, pairs))
    alone, other = _rest(left, right, pairs)
    return [*pairs, *((one, None) for one in alone), *((None, one) for one in other)]


def _rest(
    left: Sequence[Group[M]], right: Sequence[Group[M]], pairs: _Pairs[M]
) -> tuple[list[Group[M]], list[Group[M]]]:
    """What is in no pair."""
    taken = {one for pair in pairs for one in pair}
    return [one for one in left if one not in taken], [one for one in right if one not in taken]


def _by_key(records: Iterable[M]) -> list[Group[M]]:
    found: dict[str, tuple[Configuration, list[M]]] = {}
    for record in sorted(records, key=lambda one: started(one.started_at)):
        configuration = Configuration.of(record)
        found.setdefault(configuration.key, (configuration, []))[1].append(record)
    return [Group(configuration, tuple(members)) for configuration, members in found.values()]


def _joined(side: Sequence[Group[M]], resolved: Sequence[Configuration]) -> list[Group[M]]:
    """The side with its early failures in the groups they belong to."""
    members: dict[str, tuple[Configuration, list[M]]] = {}
    for group in sorted(side, key=lambda one: not one.configuration.resolved):
        configuration = group.configuration
        if not configuration.resolved:
            agreeing = [
                one
                for one in resolved
                if one.kind == configuration.kind and not one.differing(configuration)
            ]
            if len(agreeing) == 1:
                (configuration,) = agreeing
        members.setdefault(configuration.key, (configuration, []))[1].extend(group.records)
    return [Group(configuration, tuple(records)) for configuration, records in members.values()]


def _equal(left: Sequence[Group[M]], right: Sequence[Group[M]]) -> _Pairs[M]:
    twins = {one.configuration.key: one for one in right}
    return [(one, twins[one.configuration.key]) for one in left if one.configuration.key in twins]


def _but_for(
    left: Sequence[Group[M]], right: Sequence[Group[M]], patterns: tuple[str, ...]
) -> _Pairs[M]:
    """Pairs of those that agree in all flags but the ones that may differ."""
    if not patterns:
        return []
    sides = [_by_remainder(side, patterns) for side in (left, right)]
    return [
        (ones[0], others[0])
        for remainder, ones in sides[0].items()
        if len(ones) == 1 and len(others := sides[1].get(remainder, [])) == 1
    ]


def _by_remainder(side: Sequence[Group[M]], patterns: tuple[str, ...]) -> dict[str, list[Group[M]]]:
    found: dict[str, list[Group[M]]] = {}
    for group in side:
        flags = group.configuration.flags
        kept = [(name, flags[name]) for name in sorted(flags) if not allowed(name, patterns)]
        found.setdefault(json.dumps(kept), []).append(group)
    return found


def _nearest(left: Sequence[Group[M]], right: Sequence[Group[M]]) -> _Pairs[M]:
    """Pairs of variants, those with the fewest different flags first."""
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]  # there is nothing else that could be meant
    variants: dict[str, list[int]] = {}
    for j, other in enumerate(right):
        variants.setdefault(_variant(other), []).append(j)
    distances = sorted(
        (len(one.configuration.differing(right[j].configuration)), i, j)
        for i, one in enumerate(left)
        for j in variants.get(_variant(one), ())
    )
    pairs: _Pairs[M] = []
    taken: tuple[set[int], set[int]] = (set(), set())
    for distance, i, j in distances:
        if distance <= _MAX_DIFFERING and i not in taken[0] and j not in taken[1]:
            pairs.append((left[i], right[j]))
            taken[0].add(i)
            taken[1].add(j)
    return pairs


def _variant(group: Group[M]) -> str:
    """What variants of each other have in common."""
    configuration = group.configuration
    names = KINDS[configuration.kind].variants
    return json.dumps([configuration.flags.get(name) for name in names])
