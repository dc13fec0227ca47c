"""Where an input is opened: the data sets that come with cnnbench, and telling one by its files.

TensorFlow is imported when an input is made, NumPy when files of CIFAR-10 are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cnnbench.data import imagenet_files
from cnnbench.data.dataset import SUBSETS, Dataset, register_dataset
from cnnbench.data.source import InputSource
from cnnbench.data.spec import InputSpec
from cnnbench.errors import FlagError, UsageError

if TYPE_CHECKING:
    from cnnbench.data.pipeline import Pipeline


def make_input(spec: InputSpec, devices: Sequence[str]) -> InputSource:
    """The input that ``spec`` describes, ready to deliver to ``devices``.

    Args:
      spec: what to deliver; without ``data_dir`` the data is synthetic.
      devices: one device string per tower.

    Raises:
      FlagError: ``data_dir`` holds no files of this subset.
      DataError: a file that cannot be read as this data set.
    """
    if spec.data_dir is None:
        from cnnbench.data.synthetic import SyntheticInput

        return SyntheticInput(spec, devices)
    from cnnbench.data.prefetch import PipelineInput

    return PipelineInput(spec, devices, spec.dataset.open(spec))


def _open_imagenet(spec: InputSpec) -> Pipeline:
    from cnnbench.data.imagenet import ImageNetPipeline

    return ImageNetPipeline(spec)


def _open_cifar10(spec: InputSpec) -> Pipeline:
    from cnnbench.data.cifar10 import Cifar10Pipeline

    return Cifar10Pipeline(spec)


def _count_imagenet(data_dir: str, subset: str) -> int:
    files = imagenet_files.find_files(data_dir, subset)
    return imagenet_files.count_examples(files, IMAGENET, subset)


def _count_cifar10(data_dir: str, subset: str) -> int:
    from cnnbench.data import cifar10_files

    files = cifar10_files.find_files(data_dir, subset)
    return sum(cifar10_files.count_records(path) for path in files)


IMAGENET = Dataset(
    "imagenet",
    1001,
    {"train": 1_281_167, "validation": 50_000},
    _open_imagenet,
    _count_imagenet,
)
CIFAR10 = Dataset(
    "cifar10", 11, {"train": 50_000, "validation": 10_000}, _open_cifar10, _count_cifar10
)
register_dataset(IMAGENET)
register_dataset(CIFAR10)


def detect(data_dir: str) -> Dataset:
    """The data set a directory holds.

    Raises:
      UsageError: no such directory, one that cannot be read, or no files of a known data set
        in it.
    """
    for dataset in (IMAGENET, CIFAR10):
        if _subsets(data_dir, dataset):
            return dataset
    if not Path(data_dir).is_dir():
        raise UsageError(f"{data_dir}: there is no such directory")
    raise UsageError(
        f"{data_dir}: holds neither ImageNet records (train-*-of-*, validation-*-of-*) nor "
        "CIFAR-10 batches (data_batch_*, test_batch)"
    )


def find_subsets(data_dir: str, dataset: Dataset) -> dict[str, list[Path]]:
    """The files of every subset that is there, in order.

    Raises:
      UsageError: the directory holds no files of this data set, or cannot be read.
    """
    found = _subsets(data_dir, dataset)
    if not found:
        raise UsageError(f"{data_dir}: holds no {dataset.name} files")
    return found


def _subsets(data_dir: str, dataset: Dataset) -> dict[str, list[Path]]:
    from cnnbench.data import cifar10_files

    find = imagenet_files.find_files if dataset is IMAGENET else cifar10_files.find_files
    found = {}
    for subset in SUBSETS:
        try:
            found[subset] = find(data_dir, subset)
        except FlagError as error:
            if isinstance(error.__cause__, OSError):
                raise UsageError(f"{data_dir}: {error.reason}") from error
    return found
