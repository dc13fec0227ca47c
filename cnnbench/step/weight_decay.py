"""The L2 loss and its gradient.

Every tower's loss contains the L2 loss of its own weights, so under "mean" the reduced
gradient contains its gradient once, under "sum" once per tower. Adding it after the
reduction is the same and saves an operation per tower and variable. Where a manager
applies the gradients of the step before, that would mix the gradients of two steps: there
every tower adds it to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from cnnbench.models.spec import VariableSpec
from cnnbench.variable_mgr import gradients, tower_variable
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import Gradient

TowerGrads: TypeAlias = "list[list[tuple[Gradient, tf.Variable]]]"
# Per variable (by reference) half the squared norm of its weights.
WeightLosses: TypeAlias = "dict[Any, tf.Tensor]"


class WeightDecay:
    """The L2 term of one model under one manager.

    Args:
      manager: holds the variables.
      trainables: what is trained, in the order of every list of gradients.
      factor: of the L2 loss; 0 for none.
      reduction: "mean" or "sum" of the gradients over towers.
    """

    def __init__(
        self,
        manager: VariableMgr,
        trainables: Sequence[VariableSpec],
        factor: float,
        reduction: str,
    ) -> None:
        self._manager = manager
        self._devices = manager.get_devices()
        self._factor = factor
        self._decayed = [v for v in trainables if v.weight_decay and factor]
        self._refs = {
            manager.variable(tower, v.name).ref()
            for tower in range(len(self._devices))
            for v in self._decayed
        }
        summed = reduction == "sum" and manager.replicas_in_sync
        self._reduced_factor = factor * len(self._devices) if summed else factor

    def losses(self) -> WeightLosses:
        """Half the squared norm of every decayed weight, each on the weight's device."""
        # Replicas that are kept equal have equal norms; one of them will do.
        towers = [0] if self._manager.replicas_in_sync else range(len(self._devices))
        losses = {}
        for tower in towers:
            for spec in self._decayed:
                variable = self._manager.variable(tower, spec.name)
                with tf.device(variable.device):
                    losses[variable.ref()] = tf.nn.l2_loss(tower_variable.read(variable))
        return losses

    def total(self, losses: WeightLosses) -> tf.Tensor:
        """The L2 loss, the mean over towers, on the current device; `losses` is not empty."""
        copies = 1 if self._manager.replicas_in_sync else len(self._devices)
        return tf.add_n(list(losses.values())) * (self._factor / copies)

    def before_reduction(self, device_grads: TowerGrads) -> TowerGrads:
        """Makes sure that every decayed weight has a gradient, if only that of its L2 loss.

        Args:
          device_grads: per tower (gradient, variable) of every trainable.

        Returns:
          The same, with zeros where nothing but the L2 loss depends on a weight; complete
          with the L2 gradients where the manager defers gradients.
        """
        if not self._refs:
            return device_grads
        if self._manager.defers_gradients:
            return [
                [(self._added_by_tower(g, v, device), v) for g, v in pairs]
                for pairs, device in zip(device_grads, self._devices, strict=True)
            ]
        return [
            [
                (self._zeros_if_alone(pairs[i][0], column, device), pairs[i][1])
                for i, column in enumerate(zip(*device_grads, strict=True))
            ]
            for pairs, device in zip(device_grads, self._devices, strict=True)
        ]

    def after_reduction(
        self, gradient: tf.Tensor, variable: tf.Variable, losses: WeightLosses
    ) -> tf.Tensor:
        """The reduced gradient with that of the L2 loss, on the variable's device.

        Args:
          gradient: dense, float32.
          variable: what it is of.
          losses: the tensors made from the weights before they change.
        """
        if variable.ref() not in self._refs or self._manager.defers_gradients:
            return gradient
        loss = losses.get(variable.ref())
        # The update works in place only when nobody holds the old value any more.
        with (
            tf.device(variable.device),
            tf.control_dependencies([] if loss is None else [loss]),
        ):
            return gradient + tower_variable.read(variable) * self._reduced_factor

    def _added_by_tower(self, gradient: Gradient, variable: tf.Variable, device: str) -> Gradient:
        if variable.ref() not in self._refs:
            return gradient
        with tf.device(device):
            term = tower_variable.read(variable) * self._factor
            return term if gradient is None else gradients.dense(gradient, variable) + term

    def _zeros_if_alone(
        self, gradient: Gradient, column: Sequence[tuple[Gradient, tf.Variable]], device: str
    ) -> Gradient:
        variable = column[0][1]
        if gradient is not None or variable.ref() not in self._refs:
            return gradient
        if self._manager.replicas_in_sync and any(other is not None for other, _ in column):
            return None  # counts as zero in the reduction, which knows in what form
        with tf.device(device):
            return tf.zeros(variable.shape, variable.dtype)
