"""--variable_update=independent: towers that train on their own, as a speed limit."""

from __future__ import annotations

import tensorflow as tf

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.base import GradientPairs
from cnnbench.variable_mgr.gradients import DeviceGrads
from cnnbench.variable_mgr.per_tower import PerTowerVariableMgr
from cnnbench.variable_mgr.registry import register


@register("independent")
class IndependentVariableMgr(PerTowerVariableMgr):
    """Towers start differently and never exchange anything.

    The gradient reduction has no meaning here: each tower applies its own gradient.
    """

    @property
    def replicas_in_sync(self) -> bool:
        """See `VariableMgr.replicas_in_sync`; one tower is in sync with itself."""
        return len(self._spec.devices) == 1

    def preprocess_device_grads(
        self, device_grads: DeviceGrads
    ) -> tuple[list[str], list[GradientPairs]]:
        """See `VariableMgr.preprocess_device_grads`; a tower without gradient skips its update."""
        devices = self._spec.devices
        if len(device_grads) != len(devices):
            raise ValueError(f"gradients of {len(device_grads)} towers for {len(devices)} devices")
        state = []
        for pairs, device in zip(device_grads, devices, strict=True):
            with tf.device(device):
                state.append([(gradients.dense(g, v), v) for g, v in pairs if g is not None])
        return list(devices), state
