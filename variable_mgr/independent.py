"""--variable_update=independent: towers that train on their own, as a speed limit."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.gradients import Column, Gradient
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

    def preprocess_device_grads(self, columns: Sequence[Column]) -> tuple[list[str], list[Column]]:
        """See `VariableMgr.preprocess_device_grads`; a tower without gradient skips its update."""
        devices = self._spec.devices
        gradients.check_towers(columns, devices)
        own = []
        for column in columns:
            pairs = list(zip(*column, strict=True))
            own.append(column._replace(gradients=gradients.on_devices(devices, _dense, pairs)))
        return list(devices), own


def _dense(pair: tuple[Gradient, tf.Variable]) -> tf.Tensor | None:
    gradient, variable = pair
    return None if gradient is None else gradients.dense(gradient, variable)
