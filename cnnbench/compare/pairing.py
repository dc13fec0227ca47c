"""Which run of NEW is the partner of which of BASE, where runs are compared in pairs."""

from __future__ import annotations

from collections.abc import Mapping

from cnnbench.compare.comparability import Group, M
from cnnbench.compare.kinds import KINDS


def in_pairs(base: Group[M], new: Group[M]) -> tuple[Group[M], Group[M]]:
    """Both sides with the i-th measurement of one the partner of the i-th of the other.

    Where all of them say which pair of one and the same experiment they are of, those
    without their partner are left out. Else nobody knows better than their starts, in the
    order of which they are.
    """
    left, right = _by_pair(base), _by_pair(new)
    if left is None or right is None or _experiments(left).isdisjoint(_experiments(right)):
        return base, new
    shared = [pair for pair in left if pair in right]
    return (
        Group(base.configuration, tuple(left[pair] for pair in shared)),
        Group(new.configuration, tuple(right[pair] for pair in shared)),
    )


def _by_pair(group: Group[M]) -> dict[tuple[int, int], M] | None:
    """The measurements by experiment and number of their pair, if each has one of its own."""
    of = KINDS[group.configuration.kind].pair
    found = {of(one): one for one in group.records}
    named = {pair: one for pair, one in found.items() if pair is not None}
    return named if len(named) == len(group.records) else None


def _experiments(pairs: Mapping[tuple[int, int], M]) -> set[int]:
    return {experiment for experiment, _ in pairs}
