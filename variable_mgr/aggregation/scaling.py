"""Turns the sum over towers into their mean."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from cnnbench.variable_mgr.aggregation.stage import Inverse, TowerTensors


@dataclass(frozen=True)
class Scale:
    """Sends gradients as they are and multiplies what comes back.

    A sum that several towers were given is multiplied once, where it was made.

    Attributes:
      factor: of the sum.
      devices: of the towers.
    """

    factor: float
    devices: tuple[str, ...]

    def __call__(self, tensors: TowerTensors) -> tuple[TowerTensors, Inverse]:
        """See `Stage.__call__`."""
        return tensors, self._inverse

    def _inverse(self, reduced: TowerTensors) -> TowerTensors:
        # Holds the tensors too, so that no identity can be taken for another's.
        made: dict[tuple[int, str], tuple[tf.Tensor, tf.Tensor]] = {}

        def scaled(tensor: tf.Tensor, device: str) -> tf.Tensor:
            key = (id(tensor), device)
            if key not in made:
                with tf.device(device):
                    made[key] = (tensor, tensor * self.factor)
            return made[key][1]

        return [
            [scaled(tensor, tensor.device or device) for tensor in own]
            for device, own in zip(self.devices, reduced, strict=True)
        ]
