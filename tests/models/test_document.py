from __future__ import annotations

from pathlib import Path

import pytest

from cnnbench.base.text.markdown import with_table
from cnnbench.models import document, load_plugin, model_names

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tiny_plugin.py"


def test_the_documented_table_is_current():
    text = DOCUMENT.read_text()
    message = "run: python -m cnnbench.models.document docs/models.md"
    assert with_table(text, document.NAME, document.table()) == text, message


def test_the_document_shows_the_example_as_it_is():
    assert f"```python\n{EXAMPLE.read_text()}```" in DOCUMENT.read_text()


@pytest.mark.usefixtures("own_registry")
def test_the_table_lists_every_model_with_its_figures():
    rows = [line.strip("| ").split(" | ") for line in document.table().splitlines()]
    listed = {(row[0], row[1]) for row in rows[2:]}
    assert listed == {(n, d) for d in document.CLASSES for n in model_names(d)}
    expected = ["resnet50", "imagenet", "224", "64", "25,559,081", "53,120", "7.716", "22.91"]
    assert expected in rows


@pytest.mark.usefixtures("own_registry")
def test_the_table_leaves_out_plugins():
    before = document.table()
    load_plugin(str(EXAMPLE))
    assert document.table() == before
