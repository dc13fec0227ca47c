"""Pairs of `cnnbench ab`: one process of side A and one of side B, measured together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from cnnbench.judge.compare.comparability import MeasurementGroup
from cnnbench.judge.compare.configuration import ab_place
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.judge.metrics.origin import Origin


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
