"""Provides the input of a run: for each step, one batch for each tower (model copy on one device).
The batches are synthetic or read from the files of a data set.

Importing this package does not import TensorFlow. Creating an input does.
"""

from cnnbench.data.dataset import (
    Dataset,
    InputSource,
    InputSpec,
    TowerBatch,
    dataset_names,
    find_dataset,
    load_plugin,
    register_dataset,
)
from cnnbench.data.open import CIFAR10, COCO, IMAGENET, LIBRISPEECH, RATINGS, make_input
from cnnbench.flags.groups.data import RESIZE_METHODS

__all__ = [
    "CIFAR10",
    "COCO",
    "IMAGENET",
    "LIBRISPEECH",
    "RATINGS",
    "RESIZE_METHODS",
    "Dataset",
    "InputSource",
    "InputSpec",
    "TowerBatch",
    "dataset_names",
    "find_dataset",
    "load_plugin",
    "make_input",
    "register_dataset",
]
