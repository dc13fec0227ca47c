"""Answers of campaigns in their journals, which reports read."""

from __future__ import annotations

import math
from pathlib import Path

from cnnbench.base.document import Answer, Table, TableCell, numeric_cell
from cnnbench.campaigns.processes.answers import store_answer, stored_answers
from cnnbench.campaigns.processes.results_dir import CampaignKind, ResultsFolder

KIND = CampaignKind(command="own", noun="search", shared=True)


def test_the_last_answer_of_each_title_is_read(tmp_path: Path) -> None:
    assert stored_answers(KIND, tmp_path) == []
    first, again, other = (
        Answer("one", "no", "unsure"),
        Answer("one", "yes", "good", ("because", "of this")),
        Answer("other", "perhaps"),
    )
    with ResultsFolder(KIND, tmp_path / "r") as folder:
        folder.add_session_start()
        for answer, speed in ((first, 1.0), (other, 2.0), (again, 3.0)):
            cells = {"speed": numeric_cell(speed), "loss": numeric_cell(math.nan)}
            rows = [{"name": answer.name, **cells}]
            store_answer(folder, answer, f"about {answer.text}", rows)
        folder.add_journal_note("length", seconds=3)
    found = stored_answers(KIND, tmp_path / "r")
    assert [answer for answer, _ in found] == [again, other]
    assert [(section.key, section.title) for _, section in found] == [
        ("own1", "one"),
        ("own2", "other"),
    ]
    about, table = found[0][1].blocks
    assert about.text == "about yes"
    assert isinstance(table, Table)
    unknown = TableCell("nan", kinds="number")
    assert table.rows == ((TableCell("one"), numeric_cell(3.0), unknown),)


def test_another_kind_of_campaign_has_no_answer(tmp_path: Path) -> None:
    with ResultsFolder(KIND, tmp_path / "r") as folder:
        folder.add_session_start()
        store_answer(folder, Answer("one", "yes"))
    ((_, section),) = stored_answers(KIND, tmp_path / "r")
    assert section.blocks == ()
    assert stored_answers(CampaignKind(command="other"), tmp_path / "r") == []
