"""Local SGD: cnnbench --plugin=docs/examples/local_sgd_plugin.py, and with it
--variable_update=local_sgd. Towers train alone; every EVERY steps their weights become the mean.
"""

from typing import Any

import tensorflow as tf

from cnnbench.variable_mgr import Mode, Reduction, register_mode, towers
from cnnbench.variable_mgr.per_tower import IndependentVariableMgr

EVERY = 2


class LocalSgd(IndependentVariableMgr):
    """A copy of every variable per tower; each tower applies its own gradients to its copies."""

    def create_variables(self) -> None:
        """Creates the copies, equal on all towers, and a counter of steps."""
        super().create_variables()
        self.after_restore()
        with tf.device(self._spec.cpu_device):
            self._steps = tf.Variable(0, trainable=False)

    def after_updates(self) -> list[Any]:
        """Every EVERY steps the exchange, behind the updates of all towers."""
        with tf.device(self._spec.cpu_device):
            done = self._steps.assign_add(1)
            return [tf.cond(done % EVERY == 0, self._average, lambda: False)]

    def _average(self) -> bool:
        for variable in [self.updated(v.name) for v in self._declared if v.trainable]:
            values = [towers.read(copy) for copy in variable.copies]
            variable.assign(tf.add_n(values) / len(values))
        return True


register_mode(Mode(name="local_sgd", manager=LocalSgd, reduction=Reduction.NONE, in_sync=False))
