"""What went wrong: runs that failed or were stopped, files that could not be read."""

from __future__ import annotations

from cnnbench.report.document import Block, Cell, Column, Section, Table, Text, words
from cnnbench.report.material import Material, time_text


def section(material: Material) -> Section | None:
    """Failed and interrupted runs with their errors, and skipped files with the reason."""
    rows: list[tuple[Cell, ...]] = []
    for one in material.configured:
        for run in one.records:
            if run.status == "ok":
                continue
            error = "" if run.error is None else f"{run.error.type}: {run.error.message}"
            rows.append(
                (
                    words(one.name),
                    words(run.status, tone="bad"),
                    words(error or "stopped before its end"),
                    words(f"{len(run.step_seconds)} of {run.config.get('num_batches') or '?'}"),
                    words(time_text(run.started_at)),
                    words(run.run_id),
                )
            )
    for measurement in material.allreduces:
        if measurement.status != "ok":
            found = measurement.error
            rows.append(
                (
                    words("all-reduce"),
                    words(measurement.status, tone="bad"),
                    words(f"{found.type}: {found.message}" if found else "stopped before its end"),
                    words(""),
                    words(time_text(measurement.started_at)),
                    words(measurement.run_id),
                )
            )
    blocks: list[Block] = []
    if rows:
        columns = (
            Column("configuration"),
            Column("status"),
            Column("error", prose=True),
            Column("timed steps"),
            Column("started (UTC)", steady=True),
            Column("run", code=True),
        )
        blocks.append(Text(text="These runs do not enter any figure of this report."))
        blocks.append(Table(columns=columns, rows=tuple(rows)))
    if material.skipped:
        files = tuple(
            (
                words(one.path),
                words(one.reason),
                words("a fault" if one.defect else "no fault", tone="bad" if one.defect else ""),
            )
            for one in material.skipped
        )
        named = (Column("file", code=True), Column("reason", prose=True), Column("kind"))
        blocks.append(Table(columns=named, rows=files, title="Files that were skipped"))
    if not blocks:
        return None
    return Section(key="problems", title="Failed and skipped", blocks=tuple(blocks))
