"""The update of variables by aggregated gradients.

With weight w, gradient g, decay d and learning rate r, an update is w (1 - r d) - r g. Computing
g + d w would need additional passes over memory. The proximal step of Duchi and Singer, "Efficient
online and batch learning using forward backward splitting", JMLR 10, 2009, works in place: it is
(w - a g) / (1 + x), which is the same update for a = r (1 + x) and x = 1 / (1 - r d) - 1.

In float32, 1 + x is a multiple of 2^-23, and x is 4e-8 to 4e-6 for usual r and d. If x was rounded
in the same direction in every step, the decay would be up to twice as large, or zero. Each step
therefore uses a multiple of a quantum q, which is exact in float32:

    x_t = q floor(x / q + frac(t φ)),  φ = (sqrt(5) - 1) / 2

for the global step t. By Weyl's theorem, the mean of x_t over steps is x for any irrational φ. With
the golden ratio, sums of x_t remain closest to the exact decay. There is no state except t, so a
resumed run continues bit for bit. The relative difference between a weight and its value with exact
decay is at most a few q.

If x is at least `PIECE`, q is 2^-23, otherwise q is `PIECE`. So no step divides by less than
1 + `PIECE`: a change of a weight is rounded to units in the weight's last place, which is too
coarse for a change of few units (with pieces of 2^-20, the decay of some mantissas is 3 % off).
With larger pieces, the mean would be exact only over more steps. Steps with x_t = 0 are updates of
plain SGD, without the division, which is a second pass over w.

An optimizer is an operation or a function. An operation updates a variable and its slots in the
variable's dtype. A function computes in float32, and its step is subtracted in place, so that no
asynchronous update is lost. Weight decay and clipping are first applied to the gradient
(`VariableUpdatePlan`), except decay that is a part of the update.

Every tower's loss contains the L2 loss of its own weights. So the reduced gradient contains the
gradient of the L2 loss once for "mean", and once per tower for "sum".

A read of a variable returns the variable's own buffer. If an update runs while an operation uses
this buffer, the update first copies the whole variable; otherwise it works in place. TensorFlow
only orders updates after reads, not after operations that use the result of a read. So updates here
wait for these operations.

Only updates of variables on CPUs wait, and only for operations on CPUs of the same task. Operations
on a GPU or in another task have a copy, and waiting for each of these operations would need a
signal between devices. Copying a variable within a GPU takes less time than these signals.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.base.job import cpu_of_device, is_cpu
from cnnbench.optimizers.clipping import CLIPPINGS, ClippedVariable
from cnnbench.optimizers.registry import AVERAGE, OptimizerSpec
from cnnbench.plan.run_plan import RunPlan
from cnnbench.run.step.tower import (
    Factor,
    LossScale,
    TowerResult,
    divide_by_scale,
    inverse_scale,
    update_moving_averages,
)
from cnnbench.variable_mgr import gradients, towers
from cnnbench.variable_mgr import towers as tower_variable
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import (
    Gradient,
    VariableGradients,
    cast,
    current_traced_graph,
)

# Weight decay as a part of SGD's update on CPUs.

PIECE = 2.0**-18
"""Smallest decay in a step with decay, as a share of the weight."""

_ULP = 2.0**-23
"""Distance between neighbouring float32 numbers above 1."""
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class FusedSgdDecay:
    """Updates variables by SGD with weight decay, in place (see the docstring of the module).

    Args:
      decay: d in the module's description.
      steps_done: t in the module's description, an int64 scalar.
    """

    def __init__(self, decay: float, steps_done: tf.Variable) -> None:
        self._decay = decay
        self._steps_done = steps_done

    def apply(self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]], rate: tf.Tensor) -> list[Any]:
        """Updates each variable on its device. Returns tensors that depend on the updates.

        Args:
          pairs: float32 gradients without decay, and float32 variables on CPUs.
          rate: learning rate, a float32 scalar.
        """
        by_device: dict[str, list[tuple[tf.Tensor, tf.Variable]]] = {}
        for gradient, variable in pairs:
            by_device.setdefault(variable.device, []).append((gradient, variable))
        ends = []
        for device, there in by_device.items():
            with tf.device(device):
                ends.append(_apply_sgd(there, rate, self._compute_decay_of_step(rate)))
        return ends

    def _compute_decay_of_step(self, rate: tf.Tensor) -> tf.Tensor:
        """The decay x_t of the current step, a float32 scalar (see the docstring of the module)."""
        product = tf.cast(rate, tf.float64) * self._decay
        kept_share = 1.0 - product
        # A divisor of 0 is replaced by 2^-24, which is below the precision of float32.
        exact = product / tf.where(kept_share == 0.0, tf.constant(2.0**-24, tf.float64), kept_share)
        phase = tf.cast(towers.read(self._steps_done), tf.float64) * _GOLDEN
        quantum = tf.where(exact < PIECE, tf.constant(PIECE, tf.float64), _ULP)
        return tf.cast(quantum * tf.floor(exact / quantum + (phase - tf.floor(phase))), tf.float32)


def _signal_completion(updates: Iterable[Any]) -> tf.Tensor:
    with tf.control_dependencies(list(updates)):
        return tf.constant(True)


def _apply_sgd(
    pairs: Sequence[tuple[tf.Tensor, tf.Variable]], rate: tf.Tensor, piece: tf.Tensor
) -> tf.Tensor:
    """Updates variables by SGD with the decay x_t (`piece`), or by plain SGD if it is 0."""

    def decayed() -> tf.Tensor:
        alpha = rate * (1.0 + piece)
        return _signal_completion(
            tf.raw_ops.ResourceApplyProximalGradientDescent(
                var=variable.handle, alpha=alpha, l1=0.0, l2=piece / alpha, delta=gradient
            )
            for gradient, variable in pairs
        )

    def plain() -> tf.Tensor:
        return _signal_completion(
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            for gradient, variable in pairs
        )

    return tf.cond(tf.not_equal(piece, 0.0), decayed, plain)


# Optimizers, whose updates are one of TensorFlow's fused operations, or a function.


class Optimizer:
    """Updates variables in place by an optimizer, and stores the optimizer's slots.

    Args:
      spec: declaration of the optimizer.
      values: values of the optimizer's flags (`spec.flags`).
      average_decay: decay of moving averages. If it is above 0, every variable has a moving
        average, which is one of its slots.
    """

    def __init__(
        self, spec: OptimizerSpec, values: Mapping[str, float], average_decay: float = 0.0
    ) -> None:
        self._spec = spec
        self._average_decay = average_decay
        self._constants = {
            **spec.fixed,
            **{argument: values[constant.flag] for argument, constant in spec.constants.items()},
        }
        self._bases = {
            argument: values[constant.flag] for argument, constant in spec.powers.items()
        }
        self._slots: dict[tuple[str, Any], tf.Variable] = {}
        self._groups: list[dict[str, tf.Variable]] = []
        self._group_of: dict[Any, int] = {}
        self._fused_decay: FusedSgdDecay | None = None
        self._decayed: set[Any] = set()
        self._decay: dict[Any, float] = {}
        self._step: tf.Tensor | None = None

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Creates the slots of one group of variables, outside of traced functions.

        It is called once for each set of variables that `apply_gradients` gets together: once for
        shared variables, otherwise once per tower. An empty group is ignored.
        """
        if not variables:
            return
        for variable in variables:
            self._group_of[variable.ref()] = len(self._groups)
            with tf.device(variable.device):
                values = {
                    slot.name: tf.fill(variable.shape, tf.constant(slot.initial, variable.dtype))
                    for slot in self._spec.slots
                }
                if self._average_decay:
                    values[AVERAGE] = towers.read(variable)
                for slot_name, value in values.items():
                    name = f"{variable.name.split(':')[0]}/{slot_name}"
                    slot = tf.Variable(value, trainable=False, name=name)
                    self._slots[slot_name, variable.ref()] = slot
        with tf.device(variables[0].device):
            self._groups.append(
                {
                    name: tf.Variable(
                        base, dtype=tf.float32, trainable=False, name=f"optimizer/{name}"
                    )
                    for name, base in self._bases.items()
                }
            )

    @property
    def takes_step(self) -> bool:
        """Whether updates depend on the number of the step."""
        return self._spec.takes_step

    def begin_step(self, number: tf.Tensor) -> None:
        """Sets the number of the step whose updates are traced next: an int64 scalar, from 1."""
        self._step = number

    def fuse_decay(self, variables: Iterable[tf.Variable], decay: FusedSgdDecay) -> None:
        """Makes `decay` run the updates of `variables`, for an optimizer that is plain SGD."""
        self._fused_decay = decay
        self._decayed = {variable.ref() for variable in variables}

    def set_decoupled_decay(self, variables: Iterable[tf.Variable], factor: float) -> None:
        """Makes updates of `variables` apply decoupled weight decay, as in AdamW."""
        self._decay.update({variable.ref(): factor for variable in variables})

    def slot_variables(self) -> dict[tuple[str, Any], tf.Variable]:
        """Returns all slots, by (slot name, `Variable.ref()` of the variable)."""
        return dict(self._slots)

    def shared_variables(self) -> dict[str, list[tf.Variable]]:
        """Scalar state of the optimizer by name, with one scalar for each group of variables."""
        return {name: [group[name] for group in self._groups] for name in self._bases}

    def apply_gradients(
        self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]], learning_rate: tf.Tensor
    ) -> list[Any]:
        """Updates variables with their dense gradients. Returns the operations of the updates.

        Each variable is updated on its own device.
        """
        ops = []
        updated = [variable for _, variable in pairs] if self._average_decay else []
        if self._fused_decay is not None:
            decayed = [pair for pair in pairs if pair[1].ref() in self._decayed]
            ops += self._fused_decay.apply(decayed, learning_rate)
            pairs = [pair for pair in pairs if pair[1].ref() not in self._decayed]
        rates = {tf.float32: learning_rate}
        # Each power, such as Adam's beta^t, is read only once for all variables of a group.
        powers: dict[int, dict[str, tf.Tensor]] = {}
        for gradient, variable in pairs:
            # Update functions compute in float32, operations in the variable's dtype.
            dtype = variable.dtype if self._spec.update is None else tf.float32
            if dtype not in rates:
                rates[dtype] = tf.cast(learning_rate, dtype)
            number = self._group_of[variable.ref()]
            with tf.device(variable.device):
                if number not in powers:
                    powers[number] = {
                        n: towers.read(power) for n, power in self._groups[number].items()
                    }
                constants = {**powers[number], **self._constants}
                ops += self._update_variable(
                    cast(gradient, dtype), variable, rates[dtype], constants
                )
        ops.extend(self._advance_powers(powers))
        ops = [op for op in ops if op is not None]
        with tf.control_dependencies(ops):
            ops += [op for op in map(self._update_average, updated) if op is not None]
        return ops

    def _update_average(self, variable: tf.Variable) -> Any:
        """Updates a variable's moving average with its new value. Returns the operation."""
        with tf.device(variable.device):
            average = self._slots[AVERAGE, variable.ref()]
            distance = towers.read(average) - towers.read(variable)
            return tf.raw_ops.AssignSubVariableOp(
                resource=average.handle, value=(1.0 - self._average_decay) * distance
            )

    def _update_variable(
        self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor, arguments: dict[str, Any]
    ) -> list[Any]:
        """Updates one variable and its slots. Returns the operations."""
        spec = self._spec
        slots = {s.argument: self._slots[s.name, variable.ref()] for s in spec.slots}
        if spec.update is None:
            arguments |= {name: slot.handle for name, slot in slots.items()}
            arguments |= {"var": variable.handle, spec.rate: rate, spec.gradient: gradient}
            return [getattr(tf.raw_ops, spec.operation)(**arguments)]
        for name, slot in slots.items():
            arguments[name] = cast(towers.read(slot), tf.float32)
        if spec.decoupled:
            arguments["decay"] = self._decay.get(variable.ref(), 0.0)
        if spec.takes_step:
            arguments["step"] = self._step
        weight = cast(towers.read(variable), tf.float32)
        step, *states = spec.update(weight=weight, gradient=gradient, rate=rate, **arguments)
        # Methods of a strategy's variables depend on the calling scope; raw operations do not.
        ops = [
            tf.raw_ops.AssignVariableOp(resource=slot.handle, value=cast(state, slot.dtype))
            for slot, state in zip(slots.values(), states, strict=True)
        ]
        change = cast(step, variable.dtype)
        return [*ops, tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change)]

    def _advance_powers(self, powers: Mapping[int, Mapping[str, tf.Tensor]]) -> list[Any]:
        """Multiplies powers of constants, such as Adam's beta^t, by their bases.

        Returns the operations, which run after all updates, because updates read the powers.
        """
        ops = []
        for number, of_group in powers.items():
            for name, base in self._bases.items():
                power = self._groups[number][name]
                with tf.device(power.device):
                    ops.append(power.assign(of_group[name] * base, read_value=False))
        return ops


