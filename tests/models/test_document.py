from __future__ import annotations

from pathlib import Path

import pytest

from cnnbench.base.terminal import replace_marked_table
from cnnbench.cli import documents
from cnnbench.models import Initializer, load_plugin, model_names

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tiny_plugin.py"


@pytest.mark.usefixtures("own_registry")
def test_the_documented_table_is_current_and_has_every_model_but_plugins():
    models = {(name, dataset) for dataset in documents.CLASSES for name in model_names(dataset)}
    load_plugin(str(EXAMPLE))
    table = documents.model_tables()["models"]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert {(row[0], row[1]) for row in rows[2:]} == models
    assert ["resnet50", "imagenet", "224", "64", "25,559,081", "53,120", "7.716", "22.91"] in rows
    text = DOCUMENT.read_text()
    message = "run: python -m cnnbench.cli.documents docs"
    assert replace_marked_table(text, "models", table) == text, message


def test_the_document_shows_the_example_as_it_is():
    assert f"```python\n{EXAMPLE.read_text()}```" in DOCUMENT.read_text()


def test_the_initializers_of_variables_are_documented():
    row = next(line for line in DOCUMENT.read_text().splitlines() if "| `variable(" in line)
    made = [name for name, one in vars(Initializer).items() if isinstance(one, classmethod)]
    assert made
    for name in made:
        assert f"`{name}(" in row
