"""Input of a run: data sets, and the batch of each tower for each step, either synthetic or read
from files.

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
