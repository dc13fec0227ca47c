"""Telling a data set from the files in a directory. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cnnbench.data import cifar10_files, imagenet_files
from cnnbench.data.dataset import CIFAR10, IMAGENET, SUBSETS, Dataset
from cnnbench.errors import FlagError, UsageError

_FINDERS: dict[str, Callable[[str, str], list[Path]]] = {
    IMAGENET.name: imagenet_files.find_files,
    CIFAR10.name: cifar10_files.find_files,
}


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
    found = {}
    for subset in SUBSETS:
        try:
            found[subset] = _FINDERS[dataset.name](data_dir, subset)
        except FlagError as error:
            if isinstance(error.__cause__, OSError):
                raise UsageError(f"{data_dir}: {error.reason}") from error
    return found
