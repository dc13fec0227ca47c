"""Copy to one device, add there, hand the sum to everyone."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import add_up
from cnnbench.variable_mgr.spec import VariableMgrSpec


class CopyToOneDevice:
    """Adds tensor i on one device: the CPU, or in turn each tower's.

    Args:
      cpu_device: where everything is added; None for device i mod N.
    """

    def __init__(self, cpu_device: str | None) -> None:
        self._cpu_device = cpu_device

    def __call__(
        self, tower_tensors: Sequence[Sequence[tf.Tensor]], devices: Sequence[str]
    ) -> list[list[tf.Tensor]]:
        """See `Algorithm.__call__`; all towers share the sums."""
        sums = []
        for index, tensors in enumerate(zip(*tower_tensors, strict=True)):
            with tf.device(self._cpu_device or devices[index % len(devices)]):
                sums.append(add_up(tensors))
        return [list(sums) for _ in devices]


@register("copy")
def _create(spec: VariableMgrSpec) -> CopyToOneDevice:
    return CopyToOneDevice(spec.cpu_device if spec.parameter_device == "cpu" else None)
