"""What a model asks of its data, in short."""

from __future__ import annotations

from typing import Any

from cnnbench.data import Dataset, InputSpec


def input_spec(
    dataset: Dataset, image_size: int, subset: str = "train", **fields: Any
) -> InputSpec:
    """An `InputSpec` for one image on one device, unless `fields` ask for more."""
    values = {"batch_per_device": 1, "num_devices": 1, **fields}
    return InputSpec(dataset=dataset, subset=subset, image_size=image_size, **values)
