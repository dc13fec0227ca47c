"""Shuffle all-reduce: one of the devices with the values sums each shard of a tensor."""

from __future__ import annotations

from cnnbench.variable_mgr.all_reduce.algorithms.pscpu import Shuffle
from cnnbench.variable_mgr.all_reduce.spec import ReduceContext, register


@register("psgpu")
def shuffle_over_devices(context: ReduceContext) -> Shuffle:
    """Creates a `Shuffle` that sums shards on the devices that have the values."""
    return Shuffle(context, context.devices)
