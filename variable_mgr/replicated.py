"""--variable_update=replicated: a copy per tower, kept equal by an all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.all_reduce import ReduceContext, single
from cnnbench.variable_mgr.all_reduce.reducer import Reducer
from cnnbench.variable_mgr.base import GradientPairs
from cnnbench.variable_mgr.gradients import DeviceGrads
from cnnbench.variable_mgr.per_tower import PerTowerVariableMgr
from cnnbench.variable_mgr.registry import register
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec


@register("replicated")
class ReplicatedVariableMgr(PerTowerVariableMgr):
    """All towers start equal, reduce their gradients and apply the same update."""

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        super().__init__(spec, variables)
        on_cpu = spec.parameter_device == "cpu"
        self._all_reduce = Reducer(
            single("copy"),
            ReduceContext(devices=spec.devices, cpu_device=spec.cpu_device if on_cpu else None),
            groups=[spec.devices],
        )

    @property
    def replicas_in_sync(self) -> bool:
        """See `VariableMgr.replicas_in_sync`."""
        return True

    def preprocess_device_grads(
        self, device_grads: DeviceGrads
    ) -> tuple[list[str], list[GradientPairs]]:
        """See `VariableMgr.preprocess_device_grads`; the reduction is --all_reduce_spec."""
        devices = self._spec.devices
        columns = gradients.columns(device_grads, devices)
        by_tower = [[column.gradients[t] for column in columns] for t in range(len(devices))]
        reduced = self._scaled(self._all_reduce(by_tower))
        state = [
            [(tensor, column.variables[t]) for tensor, column in zip(tensors, columns, strict=True)]
            for t, tensors in enumerate(reduced)
        ]
        return list(devices), state

    def _scaled(self, reduced: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Turns sums into the reduction with one multiplication per distinct tensor."""
        scale = self._spec.reduction_scale
        if scale is None:
            return reduced
        products: dict[int, tf.Tensor] = {}
        for tensors in reduced:
            for tensor in tensors:
                if id(tensor) not in products:
                    with tf.device(tensor.device):
                        products[id(tensor)] = tensor * scale
        return [[products[id(tensor)] for tensor in tensors] for tensors in reduced]
