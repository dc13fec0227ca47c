import dataclasses
import shutil

import numpy as np
import pytest
from data_sets import input_spec, write_cifar10

from cnnbench.data import (
    CIFAR10,
    IMAGENET,
    InputSpec,
    cifar10_files,
    dataset_names,
    find_dataset,
    register_dataset,
    tfrecord,
)
from cnnbench.errors import FlagError
from cnnbench.models import Model, registry


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


def test_a_path_that_says_nothing_leaves_it_to_the_files(small_set, tmp_path):
    assert find_dataset(None, str(small_set("imagenet"))) is IMAGENET
    write_cifar10(tmp_path, np.zeros((1, 32, 32, 3), np.uint8), [0])
    assert find_dataset(None, str(tmp_path)) is CIFAR10


def test_unknown_is_a_flag_error_that_lists_what_is_known(tmp_path):
    with pytest.raises(FlagError, match="must be one of imagenet, cifar10") as caught:
        find_dataset("mnist", None)
    assert caught.value.flag == "data_name"
    with pytest.raises(FlagError, match=r"; cifar10: data_batch_\*") as caught:
        find_dataset(None, str(tmp_path))
    assert caught.value.flag == "data_dir"


def test_published_sizes():
    assert IMAGENET.num_classes == 1001
    assert CIFAR10.num_classes == 11
    assert IMAGENET.num_examples("validation") == 50_000
    assert CIFAR10.num_examples("train") == 50_000


def test_a_name_is_registered_once():
    register_dataset(CIFAR10)
    with pytest.raises(ValueError, match="'cifar10' is registered already"):
        register_dataset(dataclasses.replace(CIFAR10, num_classes=10))
    assert dataset_names() == ("imagenet", "cifar10", "ratings", "coco", "librispeech")


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
    assert (spec.num_classes, spec.global_batch) == (11, 6)


def test_records_are_counted_once_for_plan_and_pipeline(small_set, tmp_path, monkeypatch):
    for path in small_set("imagenet").glob("train-*"):
        shutil.copy(path, tmp_path)
    looked_at = _watch(monkeypatch, tfrecord, "frames")
    assert IMAGENET.num_examples("train", str(tmp_path)) == 16
    assert IMAGENET.open(input_spec(IMAGENET, 8, data_dir=str(tmp_path))).num_examples == 16
    assert looked_at == sorted(tmp_path.iterdir())


def test_batches_are_counted_once_and_their_images_read_when_needed(tmp_path, monkeypatch):
    images = np.zeros((7, 32, 32, 3), np.uint8)
    files = write_cifar10(tmp_path, images, range(7), form="binary", files=2)
    parsed = _watch(monkeypatch, cifar10_files, "_parse_binary")
    for _ in range(2):
        assert CIFAR10.num_examples("train", str(tmp_path)) == 7
    assert parsed == files
    assert CIFAR10.open(input_spec(CIFAR10, 32, data_dir=str(tmp_path))).num_examples == 7
    assert parsed == files * 2


def _watch(monkeypatch, module, name):
    """The paths a function is called with from now on."""
    original = getattr(module, name)
    paths = []

    def watched(path, *rest):
        paths.append(path)
        return original(path, *rest)

    monkeypatch.setattr(module, name, watched)
    return paths
