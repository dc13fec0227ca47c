"""Measurements of a results directory, with the attributes that a history needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cnnbench.base.text.labels import labels_of
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.compare.matching import pair_of
from cnnbench.judge.compare.reductions import measurements
from cnnbench.judge.metrics.comparable_facts import Role, fact
from cnnbench.judge.metrics.measurement import Measurement, Origin, fact_text
from cnnbench.judge.metrics.registry import HISTORY
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.codec import started
from cnnbench.records.load import SkippedFile, load_records
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One measurement of one process: a run, or a row of an all-reduce measurement.

    Attributes:
      started: start of the process, in UTC.
      status: of the measurement: "ok", "failed" or "interrupted".
      error: type and message; "" if it did not fail.
      facts: of the environment, those that may affect a measurement or name a version.
      values: by metric; only finite ones.
      pair: seed of the experiment of `cnnbench ab` and number of the pair; None elsewhere.
    """

    run_id: str
    started: datetime
    status: str
    error: str
    configuration: Configuration
    labels: Mapping[str, str]
    facts: Mapping[str, str]
    values: Mapping[str, float]
    origin: Origin
    subject: Subject | None = None
    pair: tuple[int, int] | None = None

    @classmethod
    def all_of(cls, record: RunRecord | AllReduceRecord) -> list[HistoryEntry]:
        """One entry for a run, one per row of an all-reduce measurement."""
        (rows,) = measurements([record])
        labels = labels_of(record.config)
        facts = {
            name: fact_text(value)
            for name, value in record.environment.items()
            if fact(name).role is not Role.IGNORED
        }
        origin = Origin.of(record)
        pair = pair_of(record) if isinstance(record, RunRecord) else None
        return [
            cls(
                run_id=record.run_id,
                started=started(record.started_at),
                status=row.status,
                error="" if row.error is None else f"{row.error.type}: {row.error.message}",
                configuration=Configuration.of(row),
                labels=labels,
                facts=facts,
                values=_values(row),
                origin=origin,
                subject=record.subject,
                pair=pair,
            )
            for row in rows
        ]

    @property
    def kind(self) -> str:
        """Kind of the measurement, see `cnnbench.judge.metrics.measurement.KINDS`."""
        return self.configuration.kind

    @property
    def hostname(self) -> str:
        """Name of the host; "" if unknown."""
        return self.facts.get("hostname", "")

    @property
    def commit(self) -> str:
        """The label `commit`, else the measured revision, else cnnbench's own, or ""."""
        return self.origin.revision


@dataclass(frozen=True)
class Contents:
    """Runs and rows of all-reduces of a directory in order of their start, and other files."""

    entries: tuple[HistoryEntry, ...]
    skipped: tuple[SkippedFile, ...]


def contents(folder: Path) -> Contents:
    """Reads the records of a directory and all below it, without hidden files and folders.

    Entries that started in the same second are in the order of their file names.
    """
    loaded = load_records([folder], hidden=False)
    entries = [entry for record in loaded.everything for entry in HistoryEntry.all_of(record)]
    return Contents(tuple(sorted(entries, key=lambda entry: entry.started)), loaded.skipped)


def _values(row: Measurement) -> dict[str, float]:
    found = {
        name: metric.value(row) for name, metric in HISTORY.items() if row.kind in metric.kinds
    }
    return {n: value for n, value in found.items() if value is not None and math.isfinite(value)}
