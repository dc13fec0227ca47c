"""What a report is made of: run records and all-reduce measurements, from any paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cnnbench.allreduce.record import KIND as ALLREDUCE
from cnnbench.allreduce.record import AllReduceRecord
from cnnbench.comparison.loading import Skipped, load_records
from cnnbench.record import RunRecord


@dataclass(frozen=True, kw_only=True)
class Sources:
    """All that was found.

    Attributes:
      runs: run records, each once.
      allreduces: measurements of reductions, each once.
      skipped: files that gave neither.
    """

    runs: tuple[RunRecord, ...]
    allreduces: tuple[AllReduceRecord, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def defects(self) -> tuple[Skipped, ...]:
        """The skipped files that are at fault."""
        return tuple(one for one in self.skipped if one.defect)


def load(paths: Iterable[str | os.PathLike[str]]) -> Sources:
    """Reads files, folders with all below them, and patterns, as `load_records` does.

    Raises:
      UsageError: a path does not exist, or a pattern matches nothing.
    """
    loaded = load_records(paths)
    reduced: dict[str, AllReduceRecord] = {}
    skipped: list[Skipped] = []
    for one in loaded.skipped:
        # Sound documents of another kind; those of all-reduces are wanted here.
        found = None if one.defect or f"{ALLREDUCE!r}" not in one.reason else _read(one.path)
        if isinstance(found, AllReduceRecord):
            if found.run_id in reduced:
                again = f"a second copy of measurement {found.run_id}"
                skipped.append(Skipped(one.path, again, defect=False))
            reduced.setdefault(found.run_id, found)
        else:
            skipped.append(one if found is None else found)
    allreduces = sorted(reduced.values(), key=lambda record: record.started_at)
    return Sources(runs=loaded.records, allreduces=tuple(allreduces), skipped=tuple(skipped))


def _read(path: str) -> AllReduceRecord | Skipped:
    try:
        return AllReduceRecord.from_json(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return Skipped(path, f"not an all-reduce measurement: {error}")
