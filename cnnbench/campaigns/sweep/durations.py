"""Estimated duration of a sweep, from earlier sweeps or FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cnnbench.base.text.numbers import count, duration
from cnnbench.campaigns.processes.campaign import Durations
from cnnbench.campaigns.sweep.planning import Item
from cnnbench.campaigns.sweep.schema import AUTO

_REDUCING_SECONDS = 20.0
"""Of a process of all-reduces; a few sizes and algorithms on two CPU cores."""


def outlook(todo: Sequence[Item], past: Durations, facts: Mapping[str, Any]) -> str:
    """Number of processes, and estimated minutes.

    Args:
      past: durations of earlier sweeps in the same directory.
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
        return f"{text}; their duration is known after the first"
    basis = "as before" if all(past.of(item.duration_key) for item in runs) else "a first guess"
    searches = len(todo) - len(runs)
    besides = f", and {count(searches, 'search', 'searches')} for batch sizes" if searches else ""
    return f"{text}: about {duration(sum(known))}, {basis}{besides}"


def _seconds(item: Item, past: Durations, facts: Mapping[str, Any]) -> float | None:
    known = past.of(item.duration_key)
    if known is not None:
        return known
    work = item.case.resolved.work
    return _REDUCING_SECONDS if work is None else work.seconds(facts)
