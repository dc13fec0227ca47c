"""Stores the answer of a command in the journal of its campaign, so that a report of the folder
begins with the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cnnbench.base.document import Answer, Row, Section, TableCell, make_table
from cnnbench.campaigns.processes.journal import JOURNAL, Journal
from cnnbench.campaigns.processes.results_dir import CampaignKind, ResultsFolder

_ANSWER = "answer"
"""Name of the journal's note with an answer."""


def store_answer(
    folder: ResultsFolder,
    answer: Answer,
    about: str,
    rows: Iterable[Row],
    remarks: Sequence[str] = (),
) -> None:
    """Stores the answer of a campaign in its journal, for `stored_answers`.

    Args:
      about: a sentence about the table.
      rows: the table that the command prints.
      remarks: sentences that follow the table.
    """
    cells = [
        {title: cell.text if isinstance(cell, TableCell) else cell for title, cell in row.items()}
        for row in rows
    ]
    folder.add_journal_note(
        _ANSWER,
        title=answer.name,
        text=answer.text,
        tone=answer.tone,
        details=answer.details,
        about=about,
        rows=cells,
        remarks=remarks,
    )


def stored_answers(kind: CampaignKind, folder: Path) -> list[tuple[Answer, Section]]:
    """Reads the answers of the campaigns of one kind in a folder, the last of each title. Each has
    a section with the table that the command printed.
    """
    events = [*Journal(folder / JOURNAL).read()]
    if not kind.is_campaign(events):
        return []
    last = {str(event["title"]): event for event in events if event.get("note") == _ANSWER}
    return [
        (
            Answer(title, note["text"], note["tone"], tuple(note["details"])),
            Section.from_contents(
                f"{kind.command}{place}",
                title,
                (note["about"], make_table(note["rows"]), *note["remarks"]),
            ),
        )
        for place, (title, note) in enumerate(last.items(), start=1)
    ]
