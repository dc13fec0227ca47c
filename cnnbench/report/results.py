"""The content of the records that a report is about, sorted and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.compare import Comparison, Policy, compare_records
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.codec import started
from cnnbench.records.load import Loaded, Skipped
from cnnbench.records.run import RunRecord
from cnnbench.report.configurations import Configured, configurations


@dataclass(frozen=True, kw_only=True)
class Results:
    """The subject of a report.

    Attributes:
      configured: the configurations with their runs.
      allreduces: all-reduce measurements, by their start.
      skipped: files that gave no record.
      comparison: with the baseline; None if there is none.
    """

    configured: tuple[Configured, ...]
    allreduces: tuple[AllReduceRecord, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    comparison: Comparison | None = None

    @property
    def runs(self) -> list[RunRecord]:
        """All runs, by their start."""
        found = [record for one in self.configured for record in one.records]
        return sorted(found, key=lambda record: started(record.started_at))

    @property
    def processes(self) -> list[tuple[str, RunRecord | AllReduceRecord]]:
        """Records with the names of their configurations: runs, then all-reduces."""
        names = {record.run_id: one.name for one in self.configured for record in one.records}
        return [
            *((names[run.run_id], run) for run in self.runs),
            *(("all-reduce", one) for one in self.allreduces),
        ]


def gather(
    loaded: Loaded,
    baseline: Loaded | None = None,
    *,
    policy: Policy | None = None,
    allow_different: Sequence[str] = (),
    labels: tuple[str, str] = ("BASE", "NEW"),
) -> Results:
    """Sorts records by configuration, and compares them with a baseline.

    Args:
      loaded: the subject of the report.
      baseline: runs and reductions to compare with.
      policy: of the comparison.
      allow_different: facts that may differ.
      labels: names of the baseline and of the records.
    """
    comparison = None
    if baseline is not None:
        # A baseline of runs has nothing to compare reductions with.
        reduced = loaded.allreduces if baseline.allreduces else ()
        comparison = compare_records(
            baseline.everything,
            (*loaded.records, *reduced),
            policy or Policy(),
            allow_different=allow_different,
            base_label=labels[0],
            new_label=labels[1],
            skipped=baseline.skipped,
        )
    return Results(
        configured=configurations(loaded.records),
        allreduces=tuple(sorted(loaded.allreduces, key=lambda one: started(one.started_at))),
        skipped=loaded.skipped,
        comparison=comparison,
    )


def time_text(started_at: str) -> str:
    """A start for people: UTC without its offset."""
    return started(started_at).strftime("%Y-%m-%d %H:%M:%S")
