"""Ring all-reduce: a reduce-scatter, and then an all-gather, along a ring of devices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce import chunks
from cnnbench.variable_mgr.all_reduce.context import ReduceContext, group_devices
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import sum_tensors


@register("xring", reads=("all_reduce_share_memory",))
class Ring:
    """Sums each chunk around a ring of devices, and sends the sum around the ring once more.

    There is one chunk per memory, and each chunk starts in a different memory, so that every link
    is always busy. With k shards, k rings work at the same time, each with its own chunks. In each
    process, each ring has a different first device, so that the rings leave the process through
    different devices.
    """

    def __init__(self, context: ReduceContext) -> None:
        self._context = context
        self._rings = context.shards
        self._processes = group_devices(context.devices)
        fewest = min(map(len, self._processes))
        if self._rings > fewest:
            raise ValueError(
                f"{self._rings} rings need as many devices in each process, but a process has "
                f"only {fewest}"
            )

    def chunk_route(self, chunk: int, tensor_index: int = 0) -> list[str]:
        """Returns the 2n - 1 devices of the ring that a chunk of a tensor visits, in order.

        The sum begins with the value of the first device. The next n - 1 devices add their values.
        The last n - 1 devices receive the sum.
        """
        order = self._ring_order(chunk % self._rings, tensor_index // self._context.num_memories)
        count = len(order)
        # A chunk starts where the ring enters a memory; otherwise, its sum would enter that memory
        # twice.
        starts = [
            place
            for place in range(count)
            if self._context.memory_of(order[place - 1]) != self._context.memory_of(order[place])
        ] or [0]
        start = starts[(chunk // self._rings + tensor_index) % len(starts)]
        return [order[(start + hop) % count] for hop in range(2 * count - 1)]

    def _ring_order(self, ring: int, rotation: int) -> list[str]:
        order: list[str] = []
        for devices in self._processes:
            first = (ring * (len(devices) // self._rings) + rotation) % len(devices)
            order += [*devices[first:], *devices[:first]]
        return order

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """Sums one tensor; see `Algorithm.__call__`."""
        devices = self._context.devices
        count = len(devices)
        layout = chunks.ChunkLayout(tensors[0], self._context.num_memories * self._rings)
        parts = dict(zip(devices, layout.chunks(tensors, devices), strict=True))
        sums = []
        for chunk in range(len(layout)):
            route = self.chunk_route(chunk, index)
            total: list[tf.Tensor] = []
            # Devices that share a memory need no hops: one operation adds all their values.
            for _, members in itertools.groupby(route[:count], self._context.memory_of):
                devices_there = list(members)
                with tf.device(devices_there[-1]):
                    total = [
                        sum_tensors([*total, *(parts[device][chunk] for device in devices_there)])
                    ]
            hops = itertools.pairwise(route[count - 1 :])
            sums.append(chunks.send_along_hops(total[0], route[count - 1], hops, self._context))
        copies = chunks.group_chunks_by_memory(sums, self._context)
        return layout.join(copies, self._context, index)
