"""A complete data set with a model: cnnbench --plugin=docs/examples/npz_dataset_plugin.py.

--data_dir holds train.npz and validation.npz, each with `images`, uint8 [n, 16, 16, 3], and
`labels`, integers [n] from 0 to 9.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cnnbench.arrays import Array
from cnnbench.data import Dataset, InputSpec, register_dataset
from cnnbench.data.folder import Findings, ImageFacts, ImageTally
from cnnbench.errors import DataError, FlagError
from cnnbench.models import LearningRateSpec, Model, Network, T, register_model

SIZE = 16


def find(data_dir: str, subset: str) -> Sequence[Path]:
    """The files of a subset, or a FlagError that says what is missing."""
    path = Path(data_dir) / f"{subset}.npz"
    if not path.is_file():
        raise FlagError("data_dir", data_dir, f"contains no {path.name}")
    return [path]


def load(path: Path) -> tuple[Array, Array]:
    """Images and labels of a file; all that can be wrong with one ends in a DataError."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images, labels = arrays["images"], arrays["labels"]
    except Exception as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if images.dtype != np.uint8 or images.shape != (len(labels), SIZE, SIZE, 3):
        raise DataError(f"{path}: images are {images.dtype} {images.shape}")
    return images, labels.astype(np.int64)


def count(files: Sequence[Path], subset: str) -> int:
    """Examples of a subset: the length of an epoch."""
    return sum(len(load(path)[1]) for path in files)


def open_files(spec: InputSpec) -> Any:
    """The pipeline of a run. TensorFlow is imported here and not above: refusals stay fast."""
    from cnnbench.data.pipeline import ArrayPipeline

    (path,) = find(str(spec.data_dir), spec.subset)
    images, labels = load(path)
    return ArrayPipeline(spec, images.astype(np.float32) / 127.5 - 1, labels)


def check(files: Sequence[Path], num_classes: int) -> Findings:
    """What `cnnbench data check` prints."""
    found, tally = Findings(), ImageTally()
    for path in files:
        try:
            images, labels = load(path)
        except DataError as error:
            found.defects.append(str(error))
            continue
        for i, label in enumerate(labels):
            if 0 <= label < num_classes:
                tally.add(ImageFacts(int(label), SIZE, SIZE, images[i].nbytes))
                found.records += 1
            else:
                found.defects.append(
                    f"{path}: record {i}: label {label} is not in [0, {num_classes})"
                )
    found.details = tally.lines()
    return found


class Small(Model):
    """Two convolutions."""

    name, dataset, image_size, batch_size = "small", "npz", SIZE, 32
    learning_rate = LearningRateSpec(0.05)

    def build(self, net: Network[T], images: T) -> T:
        """Returns the logits, one row per image."""
        x = net.max_pool(net.conv(images, 16, 3), 2, 2)
        return net.logits(net.flatten(net.conv(x, 16, 3, 2)))


register_dataset(
    Dataset(
        name="npz",
        num_classes=10,
        examples={"train": 5000, "validation": 1000},
        files="train.npz and validation.npz",
        find=find,
        count=count,
        open=open_files,
        check=check,
    )
)
register_model("small", "npz", Small)
