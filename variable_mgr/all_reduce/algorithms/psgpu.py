"""Shuffle all-reduce: each shard of a tensor is summed on one of the devices that have the
values.
"""

from __future__ import annotations

import math

from cnnbench.variable_mgr.all_reduce.algorithms.pscpu import Shuffle, shuffle_phases
from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.cost import Formula
from cnnbench.variable_mgr.all_reduce.registry import register


# `cnnbench tune` does not try it: on CPUs, it is the same as pscpu; on GPUs, other algorithms use
# more links.
@register(
    "psgpu",
    cost=Formula(shuffle_phases, roots=lambda layout, shards: math.ceil(layout.devices / shards)),
    reads=("all_reduce_share_memory",),
    tuned_on=(),
    second_levels=("xring",),
)
def shuffle_over_devices(context: ReduceContext) -> Shuffle:
    """Creates a `Shuffle` that sums shards on the devices that have the values."""
    return Shuffle(context, context.devices)
