"""The updates of a step: reduced, completed and applied as planned.

Every tower's loss contains the L2 loss of its own weights, so the reduced gradient contains its
gradient once under "mean", once per tower under "sum".

A read of a variable returns the variable's own buffer. An update that runs while an operation holds
that buffer copies the whole variable first; one that waits works in place. TensorFlow orders
updates behind reads only, not behind the readers of what was read, so updates here wait for these.

Only variables on CPUs wait, and only for readers on CPUs of their task. Readers on a GPU or in
another task hold a copy; waiting for each of them would take a signal between devices. Copying a
variable within a GPU costs less than these signals.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.base.jobs.devices import cpu_of, is_cpu
from cnnbench.models.spec import VariableSpec
from cnnbench.run.step.batch_norm_stats import update_moving_averages
from cnnbench.run.step.clipping import CLIPPINGS
from cnnbench.run.step.fused_decay import FusedDecay
from cnnbench.run.step.loss_scale import Factor, LossScale, inverse_of, unscaled
from cnnbench.run.step.optimizers import Optimizer
from cnnbench.run.step.tower import StepConfig, TowerResult
from cnnbench.variable_mgr import gradients, tower_variable
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import Column, Gradient
from cnnbench.variable_mgr.kept import traced_graph

_NO_LIMIT = 2**63 - 1
_SHARING = frozenset({"Identity", "StopGradient", "Reshape", "ExpandDims", "Squeeze"})
"""Operations whose result is the buffer of their first input."""


class Updater:
    """Executes `StepConfig.update` inside the traced step.

    `steps_done` is the number of the step, an int64 scalar, on which fused decay depends.
    `reduction_operations` counts the operations that the manager added between gradients and
    updates; None before the step is traced.
    """

    def __init__(
        self,
        manager: VariableMgr,
        trainables: Sequence[VariableSpec],
        optimizer: Optimizer,
        loss_scale: LossScale,
        config: StepConfig,
        steps_done: tf.Variable | None,
    ) -> None:
        self._manager = manager
        self._devices = manager.get_devices()
        self._trainables = trainables
        self._optimizer = optimizer
        self._loss_scale = loss_scale
        self._config = config
        self._plan = plan = config.update
        decayed = [v.name for v in trainables if v.weight_decay]
        if plan.decoupled_decay:
            for name in decayed:
                optimizer.decay(manager.updated(name).copies, plan.decoupled_decay)
        decayed = decayed if plan.weight_decay else []
        # One list for each apply device.
        self._decayed = gradients.transposed([manager.updated(name).copies for name in decayed])
        copies = list(itertools.chain.from_iterable(self._decayed))
        fused = plan.fused and all(map(is_cpu, self._devices))
        self._added_late = set() if plan.deferred or fused else {v.ref() for v in copies}
        if fused:
            assert steps_done is not None
            optimizer.fuse_decay(copies, FusedDecay(plan.decay, steps_done))
        towers = range(len(self._devices))
        self._read = {manager.variable(t, name).ref() for t in towers for name in decayed}
        self.reduction_operations: int | None = None

    def __call__(
        self,
        towers: Sequence[TowerResult],
        factor: Factor,
        sums: Sequence[tf.Tensor],
        rate: tf.Tensor,
    ) -> tuple[list[Any], tf.Tensor | None, list[tf.Tensor]]:
        """Ops that change model and optimizer, `StepResult.skipped`, and `sums` of the whole job.

        The gradients have the loss scale `factor`; `sums` are float32 scalars over this step's
        towers; `rate` has the factor of the plan.
        """
        manager = self._manager
        early, late = (factor, None) if self._plan.deferred else (None, factor)
        columns = self._columns(towers, early)
        graph = traced_graph()
        before = len(graph.get_operations())
        devices, state, totals = manager.reduce_together(columns, sums)
        self.reduction_operations = len(graph.get_operations()) - before
        reduced = []
        for index, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f"apply_{index}"):
                reduced.append(manager.get_gradients_to_apply(index, state))
        guards, skipped, ops = self._loss_scale.judge(
            [[gradient for gradient, _ in one] for one in reduced]
        )
        readers = Readers(towers[0].loss.graph)
        rates = self._rates(rate, devices)
        for index, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f"apply_{index}"):
                inverse = inverse_of(late)
                variables = [variable for _, variable in reduced[index]]
                finals = [self._finished(*pair, inverse) for pair in reduced[index]]
                for flag, bound in self._plan.clip.items():
                    finals = CLIPPINGS[flag](finals, [v.device for v in variables], bound)
                pairs = [
                    (readers.before_update(variable, final), variable)
                    for final, variable in zip(finals, variables, strict=True)
                ]
                ops += manager.append_apply_gradients(
                    *(self._optimizer, pairs, guards[index], device),
                    learning_rate=rates[index],
                )
        ops += manager.after_updates()
        moments = [tower.moments for tower in towers]
        if self._plan.deferred:
            # The judged gradients are of the previous step, the moments of this one.
            layers = itertools.chain.from_iterable(moments)
            found = [x for layer in layers for x in (layer.batch_mean, layer.batch_variance)]
            guards = [self._loss_scale.guard(found)] * len(towers)
        ops += update_moving_averages(manager, moments, self._config.bn_stats, guards)
        return ops, skipped, totals

    def weight_losses(self) -> list[tf.Tensor]:
        """Half the squared norm of every decayed weight, each on the weight's device."""
        # Equal replicas have equal norms; one is enough.
        groups = self._decayed[:1] if self._manager.replicas_in_sync else self._decayed
        losses = []
        for variable in itertools.chain.from_iterable(groups):
            with tf.device(variable.device):
                losses.append(tf.nn.l2_loss(self._manager.decayed(variable)))
        return losses

    def l2_loss(self, weight_losses: Sequence[tf.Tensor]) -> tf.Tensor:
        """The L2 loss, the mean over towers, on the current device."""
        copies = 1 if self._manager.replicas_in_sync else len(self._devices)
        return tf.add_n(list(weight_losses)) * (self._plan.weight_decay / copies)

    def _columns(self, towers: Sequence[TowerResult], factor: Factor) -> list[Column]:
        inverses = gradients.on_devices(self._devices, inverse_of, [factor] * len(towers))
        columns = []
        by_variable = gradients.transposed([tower.gradients for tower in towers])
        for spec, of_towers in zip(self._trainables, by_variable, strict=True):
            pairs = list(zip(of_towers, inverses, strict=True))
            own = gradients.on_devices(self._devices, lambda pair: unscaled(*pair), pairs)
            variables = [self._manager.variable(t, spec.name) for t in range(len(towers))]
            columns.append(self.before_reduction(Column(own, variables)))
        return columns

    def before_reduction(self, column: Column) -> Column:
        """A column with the towers' L2 gradients added, if the plan adds them here.

        Otherwise a decayed weight on which only its L2 loss depends gets zeros.
        """
        if column.variables[0].ref() not in self._read:
            return column
        if self._plan.deferred:
            return column.mapped(self._devices, self._with_decay)
        if self._manager.replicas_in_sync and any(g is not None for g in column.gradients):
            return column  # the reduction makes zeros of None in the right form
        return column.mapped(
            self._devices,
            lambda gradient, variable: tf.zeros(variable.shape) if gradient is None else gradient,
        )

    def _with_decay(self, gradient: Gradient, variable: tf.Variable) -> tf.Tensor:
        term = self._manager.decayed(variable) * self._plan.decay
        return term if gradient is None else gradients.dense(gradient, variable) + term

    def _finished(self, gradient: tf.Tensor, variable: tf.Variable, inverse: Factor) -> tf.Tensor:
        """A reduced gradient without loss scale and with decay, on its variable's device."""
        with tf.device(variable.device):
            gradient = unscaled(gradient, inverse)
            late = variable.ref() in self._added_late
            return self._with_decay(gradient, variable) if late else gradient

    def _rates(self, rate: tf.Tensor, devices: Sequence[str]) -> list[tf.Tensor]:
        """The learning rate for the updates on each device, sent once to every process."""
        host = self._config.host
        by_home = {host: _copy(host, rate)}
        for home in map(cpu_of, devices):
            if home not in by_home:
                by_home[home] = _copy(home, by_home[host])
        return [by_home[cpu_of(device)] for device in devices]


