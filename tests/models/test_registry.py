"""Models by name, and mistakes in what they declare.

Tests models/elements.py.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cnnbench.base import plugins
from cnnbench.errors import FlagError, UsageError
from cnnbench.models import (
    LearningRateSpec,
    Model,
    datasets,
    datasets_of,
    declare,
    get_model,
    load_plugin,
    model_names,
    register_model,
)
from cnnbench.models.registry import all_model_names

pytestmark = pytest.mark.usefixtures("own_registry")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tiny_plugin.py"

PLUGIN = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Probe(Model):
    name, dataset, image_size, batch_size = "probe", "imagenet", 8, {batch}
    learning_rate = LearningRateSpec(0.01)

    def build(self, net, images):
        return net.logits(net.flatten(images))

register_model("probe", "imagenet", Probe)
"""


def plugin(tmp_path, text):
    path = tmp_path / "own.py"
    path.write_text(text)
    return str(path)


def test_every_model_carries_the_name_it_is_registered_under():
    for dataset in datasets():
        for name in model_names(dataset):
            model = get_model(name, dataset)
            assert (model.name, model.dataset) == (name, dataset)


def test_all_models_of_a_name_are_in_one_module():
    """A name is looked up in the module that it begins with, before all others are imported."""
    # Names of a family, such as keras:VGG16, belong to no data set.
    for name in filter(datasets_of, all_model_names()):
        models = [get_model(name, dataset) for dataset in datasets_of(name)]
        assert len({type(one).__module__ for one in models}) == 1


@pytest.mark.parametrize(
    ("name", "dataset", "near"),
    [
        ("resnet50_v15", "imagenet", "resnet50_v1.5"),
        ("resnt110", "cifar10", "resnet110"),
        ("Trivial", "imagenet", "trivial"),
    ],
)
def test_an_unknown_model_is_answered_with_the_nearest_name_and_all_names(name, dataset, near):
    with pytest.raises(FlagError) as caught:
        get_model(name, dataset)
    assert (caught.value.flag, caught.value.value) == ("model", name)
    assert f"did you mean {near}?" in caught.value.reason
    assert f"models for {dataset}: " + ", ".join(model_names(dataset)) in caught.value.reason
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "dataset", "message"),
    [
        ("zzz", "cifar10", "unknown; models for cifar10: alexnet"),  # like no other: no guess
        ("zzz", "mnist", "models for mnist: none"),
        ("resnet50", "cifar10", "is a model for imagenet, not for cifar10; give"),
    ],
)
def test_an_unknown_model_or_data_set_is_refused(name, dataset, message):
    with pytest.raises(FlagError, match=message):
        get_model(name, dataset)
    assert datasets_of("nasnet") == ("cifar10", "imagenet")
    assert datasets_of("zzz") == model_names("mnist") == ()


def test_a_name_is_taken_once_per_dataset():
    register_model("lenet", "cifar10", lambda: get_model("lenet", "imagenet"))
    with pytest.raises(UsageError, match="lenet for cifar10 is registered already"):
        register_model("lenet", "cifar10", lambda: get_model("lenet", "imagenet"))
    with pytest.raises(UsageError, match="printable characters"):
        register_model("\x1b[31m", "cifar10", Model)
    with pytest.raises(UsageError, match="printable characters"):
        register_model("own", "", Model)


def incomplete(**attributes):
    body = {
        "name": "own",
        "dataset": "imagenet",
        "image_size": 8,
        "batch_size": 2,
        "learning_rate": LearningRateSpec(0.1),
        "build": lambda self, net, images: images,
        **attributes,
    }
    return type("Own", (Model,), {k: v for k, v in body.items() if v is not None})


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (incomplete(image_size=None), "class Own needs an attribute image_size of type int"),
        (incomplete(learning_rate=0.1), "learning_rate must be a LearningRateSpec, not 0.1"),
        (incomplete(build=None), "abstract"),
        (lambda: "lenet", "returned a str, not a cnnbench Model"),
        (lambda: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_a_factory_that_makes_no_usable_model_is_named(factory, message):
    register_model("own", "imagenet", factory)
    with pytest.raises(UsageError, match=f"^--model=own: .*{message}"):
        get_model("own", "imagenet")


# Plug-in files --------------------------------------------------------------------------------


def test_the_example_is_a_complete_model_in_twenty_lines():
    assert len(EXAMPLE.read_text().splitlines()) <= 20
    assert load_plugin(str(EXAMPLE)) == ("tiny",)
    spec = declare(get_model("tiny", "imagenet"), 1001)
    kernels = 3 * 3 * (3 * 32 + 32 * 64 + 64 * 128)
    norms = 2 * (32 + 64 + 128)
    assert spec.parameters == kernels + norms + 128 * 1001 + 1001


def test_an_edited_file_replaces_its_models(tmp_path):
    path = plugin(tmp_path, PLUGIN.format(batch=2))
    assert load_plugin(path) == load_plugin(path) == ("probe",)
    assert get_model("probe", "imagenet").batch_size == 2
    assert [p.name for p in tmp_path.iterdir()] == ["own.py"]
    load_plugin(plugin(tmp_path, PLUGIN.format(batch=3)))
    assert get_model("probe", "imagenet").batch_size == 3


# Installed entry points -----------------------------------------------------------------------


def test_an_entry_point_may_be_a_function(install):
    code = PLUGIN.format(batch=5).replace("\nregister_model", "\ndef r():\n    register_model")
    install("cnnbench.models", code, ":r")
    assert "probe" in model_names("imagenet")
    assert get_model("probe", "imagenet").batch_size == 5
    assert hashlib.sha256(code.encode()).hexdigest() in plugins.digests.values()


def test_a_broken_entry_point_is_named_and_built_in_models_still_work(install):
    install("cnnbench.models", "raise OSError('gone')")
    assert get_model("lenet", "imagenet").name == "lenet"
    message = r"/cnnbench_provider\.py:1: <module>: OSError: gone"
    with pytest.raises(UsageError, match=message):
        get_model("probe", "imagenet")
    for ask in (datasets, lambda: model_names("imagenet")):
        with pytest.raises(UsageError, match=message):
            ask()
