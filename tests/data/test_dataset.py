import subprocess
import sys

import pytest

from cnnbench.data import CIFAR10, IMAGENET, InputSpec, find_dataset
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
