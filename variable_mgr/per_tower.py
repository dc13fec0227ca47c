"""The modes of --variable_update with a copy of every variable per tower."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.aggregation.aggregator import Aggregator
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import Column, Gradient
from cnnbench.variable_mgr.registry import register
from cnnbench.variable_mgr.spec import VariableLike, VariableMgrSpec
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
                    value = self._initial_value(variable, 0 if self.replicas_in_sync else tower)
            with tf.device(device):
                copies.append(
                    tf.Variable(
                        value, trainable=variable.trainable, name=f"v{tower}/{variable.name}"
                    )
                )
        return TowerVariable(variable.name, copies)


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


@register("distributed_all_reduce")
class DistributedAllReduceVariableMgr(ReplicatedVariableMgr):
    """Like replicated, over all towers of the job, with algorithms by size and in two levels.

    Raises:
      FlagError: an all-reduce algorithm cannot work with the devices.
    """


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
