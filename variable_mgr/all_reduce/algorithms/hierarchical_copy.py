"""Hierarchical copy: sums within two halves of the devices, then adds the two sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.reducer import send_along_hops
from cnnbench.variable_mgr.all_reduce.spec import ReduceContext, register
from cnnbench.variable_mgr.gradients import sum_tensors

_GCP_V100_MAINS = ((0, 5), (2, 7), (5, 0), (7, 2))
"""Pairs of GPUs in different halves of the machine that are connected by NVLink."""


_Tree: TypeAlias = "tuple[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]]"
"""Indices of the two main devices, which add values, and of the devices in the two halves."""


@register("hierarchical_copy")
class HierarchicalCopy:
    """Adds each tensor on two main devices, one in each half of the devices.

    The main devices rotate with the tensors. Each main device adds the values of its half. The
    first main device adds the two sums and copies the total to the second one. Each half copies
    from its own main device. So only one value per direction is sent between the halves, instead of
    one per device.
    """

    def __init__(self, context: ReduceContext) -> None:
        self._context = context
        self._devices = context.devices
        self._trees = _pair_main_devices(len(context.devices), context.network_topology)

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
        # With an even number n of devices, devices i and (i + n / 2) mod n are main devices.
        # With an odd number, the last device is paired with the first device of the lower half.
        mains = [(first, upper[first]) for first in lower]
        mains += [(first, lower[at % len(lower)]) for at, first in enumerate(upper)]
    return [(pair, (lower, upper) if pair[0] in lower else (upper, lower)) for pair in mains]
