"""--variable_update=distributed_all_reduce: an all-reduce chosen by the size of a gradient."""

from __future__ import annotations

from cnnbench.variable_mgr.registry import register
from cnnbench.variable_mgr.replicated import ReplicatedVariableMgr


@register("distributed_all_reduce")
class DistributedAllReduceVariableMgr(ReplicatedVariableMgr):
    """Like replicated, over all towers of the job, with algorithms by size and in two levels.

    Raises:
      FlagError: an all-reduce algorithm cannot work with the devices.
    """
