"""Shuffle all-reduce: each shard of a tensor is summed on one of the devices that have the
values.
"""

from __future__ import annotations

from cnnbench.variable_mgr.all_reduce.algorithms.pscpu import Shuffle
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import register


# `cnnbench tune` does not try it: on CPUs, it is the same as pscpu; on GPUs, other algorithms use
# more links.
@register(
    "psgpu",
    reads=("all_reduce_share_memory",),
    tuned_on=(),
)
def shuffle_over_devices(context: ReduceContext) -> Shuffle:
    """Creates a `Shuffle` that sums shards on the devices that have the values."""
    return Shuffle(context, context.devices)
