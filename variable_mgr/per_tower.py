"""What the managers with a copy of every variable per tower have in common."""

from __future__ import annotations

import tensorflow as tf

from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.initial_values import initial_value
from cnnbench.variable_mgr.spec import VariableLike
from cnnbench.variable_mgr.tower_variable import TowerVariable


class PerTowerVariableMgr(VariableMgr):
    """Keeps copy t of a variable on the device of tower t, named "v<t>/<name>".

    Every tower applies gradients to its own copies.
    """

    def each_tower_has_variables(self) -> bool:
        """See `VariableMgr.each_tower_has_variables`."""
        return True

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
