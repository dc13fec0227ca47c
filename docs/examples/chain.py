"""Chain: one device after the other adds its value, and all are given the last sum."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench import arrays
from cnnbench.variable_mgr.all_reduce import ReduceContext, register


@register("chain")
class Chain:
    """Tensor i begins on device i mod n."""

    def __init__(self, context: ReduceContext) -> None:
        context.refuse_shards("chain")
        self._devices = context.devices

    def __call__(self, tensors: Sequence[arrays.Tensor], index: int) -> list[arrays.Tensor]:
        """See `Algorithm.__call__`."""
        import tensorflow as tf  # here: checks of flags do not need it

        count = len(tensors)
        total = tensors[index % count]
        for hop in range(1, count):
            place = (index + hop) % count
            with tf.device(self._devices[place]):
                total = tf.add(total, tensors[place])
        return [total] * count
