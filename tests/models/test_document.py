from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cnnbench.base.document.markdown import replace_marked_table
from cnnbench.cli import documents
from cnnbench.data import CIFAR10, register_dataset
from cnnbench.data.dataset import DATASETS
from cnnbench.models import Initializer, datasets, load_plugin, model_names, register_model
from cnnbench.models.networks.trivial import TrivialCifar10

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
GUIDE = DOCUMENT.with_name("own_model.md")
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tiny_plugin.py"


def rows(table):
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


@pytest.mark.usefixtures("own_registry")
def test_the_documented_table_is_current_and_has_every_model_but_plugins():
    models = {(name, data) for data in datasets() for name in model_names(data)}
    load_plugin(str(EXAMPLE))
    table = documents.model_tables()["models"]
    assert {(row[0], row[1]) for row in rows(table)} == models
    resnet = ["resnet50", "imagenet", "224", "64", "25,559,081", "53,120", "7.716", "22.91"]
    assert resnet in rows(table)
    text = DOCUMENT.read_text()
    message = "run: python -m cnnbench.cli.documents docs"
    assert replace_marked_table(text, "models", table) == text, message


@pytest.mark.slow
@pytest.mark.usefixtures("own_registry")
def test_networks_of_a_new_data_set_are_in_the_table(request):
    register_dataset(replace(CIFAR10, name="faces", num_classes=7))
    request.addfinalizer(partial(DATASETS.remove, "faces"))

    class Smallest(TrivialCifar10):
        name = "smallest"
        dataset = "faces"

    Smallest.__module__ = TrivialCifar10.__module__
    register_model("smallest", "faces", Smallest)
    (row,) = (row for row in rows(documents.model_tables()["models"]) if row[1] == "faces")
    # An affine layer of 32 x 32 x 3 values, one of 4096 units, and logits; each with biases.
    parameters = (3072 + 1) + 2 * 4096 + (4096 + 1) * 7
    assert row[:5] == ["smallest", "faces", "32", "32", f"{parameters:,}"]


def test_the_document_shows_the_example_as_it_is():
    assert f"```python\n{EXAMPLE.read_text()}```" in GUIDE.read_text()


def test_the_initializers_of_variables_are_documented():
    row = next(line for line in GUIDE.read_text().splitlines() if "| `variable(" in line)
    made = [name for name, one in vars(Initializer).items() if isinstance(one, classmethod)]
    assert made
    for name in made:
        assert f"`{name}(" in row
