"""Ring: reduce-scatter along the ring, then all-gather along it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.chunks import Cut, by_memory, process_of, spread
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import register


@register("xring")
class Ring:
    """Sums each chunk device after device around a ring, and sends the sum once more around.

    With k shards there are k rings at once. Each runs through the devices of a process
    from another one on, so that they leave the process by different devices.

    Raises:
      ValueError: more shards than devices in a process.
    """

    def __init__(self, context: ReduceContext) -> None:
        processes = [tuple(group) for _, group in itertools.groupby(context.devices, process_of)]
        fewest = min(map(len, processes))
        if context.shards > fewest:
            raise ValueError(
                f"{context.shards} rings need as many devices in each process, and there are "
                f"only {fewest}"
            )
        self._devices = context.devices
        self._rings = [_ring(processes, ring, context.shards) for ring in range(context.shards)]

    def device(self, chunk: int, hop: int, index: int = 0) -> str:
        """Where a chunk of tensor `index` is after a number of hops.

        Hop 0 is where its sum begins. After the hops 1 to n-1 the device's own value is
        added; the hops n to 2n-2 take the sum to the other devices.
        """
        ring = self._rings[chunk % len(self._rings)]
        return ring[(chunk // len(self._rings) + index + hop) % len(ring)]

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """See `Algorithm.__call__`."""
        count = len(self._devices)
        cut = Cut(tensors[0], count * len(self._rings))
        parts = dict(zip(self._devices, cut.chunks(tensors, self._devices), strict=True))
        sums = []
        for chunk in range(len(cut)):
            way = [self.device(chunk, hop, index) for hop in range(2 * count - 1)]
            total = parts[way[0]][chunk]
            for device in way[1:count]:
                with tf.device(device):
                    total = tf.add(total, parts[device][chunk])
            sums.append(spread(total, way[count - 1], itertools.pairwise(way[count - 1 :])))
        return cut.join(by_memory(sums, self._devices), self._devices, index)


def _ring(processes: Sequence[Sequence[str]], ring: int, rings: int) -> list[str]:
    """The devices in the order of one of several rings."""
    order: list[str] = []
    for devices in processes:
        first = ring * (len(devices) // rings)
        order += [*devices[first:], *devices[:first]]
    return order
