"""Documents name files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PATH = re.compile(r"`((?:cnnbench|models|variable_mgr|configs|scripts|tests|docs)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_are_there(document):
    text = document.read_text(encoding="utf-8")
    named = [ROOT / path for path in PATH.findall(text) if "NAME" not in path]
    linked = [document.parent / path for path in LINK.findall(text)]
    missing = [str(path.relative_to(ROOT)) for path in [*named, *linked] if not path.exists()]
    assert missing == []


def test_the_architecture_answers_where_thirty_behaviours_are():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## Where is") :]
    assert len(re.findall(r"^\| .* \| `", table, re.MULTILINE)) >= 30