def _copy(device: str, tensor: tf.Tensor) -> tf.Tensor:
    with tf.device(device):
        return tf.identity(tensor)


class Readers:
    """Readers of variables in the function being traced, whose graph has `tower_variable.read`s."""

    def __init__(self, graph: tf.Graph) -> None:
        handles = tower_variable.handles_read(graph)
        # Handle of the variable whose buffer a tensor is, by the tensor's name.
        values: dict[str, int] = {}
        self._readers: dict[int, list[tf.Operation]] = defaultdict(list)
        for operation in graph.get_operations():  # in topological order
            names = [tensor.name for tensor in operation.inputs]
            if operation.type == "ReadVariableOp" and names[0] in handles:
                values[operation.outputs[0].name] = handles[names[0]]
                continue
            for handle in {values[name] for name in names if name in values}:
                self._readers[handle].append(operation)
            if operation.type in _SHARING and names[0] in values:
                values[operation.outputs[0].name] = values[names[0]]

    def before_update(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Tensor:
        """The gradient, with dependencies on all readers that share the variable's buffer."""
        home = _host(variable.device)
        if home is None:
            return gradient
        # Operations without a task run in the caller, which has no variables of a ps.
        near = {home} if home.startswith("ps:") else {home, ""}
        of_variable = self._readers.get(id(variable.handle), ())
        readers = [reader for reader in of_variable if _host(reader.device) in near]
        if not readers:
            return gradient
        waiting = tf.control_dependencies(signals(readers, variable.device))
        with tf.device(variable.device), waiting:
            return tf.identity(gradient, name="waiting")


def signals(operations: Sequence[Any], device: str) -> list[Any]:
    """Dependencies for a device, so that each other device sends it one signal."""
    if all(operation.device == device for operation in operations):
        return list(operations)
    return [tf.group(*operations)]  # makes one operation per device


@functools.cache
def _host(device: str) -> str | None:
    """The task in whose memory a device computes, such as ps:0; None for a GPU, "" if unnamed."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type not in (None, "CPU"):
        return None
    return "" if spec.job in (None, "localhost") else f"{spec.job}:{spec.task}"


class UpdateCounter:
    """Counts asynchronous updates of shared variables.

    A worker reads the count before it reads the variables and increments it after it has updated
    them. The staleness of its update is the number of increments in between, as in Dai et al.,
    "Toward understanding the impact of staleness in distributed machine learning", ICLR 2019.
    """

    def __init__(self, device: str) -> None:
        with tf.device(device):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates_done")

    def resume(self, count: int) -> None:
        """Sets the number of updates so far."""
        self._count.assign(count)

    def begin(self) -> tf.Tensor:
        """The count so far, an int64 scalar, read before any variable."""
        return tower_variable.read(self._count)

    def end(self, begun: tf.Tensor, updates: Sequence[Any] = ()) -> tf.Tensor:
        """Counts an update after all its assignments; returns its staleness, an int64 scalar.

        `begun` is what `begin` returned in the same step.
        """
        home = self._count.device
        with tf.device(home), tf.control_dependencies(signals(updates, home)):
            # In one operation, so that no two updates get the same number.
            before = tf.raw_ops.ResourceCountUpTo(
                resource=self._count.handle, limit=_NO_LIMIT, T=tf.int64
            )
            return before - begun