def make_optimizer(plan: RunPlan, manager: VariableMgr) -> Optimizer:
    """Creates the optimizer of a run, with its slots for all variables of `manager`."""
    declared, params = plan.numerics.optimizer_spec, plan.params
    optimizer = Optimizer(declared, declared.values(params), params.ema_decay)
    for variables in manager.updated_groups():
        optimizer.create_slots(variables)
    return optimizer


# The updates of a step: gradients are reduced, decay is added, and the optimizer is applied.

_NO_LIMIT = 2**63 - 1
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
        # Names of trained variables by `Variable.ref()` of the copies that are updated.
        self._names = {
            copy.ref(): v.name for v in self._trainables for copy in manager.updated(v.name).copies
        }
        decayed = [v.name for v in self._trainables if v.weight_decay]
        if update.decoupled_decay:
            for name in decayed:
                optimizer.set_decoupled_decay(manager.updated(name).copies, update.decoupled_decay)
        decayed = decayed if update.weight_decay else []
        # The variables with weight decay: one list for each device that applies updates.
        self._decayed = gradients.transpose_lists(
            [manager.updated(name).copies for name in decayed]
        )
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
        self._number_step(count_before)
        early, late = (factor, None) if self._plan.deferred else (None, factor)
        columns = self._collect_gradients_by_variable(towers, early)
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
        rates = self._send_rate_to_devices(rate, devices)
        for index, device in enumerate(devices):
            with tf.device(device), tf.name_scope(f"apply_{index}"):
                inverse = inverse_scale(late)
                pairs = [
                    (readers.wait_for_readers(variable, final), variable)
                    for final, variable in self._final_gradients(reduced[index], inverse)
                ]
                ops += manager.append_apply_gradients(
                    *(self._optimizer, pairs, guards[index], device),
                    learning_rate=rates[index],
                )
        ops += manager.after_updates()
        updates = [tower.updates for tower in towers]
        if self._plan.deferred:
            # Gradients are from the previous step here, but moving averages are from this step.
            values = [one.value for one in itertools.chain.from_iterable(updates)]
            real = [value for value in values if value.dtype.is_floating]
            guards = [self._loss_scale.guard(real)] * len(towers)
        ops += update_moving_averages(manager, updates, self._bn_stats, guards)
        return ops, skipped, totals

    def _number_step(self, count_before: tf.Tensor | None) -> None:
        """Tells the optimizer the number of the step, if the optimizer takes it."""
        if not self._optimizer.takes_step:
            return
        with tf.device(self._host):
            if count_before is None:
                count_before = tower_variable.read(self._steps_done)
            self._optimizer.begin_step(count_before + 1)

    def weight_losses(self) -> list[tf.Tensor]:
        """Builds half the squared norm of every weight with decay, on the weight's device."""
        # Equal copies have equal norms, so only the first copy is used.
        groups = self._decayed[:1] if self._manager.replicas_in_sync else self._decayed
        losses = []
        for variable in itertools.chain.from_iterable(groups):
            with tf.device(variable.device):
                losses.append(tf.nn.l2_loss(self._manager.read_for_weight_decay(variable)))
        return losses

    def l2_loss(self, weight_losses: Sequence[tf.Tensor]) -> tf.Tensor:
        """Builds the L2 loss (mean over towers) from `weight_losses`, on the current device."""
        copies = 1 if self._manager.replicas_in_sync else len(self._devices)
        return tf.add_n(list(weight_losses)) * (self._plan.weight_decay / copies)

    def _collect_gradients_by_variable(
        self, towers: Sequence[TowerResult], factor: Factor
    ) -> list[VariableGradients]:
        """Collects the gradients of all towers by variable, divided by the loss scale `factor`."""
        inverses = gradients.map_on_devices(self._devices, inverse_scale, [factor] * len(towers))
        columns = []
        by_variable = gradients.transpose_lists([tower.gradients for tower in towers])
        for spec, of_towers in zip(self._trainables, by_variable, strict=True):
            pairs = list(zip(of_towers, inverses, strict=True))
            own = gradients.map_on_devices(
                self._devices, lambda pair: divide_by_scale(*pair), pairs
            )
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
            return column  # The reduction replaces None by zeros of the correct shape.
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
        finals = [self._unscale_and_decay_gradient(*pair, inverse) for pair in reduced]
        variables = [variable for _, variable in reduced]
        if self._plan.clip:
            clipped = [ClippedVariable(self._names[v.ref()], v.device) for v in variables]
            for flag, bound in self._plan.clip.items():
                finals = CLIPPINGS[flag].clip(finals, clipped, bound)
        return list(zip(finals, variables, strict=True))

    def _unscale_and_decay_gradient(
        self, gradient: tf.Tensor, variable: tf.Variable, inverse: Factor
    ) -> tf.Tensor:
        """Removes the loss scale from a reduced gradient, and adds decay."""
        with tf.device(variable.device):
            gradient = divide_by_scale(gradient, inverse)
            late = variable.ref() in self._added_late
            return self._add_weight_decay(gradient, variable) if late else gradient

    def _send_rate_to_devices(self, rate: tf.Tensor, devices: Sequence[str]) -> list[tf.Tensor]:
        """Returns the learning rate as a tensor for each device. Every process receives it once."""
        by_home: dict[str, tf.Tensor] = {}
        for home in dict.fromkeys((self._host, *map(cpu_of_device, devices))):
            with tf.device(home):
                by_home[home] = tf.identity(by_home.get(self._host, rate))
        return [by_home[cpu_of_device(device)] for device in devices]


