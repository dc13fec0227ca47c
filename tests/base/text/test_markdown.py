"""Tables of documents that are made from the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnnbench.base.text.markdown import markdown_table, rewrite, with_table
from cnnbench.errors import UsageError

TABLE = "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_a_table_has_its_header_and_alignment() -> None:
    assert markdown_table(("a", "b"), ("---", "---:"), [("x", "1")]) == TABLE


def test_rewriting_replaces_what_stands_between_the_markers(tmp_path: Path) -> None:
    path = tmp_path / "doc.md"
    path.write_text("before\n<!-- t: begin -->\nold\n<!-- t: end -->\nafter\n")
    rewrite([str(path)], "t", TABLE)
    expected = f"before\n<!-- t: begin -->\n{TABLE}\n<!-- t: end -->\nafter\n"
    assert path.read_text() == expected == with_table(expected, "t", TABLE)


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(UsageError, match="models: end"):
        with_table("<!-- models: begin -->\n", "models", TABLE)
