"""What a report is made of: run records and all-reduce measurements, from any paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.load import Skipped, load_records
from cnnbench.records.run import RunRecord
from cnnbench.records.timestamps import started


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
    def everything(self) -> tuple[RunRecord | AllReduceRecord, ...]:
        """Records of both kinds, one per process."""
        return (*self.runs, *self.allreduces)

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
    return Sources(
        runs=loaded.records,
        allreduces=tuple(sorted(loaded.allreduces, key=lambda record: started(record.started_at))),
        skipped=loaded.skipped,
    )