class BufferReaderFinder:
    """Finds the operations of a traced function that use the buffers of variables.

    See `tower_variable.read`.
    """

    def __init__(self, graph: tf.Graph) -> None:
        handles = tower_variable.handles_read.get(graph, {})
        # Maps the name of a tensor to the handle of the variable whose buffer the tensor uses.
        values: dict[str, int] = {}
        self._readers: dict[int, list[tf.Operation]] = defaultdict(list)
        for operation in graph.get_operations():  # Operations are in topological order.
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
        home = _task_of_cpu_device(variable.device)
        if home is None:
            return gradient
        # Operations without a task run in the calling process, which is not a ps task.
        near = {home} if home.startswith("ps:") else {home, ""}
        of_variable = self._readers.get(id(variable.handle), ())
        readers = [reader for reader in of_variable if _task_of_cpu_device(reader.device) in near]
        if not readers:
            return gradient
        waiting = tf.control_dependencies(group_control_dependencies(readers, variable.device))
        with tf.device(variable.device), waiting:
            return tf.identity(gradient, name="waiting")


def group_control_dependencies(operations: Sequence[Any], device: str) -> list[Any]:
    """Joins control dependencies for `device`, so that each other device sends only one signal."""
    if all(operation.device == device for operation in operations):
        return list(operations)
    return [tf.group(*operations)]  # tf.group creates one operation per device.


