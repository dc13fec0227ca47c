"""Gradients that travel as 16-bit numbers."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import tensorflow as tf

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.once import Once
from cnnbench.variable_mgr.aggregation.stage import Inverse, TowerTensors

DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class CompactTransfer:
    """Sends tensors that are wider than 16 bits as float16 or bfloat16.

    Both ways: each device widens what it is given, except that CPUs of one process
    have one memory, where nothing travels and one widening serves all.

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
        """See `Stage.__call__`."""
        wire = tf.as_dtype(self.dtype)
        original = [tensor.dtype for tensor in tensors[0]]
        at_source = share_memory(self.devices)

        def inverse(reduced: TowerTensors) -> TowerTensors:
            widened = {dtype: Once(functools.partial(tf.cast, dtype=dtype)) for dtype in original}
            return [
                [
                    tensor
                    if tensor.dtype == dtype
                    else widened[dtype](tensor, (at_source and tensor.device) or device)
                    for tensor, dtype in zip(own, original, strict=True)
                ]
                for device, own in zip(self.devices, reduced, strict=True)
            ]

        narrowed = []
        for device, own in zip(self.devices, tensors, strict=True):
            with tf.device(device):
                narrowed.append([t if t.dtype.size <= wire.size else tf.cast(t, wire) for t in own])
        return narrowed, inverse


def share_memory(devices: tuple[str, ...]) -> bool:
    """Whether all devices are CPUs of one process."""
    places = {device.partition("/device:")[0] for device in devices}
    return len(places) == 1 and all("/device:CPU:" in device for device in devices)
