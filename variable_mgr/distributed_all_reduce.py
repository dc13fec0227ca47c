"""--variable_update=distributed_all_reduce: an all-reduce chosen by the size of a gradient."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.variable_mgr.all_reduce.spec import missing
from cnnbench.variable_mgr.registry import register
from cnnbench.variable_mgr.replicated import ReplicatedVariableMgr
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec


@register("distributed_all_reduce")
class DistributedAllReduceVariableMgr(ReplicatedVariableMgr):
    """Like replicated, over all towers of the job, with algorithms by size and in two levels.

    Raises:
      FlagError: there is no all-reduce spec, or an algorithm of it cannot work with the
        devices.
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        if spec.aggregation.all_reduce is None:
            raise missing(spec.variable_update)
        super().__init__(spec, variables)
