"""How long a sweep takes: by earlier sweeps, else by a first guess; said before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cnnbench.sweep.planning import Item
from cnnbench.sweep.schema import AUTO
from cnnbench.text.numbers import count, duration

_REDUCING_SECONDS = 20.0
"""Of a process of all-reduces; a few sizes and algorithms on two CPU cores."""


class Durations:
    """Durations of past runs, to estimate the time left."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, bool], list[float]] = {}
        self._now: list[float] = []

    def add(self, key: str, search: bool, seconds: float, past: bool = False) -> None:
        """Adds one duration.

        Args:
          key: of the case.
          search: whether it was the search for a batch size.
          seconds: wall time.
          past: whether it is from an earlier sweep, maybe of other cases.
        """
        self._by_key.setdefault((key, search), []).append(seconds)
        if not past:
            self._now.append(seconds)

    def of(self, key: str) -> float | None:
        """The mean duration of the processes of a case; None without any.

        Args:
          key: of the case.
        """
        known = self._by_key.get((key, False))
        return sum(known) / len(known) if known else None

    def left(self, waiting: Iterable[tuple[str, bool]]) -> float | None:
        """Estimated seconds for these pairs of key and search; None if there is no estimate.

        A pair without a duration of its own takes the mean of this sweep's.
        """
        total = 0.0
        for key in waiting:
            known = self._by_key.get(key) or self._now
            if not known:
                return None
            total += sum(known) / len(known)
        return total


def outlook(todo: Sequence[Item], past: Durations, facts: Mapping[str, Any]) -> str:
    """How many processes, and about how many minutes.

    Args:
      todo: what is to run.
      past: durations of earlier sweeps in the same directory.
      facts: about this machine.
    """
    runs = [item for item in todo if item.repeat]
    cases = {item.case.key: item.case for item in todo}
    text = f"{count(len(runs), 'process', 'processes')} of "
    text += count(len(cases), "configuration", "configurations")
    automatic = {case.repeats for case in cases.values() if case.is_auto}
    if automatic:
        text += f", {' or '.join(map(str, sorted(automatic)))} of each (repeats: {AUTO})"
    guesses = [_seconds(item, past, facts) for item in runs]
    known = [one for one in guesses if one is not None]
    if len(known) < len(runs) or not runs:
        return f"{text}; how long they take shows after the first"
    basis = "as before" if all(past.of(item.case.key) for item in runs) else "a first guess"
    searches = len(todo) - len(runs)
    besides = f", and {count(searches, 'search', 'searches')} for batch sizes" if searches else ""
    return f"{text}: about {duration(sum(known))}, {basis}{besides}"


def _seconds(item: Item, past: Durations, facts: Mapping[str, Any]) -> float | None:
    known = past.of(item.case.key)
    if known is not None:
        return known
    work = item.case.resolved.work
    return _REDUCING_SECONDS if work is None else work.seconds(facts)
