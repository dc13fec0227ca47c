"""Which configuration of NEW belongs to which of BASE."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from cnnbench.comparison.comparability import Group
from cnnbench.comparison.configuration import Configuration
from cnnbench.comparison.facts import allowed
from cnnbench.record import RunRecord

_Pairs: TypeAlias = list[tuple[Group, Group]]

_MAX_DIFFERING = 5
"""Configurations that differ by more flags have nothing to do with each other."""

_KIND = ("model", "data_name", "eval", "forward_only")
"""Flags that configurations must share to be taken for variants of each other."""


def groups(*sides: Iterable[RunRecord]) -> list[list[Group]]:
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
    base: Sequence[Group], new: Sequence[Group], patterns: tuple[str, ...] = ()
) -> list[tuple[Group | None, Group | None]]:
    """Pairs of groups, None where the other side lacks the configuration.

    First those of equal flags; then those that differ only in what may differ, if there is
    one such on each side; then the nearest variants, so that one can say what differs.

    Args:
      base, new: configurations of each side.
      patterns: of the facts that may differ.
    """
    left, right = list(base), list(new)
    pairs: list[tuple[Group | None, Group | None]] = []
    for candidates in (_equal, _but_for(patterns), _nearest):
        for one, other in candidates(left, right):
            pairs.append((one, other))
            left.remove(one)
            right.remove(other)
    return [*pairs, *((one, None) for one in left), *((None, other) for other in right)]


def _by_key(records: Iterable[RunRecord]) -> list[Group]:
    found: dict[str, tuple[Configuration, list[RunRecord]]] = {}
    for record in sorted(records, key=lambda one: one.started_at):
        configuration = Configuration.of(record)
        found.setdefault(configuration.key, (configuration, []))[1].append(record)
    return [Group(configuration, tuple(members)) for configuration, members in found.values()]


def _joined(side: Sequence[Group], resolved: Sequence[Configuration]) -> list[Group]:
    """The side with its early failures in the groups they belong to."""
    members: dict[str, tuple[Configuration, list[RunRecord]]] = {}
    for group in sorted(side, key=lambda one: not one.configuration.resolved):
        configuration = group.configuration
        if not configuration.resolved:
            agreeing = [one for one in resolved if not one.differing(configuration)]
            if len(agreeing) == 1:
                (configuration,) = agreeing
        members.setdefault(configuration.key, (configuration, []))[1].extend(group.records)
    return [Group(configuration, tuple(records)) for configuration, records in members.values()]


def _equal(left: Sequence[Group], right: Sequence[Group]) -> _Pairs:
    twins = {one.configuration.key: one for one in right}
    return [(one, twins[one.configuration.key]) for one in left if one.configuration.key in twins]


def _but_for(patterns: tuple[str, ...]) -> Callable[[Sequence[Group], Sequence[Group]], _Pairs]:
    """Pairs of those that agree in all flags but the ones that may differ."""

    def candidates(left: Sequence[Group], right: Sequence[Group]) -> _Pairs:
        if not patterns:
            return []
        sides = [_by_remainder(side, patterns) for side in (left, right)]
        return [
            (ones[0], others[0])
            for remainder, ones in sides[0].items()
            if len(ones) == 1 and len(others := sides[1].get(remainder, [])) == 1
        ]

    return candidates


def _by_remainder(side: Sequence[Group], patterns: tuple[str, ...]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in side:
        flags = group.configuration.flags
        kept = [(name, flags[name]) for name in sorted(flags) if not allowed(name, patterns)]
        found.setdefault(json.dumps(kept), []).append(group)
    return found


def _nearest(left: Sequence[Group], right: Sequence[Group]) -> _Pairs:
    """Pairs of variants, those with the fewest different flags first."""
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]  # there is nothing else that could be meant
    distances = sorted(
        (len(one.configuration.differing(other.configuration)), i, j)
        for i, one in enumerate(left)
        for j, other in enumerate(right)
        if _kind(one) == _kind(other)
    )
    pairs: _Pairs = []
    taken: tuple[set[int], set[int]] = (set(), set())
    for distance, i, j in distances:
        if distance <= _MAX_DIFFERING and i not in taken[0] and j not in taken[1]:
            pairs.append((left[i], right[j]))
            taken[0].add(i)
            taken[1].add(j)
    return pairs


def _kind(group: Group) -> tuple[Any, ...]:
    return tuple(group.configuration.flags.get(name) for name in _KIND)
