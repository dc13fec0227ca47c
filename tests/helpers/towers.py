"""Gradients written tower by tower, of which the code under test takes columns.

In the step of `one_step` the loss of tower t is a bowl: the sum over variables of a_t/2 |w - c_t|²,
so its gradient is a_t (w - c_t) and depends on the weights of the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.flags import Params
from cnnbench.optimizers import OPTIMIZERS
from cnnbench.run.step.optimizer import Optimizer
from cnnbench.variable_mgr import gradients, stages
from cnnbench.variable_mgr.gradients import VariableGradients


def columns_of(device_grads: Sequence[Sequence[tuple[Any, Any]]]) -> list[VariableGradients]:
    """Columns of device_grads[tower][index], which are (gradient, variable)."""
    return [
        VariableGradients([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        for pairs in gradients.transpose_lists(device_grads)
    ]


def trained(manager: Any, tower: int) -> list[Any]:
    """The trainable variables that a tower uses, in creation order."""
    copies = [facade.copy(tower) for facade in manager.savable_variables().values()]
    return [variable for variable in copies if variable.trainable]


class ByTower:
    """A stage, its inverse or a reducer for tensors[tower][index]."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    def __call__(self, tensors: Sequence[Sequence[Any]]) -> Any:
        columns = gradients.transpose_lists(tensors)
        result = self.made(columns)
        if not isinstance(result, tuple):
            return _by_tower(result, len(tensors))
        sent, inverse = result
        return _by_tower(sent, len(tensors)), ByTower(inverse)


def run_through(made: Any, tensors: Sequence[Sequence[Any]], reduce: Any) -> Any:
    """`stages.reduce_through_stages` of tensors[tower][index]."""
    through = stages.reduce_through_stages
    return ByTower(lambda columns: through(made, columns, reduce))(tensors)


def _by_tower(columns: Sequence[Sequence[Any]], towers: int) -> list[list[Any]]:
    return [[column[tower] for column in columns] for tower in range(towers)]


def curvature(tower):
    return 0.25 * (tower + 1)


def centre(tower, index):
    return 3.0 * tower - index + 0.5


def tower_gradients(manager, tower, variables, skip=(), spoil=()):
    """Gradients of one tower's loss, taken as the train step takes them.

    The loss leaves out variable i of tower t for (t, i) in `skip`, and is NaN by those in `spoil`.
    """
    values = {}
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        loss = tf.constant(0.0)
        for index, variable in enumerate(variables):
            value = values[variable.name] = manager.read(tower, variable.name, tf.float32)
            tape.watch(value)
            if (tower, index) not in skip:
                distance = value - centre(tower, index)
                factor = float("nan") if (tower, index) in spoil else 0.5 * curvature(tower)
                loss += factor * tf.reduce_sum(distance**2)
    return loss, tape.gradient(loss, list(values.values()))


def one_step(manager, optimizer, variables, rate, guard=None, **how):
    """One training step as the driver makes it; returns each tower's loss."""
    losses, device_grads = [], []
    for tower, device in enumerate(manager.get_devices()):
        with tf.device(device):
            loss, grads = tower_gradients(manager, tower, variables, **how)
        owned = trained(manager, tower)
        device_grads.append(list(zip(grads, owned, strict=True)))
        losses.append(loss)
    apply_devices, state = manager.preprocess_device_grads(columns_of(device_grads))
    updates = []
    for index, device in enumerate(apply_devices):
        with tf.device(device):
            pairs = manager.get_gradients_to_apply(index, state)
            updates += manager.append_apply_gradients(
                optimizer, pairs, guard, device, learning_rate=rate
            )
    updates += manager.after_updates()
    with tf.control_dependencies(updates):
        return [tf.identity(loss) for loss in losses]


def optimizer_of(name, **flags):
    """The optimizer of that name, with constants that differ from the defaults of their flags."""
    spec = OPTIMIZERS[name]
    return Optimizer(spec, spec.values(Params(optimizer=name, **flags)))


def create_slots(manager, optimizer):
    for group in manager.updated_groups():
        optimizer.create_slots(group)
