"""Builds the update of a step: reduces the gradients, adds weight decay, and applies the optimizer.

Weight decay and clipping are first applied to the gradient (`VariableUpdatePlan`), except decay
that is a part of the update (`cnnbench.run.step.fused_decay`).

Every tower's loss contains the L2 loss of its own weights. So the reduced gradient contains the
gradient of the L2 loss once for "mean", and once per tower for "sum".
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cnnbench.base.job import cpu_of_device, is_cpu
from cnnbench.optimizers.clipping import CLIPPINGS, ClippedVariable
from cnnbench.plan import RunPlan
from cnnbench.run.step.batch_norm import update_moving_averages
from cnnbench.run.step.fused_decay import FusedSgdDecay
from cnnbench.run.step.loss_scale import Factor, LossScale, divide_by_scale, inverse_scale
from cnnbench.run.step.optimizer import Optimizer
from cnnbench.run.step.tower import TowerResult
from cnnbench.variable_mgr import gradients
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import Gradient, VariableGradients
from cnnbench.variable_mgr.towers import handles_read, read
from cnnbench.variable_mgr.tracing import current_traced_graph

_SHARING = frozenset({"Identity", "StopGradient", "Reshape", "ExpandDims", "Squeeze"})
"""Types of operations whose result uses the buffer of their first input."""


class Updater:
    """Reduces the gradients of a step, and updates the variables as `plan.exchange.update` says.

    Attributes:
      reduction_operations: number of operations that the variable manager has added between
        gradients and updates; None before the step is traced.

    Args:
      host: full name of the CPU of the process that calls the step.
      steps_done: number of completed steps, an int64 scalar, for fused decay and optimizers that
        take the number of the step; None if `__call__` always gets `count_before`.
    """

    def __init__(
        self,
        plan: RunPlan,
        manager: VariableMgr,
        optimizer: Optimizer,
        loss_scale: LossScale,
        host: str,
        steps_done: tf.Variable | None,
    ) -> None:
        self._manager = manager
        self._devices = manager.get_devices()
        self._trainables = [v for v in plan.network.spec.variables if v.trainable]
        self._optimizer = optimizer
        self._loss_scale = loss_scale
        self._host = host
        self._bn_stats = plan.params.bn_stats
        self._plan = update = plan.exchange.update
        self._steps_done = steps_done
        # Names of trainable variables. The keys are `Variable.ref()` of the copies that the
        # optimizer updates.
        self._names = {
            copy.ref(): v.name for v in self._trainables for copy in manager.updated(v.name).copies
        }
        decayed = [v.name for v in self._trainables if v.weight_decay]
        if update.decoupled_decay:
            for name in decayed:
                optimizer.set_decoupled_decay(manager.updated(name).copies, update.decoupled_decay)
        decayed = decayed if update.weight_decay else []
        # The variables with weight decay: one list for each device that applies updates.
        self._decayed = gradients.transpose_lists([manager.updated(n).copies for n in decayed])
        copies = list(itertools.chain.from_iterable(self._decayed))
        fused = update.fused and all(map(is_cpu, self._devices))
        self._added_late = set() if update.deferred or fused else {v.ref() for v in copies}
        if fused:
            assert steps_done is not None
            optimizer.fuse_decay(copies, FusedSgdDecay(update.decay, steps_done))
        towers = range(len(self._devices))
        self._read = {manager.variable(t, name).ref() for t in towers for name in decayed}
        self.reduction_operations: int | None = None

    def __call__(
        self,
        towers: Sequence[TowerResult],
        factor: Factor,
        sums: Sequence[tf.Tensor],
        rate: tf.Tensor,
        count_before: tf.Tensor | None = None,
    ) -> tuple[list[Any], tf.Tensor | None, list[tf.Tensor]]:
        """Builds the updates of a step from the results of its towers.

        The gradients contain the loss scale `factor`. `sums` are float32 scalars, sums over this
        step's towers. `rate` includes the plan's factor for learning rates. `count_before` is the
        number of updates before this step, an int64 scalar, if other steps update the same
        variables.

        Returns:
          The operations of the update; `StepResult.skipped`; `sums` over the whole job.
        """
        manager = self._manager
        self._tell_step(count_before)
        early, late = (factor, None) if self._plan.deferred else (None, factor)
        columns = self._columns(towers, early)
        graph = current_traced_graph()
        before = len(graph.get_operations())
        devices, state, totals = manager.reduce_gradients_and_sum(columns, sums)
        self.reduction_operations = len(graph.get_operations()) - before
        reduced = []
        for index, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f"apply_{index}"):
                reduced.append(manager.get_gradients_to_apply(index, state))
        guards, skipped, ops = self._loss_scale.find_skipped_updates(
            [[gradient for gradient, _ in one] for one in reduced]
        )
        readers = BufferReaderFinder(towers[0].loss.graph)
        rates = self._send_rate(rate, devices)
        for index, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f"apply_{index}"):
                inverse = inverse_scale(late)
                pairs = [
                    (readers.wait_for_readers(variable, final), variable)
                    for final, variable in self._final_gradients(reduced[index], inverse)
                ]
                ops += manager.append_apply_gradients(
                    self._optimizer, pairs, guards[index], device, learning_rate=rates[index]
                )
        ops += manager.after_updates()
        updates = [tower.updates for tower in towers]
        if self._plan.deferred:
            # Here, the gradients are from the previous step, but the moving averages are from this
            # one. So their guard is whether their own values are finite.
            values = [one.value for one in itertools.chain.from_iterable(updates)]
            real = [value for value in values if value.dtype.is_floating]
            guards = [self._loss_scale.guard(real)] * len(towers)
        ops += update_moving_averages(manager, updates, self._bn_stats, guards)
        return ops, skipped, totals

    def _tell_step(self, count_before: tf.Tensor | None) -> None:
        """Passes the number of the step to the optimizer, if its updates depend on it."""
        if not self._optimizer.takes_step:
            return
        with tf.device(self._host):
            if count_before is None:
                count_before = read(self._steps_done)
            self._optimizer.begin_step(count_before + 1)

    def weight_losses(self) -> list[tf.Tensor]:
        """Builds half the squared norm of every weight with decay, on the weight's device."""
        # All copies have equal norms, so one is enough: the first copy.
        groups = self._decayed[:1] if self._manager.replicas_in_sync else self._decayed
        variables = list(itertools.chain.from_iterable(groups))
        return gradients.map_on_devices(
            [variable.device for variable in variables],
            lambda variable: tf.nn.l2_loss(self._manager.read_for_weight_decay(variable)),
            variables,
        )

    def l2_loss(self, weight_losses: Sequence[tf.Tensor]) -> tf.Tensor:
        """Builds the L2 loss (mean over towers) from `weight_losses`, on the current device."""
        copies = 1 if self._manager.replicas_in_sync else len(self._devices)
        return tf.add_n(list(weight_losses)) * (self._plan.weight_decay / copies)

    def _columns(self, towers: Sequence[TowerResult], factor: Factor) -> list[VariableGradients]:
        """Collects the gradients of all towers by variable, divided by the loss scale `factor`."""
        inverses = gradients.map_on_devices(self._devices, inverse_scale, [factor] * len(towers))
        columns = []
        by_variable = gradients.transpose_lists([tower.gradients for tower in towers])
        for spec, of_towers in zip(self._trainables, by_variable, strict=True):
            pairs = list(zip(of_towers, inverses, strict=True))
            own = gradients.map_on_devices(self._devices, lambda p: divide_by_scale(*p), pairs)
            variables = [self._manager.variable(t, spec.name) for t in range(len(towers))]
            columns.append(self.prepare_for_reduction(VariableGradients(own, variables)))
        return columns

    def prepare_for_reduction(self, column: VariableGradients) -> VariableGradients:
        """Prepares a variable's gradients from all towers for the reduction.

        Adds L2 gradients if the plan adds them before the reduction. Otherwise, a weight that only
        affects its own L2 loss gets zeros as gradients.
        """
        if column.variables[0].ref() not in self._read:
            return column
        if self._plan.deferred:
            return column.map_gradients(self._devices, self._add_weight_decay)
        if self._manager.replicas_in_sync and any(g is not None for g in column.gradients):
            return column  # The reduction replaces each None by zeros.
        return column.map_gradients(
            self._devices,
            lambda gradient, variable: tf.zeros(variable.shape) if gradient is None else gradient,
        )

    def _add_weight_decay(self, gradient: Gradient, variable: tf.Variable) -> tf.Tensor:
        term = self._manager.read_for_weight_decay(variable) * self._plan.decay
        return term if gradient is None else gradients.to_dense(gradient, variable) + term

    def _final_gradients(
        self, reduced: Sequence[tuple[tf.Tensor, tf.Variable]], inverse: Factor
    ) -> list[tuple[tf.Tensor, tf.Variable]]:
        """Removes the loss scale from the gradients of one device, adds decay, and clips them."""
        finals = [self._final_gradient(*pair, inverse) for pair in reduced]
        variables = [variable for _, variable in reduced]
        if self._plan.clip:
            clipped = [ClippedVariable(self._names[v.ref()], v.device) for v in variables]
            for flag, bound in self._plan.clip.items():
                finals = CLIPPINGS[flag].clip(finals, clipped, bound)
        return list(zip(finals, variables, strict=True))

    def _final_gradient(
        self, gradient: tf.Tensor, variable: tf.Variable, inverse: Factor
    ) -> tf.Tensor:
        """Removes the loss scale from a reduced gradient, and adds decay."""
        with tf.device(variable.device):
            gradient = divide_by_scale(gradient, inverse)
            late = variable.ref() in self._added_late
            return self._add_weight_decay(gradient, variable) if late else gradient

    def _send_rate(self, rate: tf.Tensor, devices: Sequence[str]) -> list[tf.Tensor]:
        """Returns the learning rate as a tensor for each device. Every process receives it once."""
        by_home: dict[str, tf.Tensor] = {}
        for home in dict.fromkeys((self._host, *map(cpu_of_device, devices))):
            with tf.device(home):
                by_home[home] = tf.identity(by_home.get(self._host, rate))
        return [by_home[cpu_of_device(device)] for device in devices]


