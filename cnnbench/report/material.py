"""What the sections of a report are written from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.compare import Comparison, Policy, Skipped, compare_records
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.run import RunRecord
from cnnbench.records.timestamps import started
from cnnbench.report.samples import Configured, configurations
from cnnbench.report.sources import Sources


@dataclass(frozen=True, kw_only=True)
class Material:
    """All that a report is about.

    Attributes:
      configured: the configurations with their runs.
      allreduces: measurements of reductions, by their start.
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


def gather(
    sources: Sources,
    baseline: Sources | None = None,
    *,
    policy: Policy | None = None,
    allow_different: Sequence[str] = (),
    labels: tuple[str, str] = ("BASE", "NEW"),
) -> Material:
    """Sorts what was found, and compares it with a baseline.

    Args:
      sources: what the report is about.
      baseline: runs and reductions to compare with.
      policy: of the comparison.
      allow_different: facts that may differ.
      labels: where baseline and records came from.
    """
    comparison = None
    if baseline is not None:
        # A baseline of runs has nothing to say about reductions.
        reduced = sources.allreduces if baseline.allreduces else ()
        comparison = compare_records(
            baseline.everything,
            (*sources.runs, *reduced),
            policy or Policy(),
            allow_different=allow_different,
            base_label=labels[0],
            new_label=labels[1],
            skipped=baseline.skipped,
        )
    return Material(
        configured=configurations(sources.runs),
        allreduces=sources.allreduces,
        skipped=sources.skipped,
        comparison=comparison,
    )


def time_text(started_at: str) -> str:
    """A start as people read it."""
    return started(started_at).strftime("%Y-%m-%d %H:%M:%S")
