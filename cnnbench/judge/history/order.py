"""Order of revisions: by git, else by time; a base precedes its head.

The sides of `cnnbench ab` run in random order, so either may have been measured first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cnnbench.judge.history.entries import HistoryEntry


class Revision(NamedTuple):
    """A state of the measured code; "" and None where unknown.

    `dirty`: whether files differed from the commit; `day`: of the measurement if there is none.
    """

    repository: str
    commit: str
    dirty: bool | None
    day: str = ""

    @classmethod
    def of(cls, entry: HistoryEntry) -> Revision:
        """The revision of a measurement."""
        origin = entry.origin
        day = "" if entry.commit else f"{entry.started:%Y-%m-%d}"
        return cls(origin.repository, entry.commit, origin.dirty, day)


class Revisions:
    """The revisions of measurements that are in order of their start.

    `order` has places of commits, such as in the history of a repository; other commits follow the
    one before them in time. None for the order of time.
    """

    def __init__(
        self, entries: Sequence[HistoryEntry], order: Mapping[str, int] | None = None
    ) -> None:
        self._heads: dict[Revision, Revision] = {}
        self._both_sides: set[Revision] = set()
        bases: dict[Revision, list[Revision]] = {}
        for base, head in _compared(entries):
            if base == head:
                self._both_sides.add(base)
            else:
                self._heads[base] = head
                bases.setdefault(head, []).append(base)
        placed = _bases_first(dict.fromkeys(map(Revision.of, entries)), bases)
        if order is not None:
            placed = _ordered(placed, order)
        self._places = {revision: place for place, revision in enumerate(placed)}

    def place(self, entry: HistoryEntry) -> tuple[int, str]:
        """Sort key of a measurement: the place of its revision, then side A before side B."""
        return self._places[Revision.of(entry)], entry.origin.side

    def newest(self, entries: Iterable[HistoryEntry]) -> Revision | None:
        """The last revision of some measurements; of an experiment its head."""
        last = max(map(Revision.of, entries), key=self._places.__getitem__, default=None)
        passed: set[Revision] = set()
        while last is not None and last in self._heads and last not in passed:
            passed.add(last)
            last = self._heads[last]
        return last

    def is_of(self, newest: Revision | None, entry: HistoryEntry) -> bool:
        """Whether a measurement is of the newest revision, and not of its base."""
        revision = Revision.of(entry)
        if newest is None or revision[:-1] != newest[:-1]:  # equal whatever the day
            return False
        return entry.origin.side != "a" or revision not in self._both_sides


def _compared(entries: Iterable[HistoryEntry]) -> Iterator[tuple[Revision, Revision]]:
    """Base and head of each pair of `cnnbench ab`, by the start of its first process."""
    sides: dict[tuple[int, int], tuple[list[HistoryEntry], list[HistoryEntry]]] = {}
    for entry in entries:
        if entry.pair is not None and entry.origin.side in ("a", "b"):
            both = sides.setdefault(entry.pair, ([], []))
            both[entry.origin.side == "b"].append(entry)
    # Experiments with the same seed have the same pairs, one after the other in time.
    pairs = [pair for both in sides.values() for pair in zip(*both, strict=False)]
    for base, head in sorted(pairs, key=lambda pair: min(one.started for one in pair)):
        yield Revision.of(base), Revision.of(head)


def _bases_first(
    revisions: Iterable[Revision], bases: Mapping[Revision, Sequence[Revision]]
) -> list[Revision]:
    """The revisions in their order, but each after all its bases, except in cycles."""
    placed: dict[Revision, None] = {}
    seen: set[Revision] = set()
    for revision in revisions:
        waiting = [revision]
        while waiting:
            seen.add(waiting[-1])
            first = [one for one in bases.get(waiting[-1], ()) if one not in seen]
            if first:
                waiting += dict.fromkeys(first)
            else:
                placed[waiting.pop()] = None
    return list(placed)


def _ordered(revisions: Collection[Revision], order: Mapping[str, int]) -> list[Revision]:
    """Revisions in the given order; those without a place follow the one before them."""
    placed: list[tuple[int, Revision]] = []
    last = -1
    for revision in revisions:
        last = order.get(revision.commit, last)
        placed.append((last, revision))
    return [revision for _, revision in sorted(placed, key=lambda pair: pair[0])]
