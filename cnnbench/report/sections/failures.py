"""What went wrong: runs that failed or were stopped, files that could not be read."""

from __future__ import annotations

from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.load import Skipped
from cnnbench.records.run import ErrorInfo, RunRecord
from cnnbench.report.document import Block, Cell, Column, Section, Table, Text, words
from cnnbench.report.material import Material, time_text

_RUNS = (
    Column("configuration"),
    Column("status"),
    Column("error", prose=True),
    Column("timed steps"),
    Column("started (UTC)", steady=True),
    Column("run", code=True),
)
_FILES = (Column("file", code=True), Column("reason", prose=True), Column("kind"))


def section(material: Material) -> Section | None:
    """Failed and interrupted runs with their errors, and skipped files with the reason."""
    rows = [_run(one.name, run) for one in material.configured for run in one.records if _bad(run)]
    rows += [_measurement(one) for one in material.allreduces if _bad(one)]
    blocks: list[Block] = []
    if rows:
        told = "These runs enter no figure of this report; of all-reduces the sound points do."
        blocks.append(Text(text=told))
        blocks.append(Table(columns=_RUNS, rows=tuple(rows)))
    if material.skipped:
        files = tuple(_file(one) for one in material.skipped)
        blocks.append(Table(columns=_FILES, rows=files, title="Files that were skipped"))
    if not blocks:
        return None
    return Section(key="problems", title="Failed and skipped", blocks=tuple(blocks))


def _bad(record: RunRecord | AllReduceRecord) -> bool:
    return record.status != "ok"


def _run(name: str, run: RunRecord) -> tuple[Cell, ...]:
    return (
        words(name),
        words(run.status, tone="bad"),
        words(_error(run.error)),
        words(f"{len(run.step_seconds)} of {run.config.get('num_batches') or '?'}"),
        words(time_text(run.started_at)),
        words(run.run_id),
    )


def _measurement(one: AllReduceRecord) -> tuple[Cell, ...]:
    return (
        words("all-reduce"),
        words(one.status, tone="bad"),
        words(_error(one.error)),
        words(""),
        words(time_text(one.started_at)),
        words(one.run_id),
    )


def _error(error: ErrorInfo | None) -> str:
    return "stopped before its end" if error is None else f"{error.type}: {error.message}"


def _file(one: Skipped) -> tuple[Cell, ...]:
    kind = words("a fault", tone="bad") if one.defect else words("no fault")
    return (words(one.path), words(one.reason), kind)
