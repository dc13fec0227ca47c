"""All-reduce that adds all values on one device, and copies the sum to all devices."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.cost import (
    Formula,
    NodeLayout,
    Path,
    ReductionPhase,
    Tensor,
    star_of,
)
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import sum_tensors


def _phases(tensor: Tensor, layout: NodeLayout, shards: int) -> Path:
    """Phases: all devices send to one device, which adds the tensors and sends the sum back."""
    star = star_of(layout.near - 1, layout.devices - layout.near, tensor.bytes)
    return (star + ReductionPhase(added=(layout.devices - 1) * tensor.bytes), star)


# `cnnbench tune` does not try this algorithm by name, because it is the default.
@register(
    "copy",
    cost=Formula(_phases, roots=lambda layout, shards: layout.devices),
    reads=("local_parameter_device",),
    tuned_on=(),
)
class CopyToOneDevice:
    """Adds the values of tensor i on one device: the CPU, or device i mod N of N devices."""

    def __init__(self, context: ReduceContext) -> None:
        context.refuse_shards("copy")
        self._context = context

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """Sums one tensor, with one sum that all devices share; see `Algorithm.__call__`."""
        devices = self._context.devices
        with tf.device(self._context.cpu_device or devices[index % len(devices)]):
            total = sum_tensors(tensors)
        return [total] * len(devices)
