"""Every run with the exact command that gives it again."""

from __future__ import annotations

import shlex

from cnnbench.metrics.registry import throughput
from cnnbench.report.document import Cell, Column, Section, Table, Text, number, words
from cnnbench.report.material import Material, time_text

_COLUMNS = (
    Column("started (UTC)", steady=True),
    Column("configuration"),
    Column("status"),
    Column("images/sec", number=True),
    Column("command", code=True, prose=True),
    Column("run", code=True),
)


def section(material: Material) -> Section | None:
    """A row per process."""
    rows: list[tuple[Cell, ...]] = []
    names = {record.run_id: one.name for one in material.configured for record in one.records}
    for run in material.runs:
        rows.append(
            (
                words(time_text(run.started_at)),
                words(names[run.run_id]),
                words(run.status, tone="" if run.status == "ok" else "bad"),
                number(throughput(run)),
                words(shlex.join(run.command)),
                words(run.run_id),
            )
        )
    for one in material.allreduces:
        rows.append(
            (
                words(time_text(one.started_at)),
                words("all-reduce"),
                words(one.status, tone="" if one.status == "ok" else "bad"),
                number(None),
                words(shlex.join(one.command)),
                words(one.run_id),
            )
        )
    if not rows:
        return None
    blocks = (
        Text(text="Every process with its exact command, in order of time."),
        Table(columns=_COLUMNS, rows=tuple(rows)),
    )
    return Section(key="runs", title="Runs and commands", blocks=blocks)
