"""Hierarchical copy: sums in two halves of the devices, then of the two halves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from cnnbench.variable_mgr.all_reduce.reducer import spread
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.all_reduce.spec import ReduceContext
from cnnbench.variable_mgr.gradients import add_up

# The pairs of GPUs that NVLink joins across the two halves of such a machine.
_GCP_V100_MAINS = ((0, 5), (2, 7), (5, 0), (7, 2))


# Positions of the device that adds in each half (main), and of the members of each half.
_Tree: TypeAlias = "tuple[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]]"


@register("hierarchical_copy")
class HierarchicalCopy:
    """Tensor i is added on two main devices, one in each half, which rotate with i.

    Each main adds the values of its half; the first adds the two sums and copies the total to the
    second; each half copies from its own main. So one value is sent from half to half in each
    direction, not one per device.
    """

    def __init__(self, context: ReduceContext) -> None:
        self._context = context
        self._devices = context.devices
        self._trees = _trees(len(context.devices), context.network_topology)

    def __call__(self, tensors: Sequence[tf.Tensor], index: int) -> list[tf.Tensor]:
        """See `Algorithm.__call__`; the devices of a half share the sum."""
        (first, second), halves = self._trees[index % len(self._trees)]
        mains = self._devices[first], self._devices[second]
        sums = []
        for main, half in zip(mains, halves, strict=True):
            with tf.device(main):
                sums.append(add_up([tensors[member] for member in half]))
        with tf.device(mains[0]):
            total = add_up(sums)
        copies = spread(total, mains[0], [mains], self._context)
        result = [total] * len(tensors)
        for member in halves[1]:
            result[member] = copies[self._context.memory_of(mains[1])]
        return result


def _trees(count: int, topology: str) -> list[_Tree]:
    lower, upper = tuple(range(count // 2)), tuple(range(count // 2, count))
    if topology == "gcp_v100":
        mains = list(_GCP_V100_MAINS)
    else:
        # Opposite of (first + n/2) mod n for an even number n of devices. Of an odd number, the
        # upper half has one more, whose opposite is the lower half's first.
        mains = [(first, upper[first]) for first in lower]
        mains += [(first, lower[at % len(lower)]) for at, first in enumerate(upper)]
    return [(pair, (lower, upper) if pair[0] in lower else (upper, lower)) for pair in mains]