class BufferReaderFinder:
    """Finds the operations of a traced function that use the buffers of variables.

    A read of a variable (`cnnbench.variable_mgr.towers.read`) returns the variable's own buffer. If
    an update runs while an operation uses this buffer, the update first copies the whole variable;
    otherwise it works in place. TensorFlow only orders updates after reads, not after operations
    that use the result of a read. So updates here wait for these operations.

    Only updates of variables on CPUs wait, and only for operations on CPUs of the same task.
    Operations on a GPU or in another task have a copy, and waiting for each of these operations
    would need a signal between devices. Copying a variable within a GPU takes less time than these
    signals.
    """

    def __init__(self, graph: tf.Graph) -> None:
        handles = handles_read.get(graph, {})
        # Maps the name of a tensor to the handle of the variable whose buffer the tensor uses.
        values: dict[str, int] = {}
        self._readers: dict[int, list[tf.Operation]] = defaultdict(list)
        for operation in graph.get_operations():  # In topological order, so inputs come first.
            names = [tensor.name for tensor in operation.inputs]
            if operation.type == "ReadVariableOp" and names[0] in handles:
                values[operation.outputs[0].name] = handles[names[0]]
                continue
            for handle in {values[name] for name in names if name in values}:
                self._readers[handle].append(operation)
            if operation.type in _SHARING and names[0] in values:
                values[operation.outputs[0].name] = values[names[0]]

    def wait_for_readers(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Tensor:
        """Makes a gradient, and so an update, wait for operations that use a variable's buffer."""
        home = _cpu_task(variable.device)
        if home is None:
            return gradient
        # Operations whose device has no task run in the calling process, which is a worker or the
        # chief, not a ps task.
        near = {home} if home.startswith("ps:") else {home, ""}
        of_variable = self._readers.get(id(variable.handle), ())
        readers = [reader for reader in of_variable if _cpu_task(reader.device) in near]
        if not readers:
            return gradient
        waiting = tf.control_dependencies(group_dependencies(readers, variable.device))
        with tf.device(variable.device), waiting:
            return tf.identity(gradient, name="waiting")


def group_dependencies(operations: Sequence[Any], device: str) -> list[Any]:
    """Joins control dependencies for `device`, so that each other device sends only one signal."""
    if all(operation.device == device for operation in operations):
        return list(operations)
    return [tf.group(*operations)]  # tf.group joins them per device.


@functools.cache
def _cpu_task(device: str) -> str | None:
    """Returns the task of a CPU device, such as "ps:0" ("" if unnamed); None for a GPU."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type not in (None, "CPU"):
        return None
    return "" if spec.job in (None, "localhost") else f"{spec.job}:{spec.task}"
