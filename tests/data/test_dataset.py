"""Names of data sets, and what their declarations must contain.

Tests cnnbench/data/open.py.
"""

from pathlib import Path

import pytest

from cnnbench.data import CIFAR10, Dataset, InputSpec, find_dataset
from cnnbench.data import open as built_in
from cnnbench.errors import FlagError
from cnnbench.flags.params import SPECS
from cnnbench.models import Element, Model, registry


@pytest.mark.parametrize(
    ("name", "folder", "model", "found"),
    [
        ("cifar10", "/data/imagenet", None, "cifar10"),
        (None, "/data/imagenet/2012", None, "imagenet"),
        (None, "/data/cifar10", None, "cifar10"),
        (None, None, None, "imagenet"),
        (None, None, "resnet20", "cifar10"),
        (None, None, "ncf", "ratings"),
        (None, None, "ssd300", "coco"),
        (None, None, "nasnet", "imagenet"),
    ],
)
def test_a_name_wins_over_a_word_of_the_path_and_that_over_the_model(name, folder, model, found):
    assert find_dataset(name, folder, model).name == found


def test_a_model_of_several_data_sets_but_imagenet_implies_none(own_registry):
    for name in ("cifar10", "coco"):
        registry.register_model("small", name, Model)
    with pytest.raises(FlagError, match="small: is a model for cifar10 and coco; give --data_name"):
        find_dataset(None, None, "small")
    assert find_dataset("coco", None, "small").name == "coco"
    assert find_dataset(None, "/data/cifar10", "small") is CIFAR10


def test_unknown_is_a_flag_error_that_lists_what_is_known():
    with pytest.raises(FlagError, match="--data_name=mnist: must be one of imagenet, cifar10"):
        find_dataset("mnist", None)


def test_spec_takes_flags_by_name_but_not_other_attributes():
    class Flags:
        resize_method = "area"
        datasets_num_private_threads = 3
        subset = "validation"
        seed = 99

    spec = InputSpec.from_flags(
        Flags(), dataset=CIFAR10, subset="train", batch_per_device=2, num_devices=3, image_size=32
    )
    assert (spec.resize_method, spec.datasets_num_private_threads) == ("area", 3)
    assert (spec.subset, spec.seed) == ("train", 1234)
    assert (spec.num_classes, spec.process_batch_size) == (11, 6)


def test_what_a_spec_is_not_told_follows_from_the_data_set():
    def spec(**fields):
        return InputSpec(
            **{"dataset": CIFAR10, "subset": "train", "batch_per_device": 2, "num_devices": 3}
            | {"image_size": 32, **fields}
        )

    own = (Element("own", (4,), "label"),)
    image = next(one for one in spec().examples if one.name == "image")
    assert (image.shape, len(spec().examples)) == ((32, 32, 3), len(CIFAR10.elements))
    assert (spec().num_classes, spec().elements) == (11, spec().examples)
    other = spec(num_classes=5, examples=own)
    assert (other.num_classes, other.examples, other.elements) == (5, own, own)
    both = spec(elements=own)
    assert (both.examples, both.elements) == (spec().examples, own)
    assert (spec().training, spec(subset="validation").training) == (True, False)
    settled = {"resize_method": "bilinear", "distortions": False, "ml_perf": False}
    asked = {"resize_method": "area", "distortions": True, "ml_perf": True}
    for name, expected in (("official_models_imagenet", settled), ("default", asked)):
        made = spec(input_preprocessor=name, **asked)
        assert {name: getattr(made, name) for name in asked} == expected


def test_the_help_and_the_page_name_every_data_set():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    own = [one.name for one in vars(built_in).values() if isinstance(one, Dataset)]
    assert len(own) >= 5
    for name in own:
        assert name in SPECS["data_name"].help, "name it in the help of --data_name"
        assert f"\n| {name} |" in page, "add a row to docs/data.md"
