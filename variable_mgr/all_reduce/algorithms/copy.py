"""All-reduce that adds all values on one device, and copies the sum to all devices."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import sum_tensors


# `cnnbench tune` does not try this algorithm by name, because it is the default.
@register(
    "copy",
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