@functools.cache
def _task_of_cpu_device(device: str) -> str | None:
    """Returns the task of a CPU device, such as "ps:0" ("" if unnamed); None for a GPU."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type not in (None, "CPU"):
        return None
    return "" if spec.job in (None, "localhost") else f"{spec.job}:{spec.task}"


class UpdateCounter:
    """Counts asynchronous updates of shared variables.

    A worker reads the count before it reads the variables, and increments it after it has updated
    them. The staleness of its update is the number of increments in between, as in Dai et al.,
    "Toward understanding the impact of staleness in distributed machine learning", ICLR 2019.
    """

    def __init__(self, device: str) -> None:
        with tf.device(device):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates_done")

    def resume(self, count: int) -> None:
        """Sets the number of updates so far."""
        self._count.assign(count)

    def read(self) -> tf.Tensor:
        """Reads the number of updates so far, an int64 scalar, before any variable is read."""
        return tower_variable.read(self._count)

    def increment(self, count_before: tf.Tensor, updates: Sequence[Any] = ()) -> tf.Tensor:
        """Counts an update after all its assignments. Returns its staleness, an int64 scalar.

        `count_before` is the result of `read` in the same step.
        """
        home = self._count.device
        with tf.device(home), tf.control_dependencies(group_control_dependencies(updates, home)):
            # One operation both reads and increments, so that no two updates get the same number.
            before = tf.raw_ops.ResourceCountUpTo(
                resource=self._count.handle, limit=_NO_LIMIT, T=tf.int64
            )
            return before - count_before
