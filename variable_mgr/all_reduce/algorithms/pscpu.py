"""Shuffle all-reduce: each shard of a tensor is summed on one CPU, which sends the sum to all
devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce import chunks
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import sum_tensors


def groups_per_shard(devices: Sequence[str], num_shards: int) -> list[tuple[str, ...]]:
    """Returns groups of `num_shards` devices, one device for each shard of a tensor.

    Together, the groups contain all devices. As in tf_cnn_benchmarks, group g begins with device g
    and takes every k-th device, where k is the number of groups. After the last device, it
    continues with the first. For example, "abcde" in groups of 2 gives "ad", "be" and "ca".
    """
    groups = -(-len(devices) // num_shards)
    return [
        tuple(devices[(group + place * groups) % len(devices)] for place in range(num_shards))
        for group in range(groups)
    ]


class Shuffle:
    """Sums each shard of a tensor on a different device. Tensors rotate through device groups."""

    def __init__(self, context: ReduceContext, gather_devices: Sequence[str]) -> None:
        if context.shards > len(gather_devices):
            raise ValueError(
                f"{context.shards} shards need as many different devices, but there are only "
                f"{len(gather_devices)}"
            )
        self._context = context
        self._groups = groups_per_shard(gather_devices, context.shards)

    def summing_device(self, chunk: int, tensor_index: int = 0) -> str:
        """Returns the device that sums shard `chunk` of tensor `tensor_index`."""
        return self._groups[tensor_index % len(self._groups)][chunk]

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """Sums one tensor; see `Algorithm.__call__`."""
        layout = chunks.ChunkLayout(tensors[0], len(self._groups[0]))
        devices = self._context.devices
        parts = layout.chunks(tensors, devices)
        sums = []
        for chunk, values in enumerate(zip(*parts, strict=True)):
            source = self.summing_device(chunk, index)
            with tf.device(source):
                total = sum_tensors(values)
            hops = ((source, device) for device in devices)
            sums.append(chunks.send_along_hops(total, source, hops, self._context))
        copies = chunks.group_chunks_by_memory(sums, self._context)
        return layout.join(copies, self._context, index)


@register(
    "pscpu",
    reads=("all_reduce_share_memory",),
    tuned_on=("cpu",),
)
def shuffle_over_cpus(context: ReduceContext) -> Shuffle:
    """Creates a `Shuffle` that sums shards on CPU devices."""
    return Shuffle(context, context.cpu_devices)
