"""Gradients that travel as 16-bit numbers."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.stage import Inverse, TowerTensors
from cnnbench.variable_mgr.gradients import cast

DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class CompactTransfer:
    """Sends tensors as float16 or bfloat16, both ways, and hands out float32.

    Towers of a 16-bit run compute most gradients in 16 bits anyway; those go out as
    they are. Each device widens what it is given.

    Attributes:
      dtype: "float16" or "bfloat16".
      devices: of the towers.

    Raises:
      FlagError: for another dtype.
    """

    dtype: str
    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise FlagError(
                "compact_gradient_transfer", self.dtype, f"must send one of {', '.join(DTYPES)}"
            )

    def __call__(self, tensors: TowerTensors) -> tuple[TowerTensors, Inverse]:
        """See `Stage.__call__`; what comes out of the inverse is float32."""
        wire = tf.as_dtype(self.dtype)
        narrowed = []
        for device, own in zip(self.devices, tensors, strict=True):
            with tf.device(device):
                narrowed.append([cast(tensor, wire) for tensor in own])
        return narrowed, self._inverse

    def _inverse(self, reduced: TowerTensors) -> TowerTensors:
        result = []
        for device, own in zip(self.devices, reduced, strict=True):
            with tf.device(device):
                result.append([cast(tensor, tf.float32) for tensor in own])
        return result
