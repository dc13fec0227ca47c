"""The L2 loss and its gradient.

Every tower's loss contains the L2 loss of its own weights, so under "mean" the reduced
gradient contains its gradient once, under "sum" once per tower. Adding it after the
reduction is the same and saves an operation per tower and variable. Where a manager
applies the gradients of the step before, that would mix the gradients of two steps: there
every tower adds it to its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from cnnbench.models.spec import VariableSpec
from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import Column, Gradient

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
        decayed = [v.name for v in trainables if v.weight_decay and factor]
        # One list for each apply device.
        self._updated = gradients.transposed([manager.updated(name).copies for name in decayed])
        self._refs = {variable.ref() for group in self._updated for variable in group}
        self._read = {
            manager.variable(tower, name).ref()
            for tower in range(len(self._devices))
            for name in decayed
        }
        summed = reduction == "sum" and manager.replicas_in_sync
        self._reduced_factor = factor * manager.num_towers if summed else factor
        self._folded: set[Any] = set()

    def fold_into(self, fold: Callable[[tf.Variable, float], bool]) -> None:
        """Leaves the L2 gradient to the update of every variable for which that can be done.

        It cannot where the L2 gradient is not that of the weights just before the update.

        Args:
          fold: takes a variable and the factor of its value; see `Optimizer.fold_decay`.
        """
        if self._manager.defers_gradients or self._manager.stages_variables:
            return
        for variable in itertools.chain.from_iterable(self._updated):
            if fold(variable, self._reduced_factor):
                self._folded.add(variable.ref())

    def losses(self) -> WeightLosses:
        """Half the squared norm of every decayed weight, each on the weight's device."""
        # Replicas that are kept equal have equal norms; one of them will do.
        groups = self._updated[:1] if self._manager.replicas_in_sync else self._updated
        losses = {}
        for group in groups:
            for variable in group:
                with tf.device(variable.device):
                    losses[variable.ref()] = tf.nn.l2_loss(self._manager.decayed(variable))
        return losses

    def total(self, losses: WeightLosses) -> tf.Tensor:
        """The L2 loss, the mean over towers, on the current device; `losses` is not empty."""
        copies = 1 if self._manager.replicas_in_sync else len(self._devices)
        return tf.add_n(list(losses.values())) * (self._factor / copies)

    def before_reduction(self, columns: Sequence[Column]) -> list[Column]:
        """Makes sure that every decayed weight has a gradient, if only that of its L2 loss.

        Args:
          columns: of every trainable variable the gradient of each tower.

        Returns:
          The same, with zeros where nothing but the L2 loss depends on a weight; complete
          with the L2 gradients where the manager defers gradients.
        """
        return [
            self._completed(column) if column.variables[0].ref() in self._read else column
            for column in columns
        ]

    def after_reduction(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        """The reduced gradient with that of the L2 loss, on the variable's device.

        Args:
          gradient: dense, float32.
          variable: what it is of.
        """
        key = variable.ref()
        if key not in self._refs or key in self._folded or self._manager.defers_gradients:
            return gradient
        with tf.device(variable.device):
            return gradient + self._manager.decayed(variable) * self._reduced_factor

    def _completed(self, column: Column) -> Column:
        complete = _zeros_for_none
        if self._manager.defers_gradients:
            complete = self._with_decay
        elif self._manager.replicas_in_sync and any(g is not None for g in column.gradients):
            return column  # None counts as zero in the reduction, which knows in what form
        pairs = list(zip(*column, strict=True))
        return column._replace(gradients=gradients.on_devices(self._devices, complete, pairs))

    def _with_decay(self, pair: tuple[Gradient, tf.Variable]) -> tf.Tensor:
        gradient, variable = pair
        term = self._manager.decayed(variable) * self._factor
        return term if gradient is None else gradients.dense(gradient, variable) + term


def _zeros_for_none(pair: tuple[Gradient, tf.Variable]) -> Gradient:
    gradient, variable = pair
    return tf.zeros(variable.shape) if gradient is None else gradient
