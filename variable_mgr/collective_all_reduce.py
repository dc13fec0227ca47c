"""--variable_update=collective_all_reduce: every worker runs a step of its own towers."""

from __future__ import annotations

from cnnbench.variable_mgr.per_tower import ReplicatedVariableMgr
from cnnbench.variable_mgr.registry import register


@register("collective_all_reduce")
class CollectiveAllReduceVariableMgr(ReplicatedVariableMgr):
    """Like replicated, with TensorFlow's collectives between the towers of all workers.

    Every worker has an object of this class with the copies of its own towers. In a run of one
    process that is all there is.

    Raises:
      FlagError: an all-reduce algorithm cannot work with the devices.
    """
