"""--variable_update=replicated: a copy per tower, kept equal by an all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.variable_mgr.aggregation.aggregator import Aggregator
from cnnbench.variable_mgr.gradients import Column
from cnnbench.variable_mgr.per_tower import PerTowerVariableMgr
from cnnbench.variable_mgr.registry import register
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec


@register("replicated")
class ReplicatedVariableMgr(PerTowerVariableMgr):
    """All towers start equal, aggregate their gradients and apply the same update.

    Raises:
      FlagError: an all-reduce algorithm cannot work with the devices.
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        super().__init__(spec, variables)
        self._aggregate = Aggregator(spec)

    @property
    def replicas_in_sync(self) -> bool:
        """See `VariableMgr.replicas_in_sync`."""
        return True

    @property
    def defers_gradients(self) -> bool:
        """See `VariableMgr.defers_gradients`; with --variable_consistency=relaxed."""
        return self._spec.aggregation.relaxed

    def preprocess_device_grads(self, columns: Sequence[Column]) -> tuple[list[str], list[Column]]:
        """See `VariableMgr.preprocess_device_grads`; the aggregation is in the spec."""
        return list(self._spec.devices), self._aggregate(columns)
