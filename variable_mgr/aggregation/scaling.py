"""Turns the sum over towers into their mean."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.variable_mgr.aggregation.once import Once
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
        scaled = Once(lambda tensor: tensor * self.factor)
        return [
            [scaled(tensor, tensor.device or device) for tensor in own]
            for device, own in zip(self.devices, reduced, strict=True)
        ]
