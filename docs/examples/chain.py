"""Chain: one device after the other adds its value, and all are given the last sum."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench import arrays
from cnnbench.variable_mgr.all_reduce import ReduceContext, register
from cnnbench.variable_mgr.all_reduce.cost import (
    Formula,
    NodeLayout,
    ReductionPhase,
    Tensor,
    ring_lap,
    star_of,
)


def _path(tensor: Tensor, layout: NodeLayout, shards: int) -> list[ReductionPhase]:
    """n - 1 hops that add, then a message from the last device to each of the others."""
    moved = (layout.devices - 1) * tensor.bytes
    hops = ring_lap(layout, 1, moved) + ReductionPhase(added=moved)
    return [hops, star_of(layout.near - 1, layout.devices - layout.near, tensor.bytes)]


@register("chain", cost=Formula(_path))
class Chain:
    """Tensor i begins on device i mod n."""

    def __init__(self, context: ReduceContext) -> None:
        context.refuse_shards("chain")
        self._devices = context.devices

    def __call__(self, tensors: Sequence[arrays.Tensor], index: int) -> list[arrays.Tensor]:
        """See `Algorithm.__call__`."""
        import tensorflow as tf  # here: predictions and checks of flags do not need it

        count = len(tensors)
        total = tensors[index % count]
        for hop in range(1, count):
            place = (index + hop) % count
            with tf.device(self._devices[place]):
                total = tf.add(total, tensors[place])
        return [total] * count
