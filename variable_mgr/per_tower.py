"""The modes of --variable_update with a copy of every variable per tower."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.aggregation.aggregator import Aggregator
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import Column, Gradient
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
from cnnbench.variable_mgr.tower_variable import TowerVariable


class PerTowerVariableMgr(VariableMgr):
    """Keeps copy t of a variable on the device of tower t, named "v<t>/<name>".

    Every tower applies gradients to its own copies.
    """

    def _create(self, variable: VariableLike) -> TowerVariable:
        copies = []
        value = None
        for tower, device in enumerate(self._spec.devices):
            if value is None or not self.replicas_in_sync:
                with tf.device(self._spec.cpu_device):
                    value = self._initial_value(variable, 0 if self.replicas_in_sync else tower)
            with tf.device(device):
                copies.append(
                    tf.Variable(
                        value, trainable=variable.trainable, name=f"v{tower}/{variable.name}"
                    )
                )
        return TowerVariable(variable.name, copies)


class ReplicatedVariableMgr(PerTowerVariableMgr):
    """All towers of the job start equal, aggregate their gradients and apply the same update.

    Of `replicated`, `distributed_all_reduce` and `collective_all_reduce`: in the last, every worker
    has an object of this class with the copies of its own towers.

    Raises:
      FlagError: an all-reduce algorithm cannot work with the devices.
    """

    def __init__(self, spec: VariableMgrSpec, variables: Sequence[VariableLike]) -> None:
        super().__init__(spec, variables)
        self._aggregate = Aggregator(spec)

    @property
    def defers_gradients(self) -> bool:
        """See `VariableMgr.defers_gradients`; with --variable_consistency=relaxed."""
        return self._spec.aggregation.relaxed

    def preprocess_device_grads(self, columns: Sequence[Column]) -> tuple[list[str], list[Column]]:
        """See `VariableMgr.preprocess_device_grads`; the aggregation is in the spec."""
        return list(self._spec.devices), self._aggregate(columns)


class IndependentVariableMgr(PerTowerVariableMgr):
    """Towers start differently and never exchange anything.

    The gradient reduction has no meaning here: each tower applies its own gradient.
    """

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
