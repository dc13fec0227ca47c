"""Hierarchical copy: sums within two halves of the devices, then adds the two sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from cnnbench import lazy_tensorflow as tf
from cnnbench.variable_mgr.all_reduce.chunks import send_along_hops
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.gradients import sum_tensors

TOPOLOGIES = ("dgx1", "gcp_v100")

_GCP_V100_MAINS = ((0, 5), (2, 7), (5, 0), (7, 2))
"""Pairs of GPUs in different halves of the machine that are connected by NVLink."""


_Tree: TypeAlias = "tuple[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]]"
"""Indices of the two main devices, which add values, and of the devices in the two halves."""


@register(
    "hierarchical_copy",
    reads=("network_topology", "all_reduce_share_memory"),
    tuned_on=("gpu",),
)
class HierarchicalCopy:
    """Adds each tensor on two main devices, one in each half of the devices.

    The main devices rotate with the tensors. Each main device adds the values of its half. The
    first main device adds the two sums and copies the total to the second one. Each half copies
    from its own main device. So only one value per direction is sent between the halves, instead of
    one per device.
    """

    def __init__(self, context: ReduceContext) -> None:
        context.refuse_shards("hierarchical_copy")
        topology, count = context.network_topology, len(context.devices)
        if topology not in TOPOLOGIES:
            known = ", ".join(TOPOLOGIES)
            raise ValueError(f"unknown topology {topology!r}; must be one of {known}")
        if topology == "gcp_v100" and count != 8:
            raise ValueError(f"the topology gcp_v100 needs exactly 8 devices, not {count}")
        self._context = context
        self._devices = context.devices
        self._trees = _pair_main_devices(count, topology)

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """Sums one tensor, with one sum for each half of the devices; see `Algorithm.__call__`."""
        (first, second), halves = self._trees[index % len(self._trees)]
        mains = self._devices[first], self._devices[second]
        sums = []
        for main, half in zip(mains, halves, strict=True):
            with tf.device(main):
                sums.append(sum_tensors([tensors[member] for member in half]))
        with tf.device(mains[0]):
            total = sum_tensors(sums)
        copies = send_along_hops(total, mains[0], [mains], self._context)
        result = [total] * len(tensors)
        for member in halves[1]:
            result[member] = copies[self._context.memory_of(mains[1])]
        return result


def _pair_main_devices(count: int, topology: str) -> list[_Tree]:
    lower, upper = tuple(range(count // 2)), tuple(range(count // 2, count))
    if topology == "gcp_v100":
        mains = list(_GCP_V100_MAINS)
    else:
        # If the number n of devices is even, devices i and (i + n / 2) mod n are main devices. If
        # it is odd, the last device forms a pair with the first device of the lower half.
        mains = [(first, upper[first]) for first in lower]
        mains += [(first, lower[at % len(lower)]) for at, first in enumerate(upper)]
    return [(pair, (lower, upper) if pair[0] in lower else (upper, lower)) for pair in mains]
