"""The evidence: its charts show its tables, and its pages have the parts that each claim needs."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import evidence_charts
import pytest
from evidence_charts import CHARTS, FOLDER

from cnnbench.errors import UsageError

PAGES = sorted(Path(FOLDER).parent.glob("evidence_*.md"))
TEXTS = re.compile(r">([^<>]+)</(?:text|title)>")
"""The texts of an SVG file, also those that are shown on hover, such as values."""


def sections():
    """The name of each section of the pages, with its text."""
    for page in PAGES:
        for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            yield f"{page.name}: {section.partition(chr(10))[0]}", section


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_that_of_its_table(name):
    stored = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert TEXTS.findall(stored) == TEXTS.findall(evidence_charts.draw(name).decode("utf-8")), (
        "run: scripts/evidence_charts"
    )


def test_a_changed_table_changes_its_chart(tmp_path, monkeypatch):
    table = (FOLDER / "speed.csv").read_text(encoding="utf-8")
    assert "1.033,1.014,1.053" in table
    (tmp_path / "speed.csv").write_text(table.replace("1.033,1.014,1.053", "1.044,1.014,1.053"))
    stored = (FOLDER / "speed.svg").read_text(encoding="utf-8")
    monkeypatch.setattr(evidence_charts, "FOLDER", tmp_path)
    drawn = TEXTS.findall(evidence_charts.draw("speed").decode("utf-8"))
    changed = {*drawn} - {*TEXTS.findall(stored)}
    assert changed == {"1.044", "resnet50, batch 8, Zen 4: 1.044 (1.014 to 1.053)"}


def test_every_row_of_a_table_has_every_column():
    for path in FOLDER.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        assert len(set(head)) == len(head), path.name
        assert rows, path.name
        assert {len(row) for row in rows} == {len(head)}, path.name


def test_every_table_and_chart_is_on_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    text += (FOLDER.parent / "methodology.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(evidence/([^)]+)\)", text))
    assert linked == {path.name for path in FOLDER.iterdir()}
    assert {path.stem for path in FOLDER.glob("*.svg")} == {*CHARTS}


def test_a_section_names_its_day_and_its_tables_are_short():
    found = [*sections()]
    assert len(found) > 20
    for name, section in found:
        assert re.search(r"(?i:measured|simulated)\b.{0,150}?2026-1\d-\d\d", section, re.S), name
        for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
            assert len(table.splitlines()) <= 2 + 6, name


def test_arguments_are_refused():
    with pytest.raises(UsageError, match="takes no arguments, not '--x'"):
        evidence_charts.main(["--x"])
