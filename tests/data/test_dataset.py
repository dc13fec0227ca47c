import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from cnnbench.data import (
    CIFAR10,
    IMAGENET,
    InputSpec,
    dataset_names,
    find_dataset,
    register_dataset,
)
from cnnbench.data.cifar10_files import write_cifar10
from cnnbench.errors import FlagError


def test_name_wins_over_directory():
    assert find_dataset("cifar10", "/data/imagenet") is CIFAR10


def test_directory_is_searched_for_a_name():
    assert find_dataset(None, "/data/imagenet/2012") is IMAGENET
    assert find_dataset(None, "/data/cifar10") is CIFAR10


def test_neither_means_imagenet():
    assert find_dataset(None, None) is IMAGENET


@pytest.mark.parametrize(
    ("name", "directory", "flag"), [("mnist", None, "data_name"), (None, "/data/x", "data_dir")]
)
def test_unknown_is_a_flag_error_that_lists_the_choices(name, directory, flag):
    with pytest.raises(FlagError, match="imagenet, cifar10") as caught:
        find_dataset(name, directory)
    assert caught.value.flag == flag


def test_published_sizes():
    assert IMAGENET.num_classes == 1001
    assert CIFAR10.num_classes == 11
    assert IMAGENET.num_examples("validation") == 50_000
    assert CIFAR10.num_examples("train") == 50_000


def test_files_are_counted(imagenet_dir, tmp_path):
    assert IMAGENET.num_examples("train", str(imagenet_dir)) == 16
    write_cifar10(tmp_path, np.zeros((7, 32, 32, 3), np.uint8), range(7), subset="validation")
    assert CIFAR10.num_examples("validation", str(tmp_path)) == 7
    with pytest.raises(FlagError, match="holds no CIFAR-10 train files"):
        CIFAR10.num_examples("train", str(tmp_path))


def test_a_name_is_registered_once():
    register_dataset(CIFAR10)
    with pytest.raises(ValueError, match="'cifar10' is registered already"):
        register_dataset(dataclasses.replace(CIFAR10, num_classes=10))
    assert dataset_names() == ("imagenet", "cifar10")


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


def test_importing_the_package_does_not_import_tensorflow():
    code = "import sys, cnnbench.data; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
