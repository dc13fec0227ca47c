"""What the managers with a copy of every variable per tower have in common."""

from __future__ import annotations

import tensorflow as tf

from cnnbench.variable_mgr.base import GradientPairs, VariableMgr
from cnnbench.variable_mgr.initial_values import initial_value
from cnnbench.variable_mgr.spec import VariableLike
from cnnbench.variable_mgr.tower_variable import TowerVariable


class PerTowerVariableMgr(VariableMgr):
    """Keeps copy t of a variable on the device of tower t, named "v<t>/<name>".

    Every tower applies its own gradients; the state between preprocessing and
    applying is the list of pairs of each tower.
    """

    def each_tower_has_variables(self) -> bool:
        """See `VariableMgr.each_tower_has_variables`."""
        return True

    def get_gradients_to_apply(
        self, device_index: int, state: list[GradientPairs]
    ) -> GradientPairs:
        """See `VariableMgr.get_gradients_to_apply`."""
        return state[device_index]

    def _create(self, variable: VariableLike) -> TowerVariable:
        copies = []
        value = None
        for tower, device in enumerate(self._spec.devices):
            if value is None or not self.replicas_in_sync:
                with tf.device(self._spec.cpu_device):
                    value = initial_value(
                        variable, self._spec.seed, 0 if self.replicas_in_sync else tower
                    )
            with tf.device(device):
                copies.append(
                    tf.Variable(
                        value, trainable=variable.trainable, name=f"v{tower}/{variable.name}"
                    )
                )
        return TowerVariable(variable.name, copies)
