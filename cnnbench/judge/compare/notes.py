"""Notes of a comparison: measurements left out, repeated, interrupted or diverged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from cnnbench.base.text.numbers import count
from cnnbench.judge.compare.disturbance import measured_again
from cnnbench.judge.compare.draft import Draft
from cnnbench.judge.compare.result import ComparedConfiguration
from cnnbench.judge.metrics.measurement import KINDS
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.run import RunRecord


def of(
    processes: Sequence[Sequence[RunRecord | AllReduceRecord]],
    drafts: Sequence[Draft],
    entries: Sequence[ComparedConfiguration],
    aa_notes: Sequence[str],
) -> list[str]:
    """All notes of a comparison.

    Args:
      drafts, entries: one of each per configuration.
      aa_notes: notes about the A/A measurement.
    """
    return [
        *_unsuccessful(entries),
        *_repeated(entries),
        *_interrupted(processes),
        *aa_notes,
        *_unpaired(drafts, entries),
        *_losses(entries),
    ]


def _unsuccessful(entries: Sequence[ComparedConfiguration]) -> list[str]:
    """Numbers of measurements of each side that are left out because they did not succeed."""
    notes = []
    for side in ("BASE", "NEW"):
        for kind, plural in KINDS.items():
            found = [
                one
                for entry in entries
                if entry.configuration.kind == kind
                for one in (entry.base if side == "BASE" else entry.new)
            ]
            statuses = Counter(one.status for one in found if one.status != "ok")
            if statuses:
                what = ", ".join(f"{number} {status}" for status, number in statuses.items())
                number = f"{statuses.total()} of {len(found)} {plural} in {side}"
                notes.append(f"left out of medians and values: {number} ({what})")
    return notes


def _interrupted(sides: Sequence[Sequence[RunRecord | AllReduceRecord]]) -> list[str]:
    """All-reduce processes that were interrupted, which complete rows do not show."""
    notes = []
    for name, records in zip(("BASE", "NEW"), sides, strict=True):
        reduced = [record for record in records if not isinstance(record, RunRecord)]
        stopped = sum(record.status == "interrupted" for record in reduced)
        if stopped:
            of = count(len(reduced), "all-reduce measurement", "all-reduce measurements")
            verb = "was" if stopped == 1 else "were"
            notes.append(
                f"{stopped} of {of} in {name} {verb} interrupted: rows not reached are missing"
            )
    return notes


def _unpaired(drafts: Sequence[Draft], entries: Sequence[ComparedConfiguration]) -> list[str]:
    """Numbers of runs left out because they have no partner, by configuration."""
    return [
        f"{entry.name}: {count(draft.unpaired, 'run', 'runs')} left out, without a partner"
        for draft, entry in zip(drafts, entries, strict=True)
        if draft.unpaired
    ]


def _repeated(entries: Sequence[ComparedConfiguration]) -> list[str]:
    """Runs that were measured again because something disturbed them."""
    _, text = measured_again(run for entry in entries for run in (*entry.base, *entry.new))
    return [text] if text else []


def _losses(entries: Sequence[ComparedConfiguration]) -> list[str]:
    """Numbers of runs with losses that are not finite, by configuration and side."""
    notes = []
    for entry in entries:
        for side, records in (("BASE", entry.base), ("NEW", entry.new)):
            diverged = sum(
                isinstance(record, RunRecord) and not all(map(math.isfinite, record.losses))
                for record in records
            )
            if diverged:
                runs = count(len(records), "run", "runs")
                notes.append(
                    f"{entry.name}: losses of {diverged} of {runs} in {side} are not finite"
                )
    return notes
