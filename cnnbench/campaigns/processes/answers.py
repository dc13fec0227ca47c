"""Stores the answer of a command in the journal of its campaign, so that a report of the folder
begins with the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cnnbench.base.document import Answer, Row, Section, TableCell, make_table
from cnnbench.campaigns.processes.journal import JOURNAL, Journal
from cnnbench.campaigns.processes.results_dir import CampaignKind, ResultsFolder

_ANSWER = "answer"
"""Name of the journal's note with an answer."""


def store_answer(
    folder: ResultsFolder,
    answer: Answer,
    about: str = "",
    rows: Iterable[Row] = (),
) -> None:
    """Stores the answer of a campaign in its journal, for `stored_answers`.

    Args:
      about: a sentence about the table.
      rows: a table for the report, if it has no other that contains this.
    """
    cells = [{title: _stored_cell(cell) for title, cell in row.items()} for row in rows]
    folder.add_journal_note(
        _ANSWER,
        title=answer.name,
        text=answer.text,
        tone=answer.tone,
        details=answer.details,
        about=about,
        rows=cells,
    )


def _stored_cell(cell: TableCell | str) -> Any:
    """A cell as it is stored: its text, or its text, sort key and kinds."""
    if isinstance(cell, str):
        return cell
    known = cell.value is not None and math.isfinite(cell.value)
    return [cell.text, cell.value if known else None, cell.kinds]


def _read_row(row: Mapping[str, Any]) -> Row:
    cells = ((title, cell) for title, cell in row.items() if not isinstance(cell, str))
    typed = {title: TableCell(text, value, kinds=kinds) for title, (text, value, kinds) in cells}
    return {**row, **typed}


def stored_answers(kind: CampaignKind, folder: Path) -> list[tuple[Answer, Section]]:
    """Reads the answers of the campaigns of one kind in a folder, the last of each title. Each has
    a section with its table, which is empty without one.
    """
    events = [*Journal(folder / JOURNAL).read()]
    if not kind.is_campaign(events):
        return []
    last = {str(event["title"]): event for event in events if event.get("note") == _ANSWER}
    return [
        (
            Answer(title, note["text"], note["tone"], tuple(note["details"])),
            Section.of(
                (note["about"], make_table(map(_read_row, note["rows"]))),
                f"{kind.command}{place}",
                title,
            ),
        )
        for place, (title, note) in enumerate(last.items(), start=1)
    ]
