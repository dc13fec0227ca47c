"""Data sets: their names, class counts and subset sizes, and which one the flags mean.

No TensorFlow here: flags are resolved and help is printed without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cnnbench.errors import FlagError

SUBSETS = ("train", "validation")


@dataclass(frozen=True)
class Dataset:
    """What the rest of the program must know about one data set.

    Attributes:
      name: what ``--data_name`` says, and the key of a model in the registry.
      num_classes: width of the logits. ImageNet has 1000 classes and label 0 is the
        background; CIFAR-10 keeps the 11 of tf_cnn_benchmarks (10 classes, one spare).
      examples: examples per subset of the published data set, the epoch of synthetic data.
      open: takes an `InputSpec`, returns the `Pipeline` that reads the files it names.
      count: examples in the files of a directory, given the directory and the subset.
    """

    name: str
    num_classes: int
    examples: Mapping[str, int]
    open: Callable[[Any], Any] = field(repr=False)
    count: Callable[[str, str], int] = field(repr=False)

    def num_examples(self, subset: str, data_dir: str | None = None) -> int:
        """Examples in ``subset`` ("train" or "validation"): one epoch.

        Args:
          subset: which.
          data_dir: counts the files there; None means the data set as published.

        Raises:
          FlagError: ``data_dir`` holds no files of this subset.
          DataError: a file that cannot be used.
        """
        return self.examples[subset] if data_dir is None else self.count(data_dir, subset)


_DATASETS: dict[str, Dataset] = {}


def register_dataset(dataset: Dataset) -> None:
    """Makes ``dataset`` known to ``--data_name`` and to the guess from ``--data_dir``.

    Raises:
      ValueError: another data set already has this name.
    """
    if _DATASETS.get(dataset.name, dataset) is not dataset:
        raise ValueError(f"a data set named {dataset.name!r} is registered already")
    _DATASETS[dataset.name] = dataset


def dataset_names() -> tuple[str, ...]:
    """Names that ``--data_name`` takes, in order of registration."""
    return tuple(_DATASETS)


def find_dataset(data_name: str | None, data_dir: str | None) -> Dataset:
    """The data set the flags mean.

    Args:
      data_name: value of ``--data_name``, or None.
      data_dir: value of ``--data_dir``, or None. Without a name, the first data set whose
        name is part of this path is taken; without either, ImageNet.

    Raises:
      FlagError: an unknown name, or a directory whose path names no data set.
    """
    if data_name is not None:
        if data_name not in _DATASETS:
            raise FlagError("data_name", data_name, f"must be one of {_choices()}")
        return _DATASETS[data_name]
    if data_dir is None:
        return _DATASETS["imagenet"]
    for name, dataset in _DATASETS.items():
        if name in data_dir:
            return dataset
    raise FlagError(
        "data_dir", data_dir, f"the path names no data set; add --data_name, one of {_choices()}"
    )


def _choices() -> str:
    return ", ".join(_DATASETS)
