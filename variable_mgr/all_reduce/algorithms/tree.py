"""Double binary tree all-reduce: each half of a tensor is summed in its own tree of devices."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce import chunks
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import sum_tensors


@register("tree", reads=("all_reduce_share_memory",))
class DoubleBinaryTree:
    """Sums each half of a tensor towards the root of its own tree, and sends the sum back.

    The trees were described by Sanders, Speck and Träff; NCCL uses them, too. The level of a place
    1..n is the number of its trailing zero bits, so odd places are leaves. In the second tree, each
    device is one place further, so an inner device of one tree is a leaf of the other tree. With k
    shards, each half is sent as a pipeline of k chunks. If all devices share one memory, there are
    no links to use in parallel, so whole tensors alternate between the two trees.
    """

    def __init__(self, context: ReduceContext) -> None:
        self._context = context
        self._trees = min(2, context.num_memories)

    def device_at_place(self, chunk: int, place: int, tensor_index: int = 0) -> str:
        """Returns the device at a place (1..n) of the tree that sums a chunk of a tensor."""
        tree = (chunk + tensor_index) % 2
        devices = self._context.devices
        return devices[(place - 1 - tree + tensor_index // 2) % len(devices)]

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """Sums one tensor; see `Algorithm.__call__`."""
        devices = self._context.devices
        layout = chunks.ChunkLayout(tensors[0], self._trees * self._context.shards)
        parts = dict(zip(devices, layout.chunks(tensors, devices), strict=True))
        count = len(devices)
        # Sorted by level, every place comes before its parent.
        upwards = sorted(range(1, count + 1), key=_level_of_place)
        root = upwards[-1]
        sums = []
        for chunk in range(len(layout)):
            at = {place: self.device_at_place(chunk, place, index) for place in upwards}
            values = {place: [parts[at[place]][chunk]] for place in upwards}
            for place in upwards:
                with tf.device(at[place]):
                    total = sum_tensors(values[place])
                if place != root:
                    values[parent_place(place, count)].append(total)
            downwards = (
                (at[parent_place(place, count)], at[place]) for place in reversed(upwards[:-1])
            )
            sums.append(chunks.send_along_hops(total, at[root], downwards, self._context))
        copies = chunks.group_chunks_by_memory(sums, self._context)
        return layout.join(copies, self._context, index)


def parent_place(place: int, count: int) -> int:
    """Returns the parent of a place in the binary tree of places 1..count.

    `place` must not be the root. In the number of the parent, the lowest one bit of `place` is
    moved up by one. If that number exceeds `count`, the next existing ancestor is the parent.
    """
    while True:
        lowest = _level_of_place(place)
        place = (place & ~lowest) | (lowest << 1)
        if place <= count:
            return place


def _level_of_place(place: int) -> int:
    return place & -place
