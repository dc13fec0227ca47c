"""Shuffle over CPUs, as parameter servers do it."""

from __future__ import annotations

from cnnbench.variable_mgr.all_reduce.context import ReduceContext
from cnnbench.variable_mgr.all_reduce.registry import register
from cnnbench.variable_mgr.all_reduce.shuffle import Shuffle


@register("pscpu")
def shuffle_over_cpus(context: ReduceContext) -> Shuffle:
    """Sums shards on CPU devices."""
    return Shuffle(context, context.cpu_devices)
