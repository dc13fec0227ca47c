"""All gradients in a few flat packs, so that the number of variables costs nothing."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.flat_buffers import FlatLayout
from cnnbench.variable_mgr.aggregation.shapes import common_dtype, static_dtypes, static_shapes
from cnnbench.variable_mgr.aggregation.spec import MOST_PACKS
from cnnbench.variable_mgr.aggregation.stage import Inverse, TowerTensors
from cnnbench.variable_mgr.gradients import cast


@dataclass(frozen=True)
class Repacking:
    """Lays all tensors end to end and cuts them into equal flat packs.

    Each pack is made of its own tensors alone, so it can leave while the backward
    pass still computes others. Every device takes apart what it is given: the parts
    are views, whereas handing parts from device to device costs an op for each.

    Attributes:
      packs: how many; what is left over goes to the last.
      devices: of the towers.
      dtype: of the packs where tensors differ in theirs; None to refuse that.

    Raises:
      FlagError: fewer packs than 1 or more than `MOST_PACKS`.
    """

    packs: int
    devices: tuple[str, ...]
    dtype: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.packs <= MOST_PACKS:
            raise FlagError("gradient_repacking", self.packs, f"must be 1 to {MOST_PACKS} packs")

    def __call__(self, tensors: TowerTensors) -> tuple[TowerTensors, Inverse]:
        """See `Stage.__call__`; what comes back has the dtype of the packs that come back."""
        if not tensors[0]:
            return tensors, lambda reduced: reduced
        mixed = self.dtype is not None and len(set(static_dtypes(tensors))) > 1
        dtype = tf.as_dtype(self.dtype) if mixed else common_dtype(tensors)
        layout = FlatLayout(static_shapes(tensors), dtype, self.packs)

        def inverse(reduced: TowerTensors) -> TowerTensors:
            result = []
            for device, own in zip(self.devices, reduced, strict=True):
                with tf.device(device):
                    result.append(layout.split(own))
            return result

        packed = []
        for device, own in zip(self.devices, tensors, strict=True):
            with tf.device(device):
                packed.append(layout.join([cast(tensor, dtype) for tensor in own]))
        return packed, inverse
