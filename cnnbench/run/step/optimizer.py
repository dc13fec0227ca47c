"""The optimizer of a run, with its slots.

An optimizer is an operation or a function. An operation updates a variable and its slots in the
variable's dtype. A function computes in float32, and its step is subtracted in place, so that no
asynchronous update is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.optimizers.spec import AVERAGE, OptimizerSpec
from cnnbench.plan import RunPlan
from cnnbench.run.step.fused_decay import FusedSgdDecay
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.gradients import cast
from cnnbench.variable_mgr.towers import read


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
        self._bases = {name: values[constant.flag] for name, constant in spec.powers.items()}
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
                    values[AVERAGE] = read(variable)
                for slot_name, value in values.items():
                    name = f"{variable.name.split(':')[0]}/{slot_name}"
                    slot = tf.Variable(value, trainable=False, name=name)
                    self._slots[slot_name, variable.ref()] = slot
        group = {}
        with tf.device(variables[0].device):
            for key, base in self._bases.items():
                name = f"optimizer/{key}"
                group[key] = tf.Variable(base, dtype=tf.float32, trainable=False, name=name)
        self._groups.append(group)

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
        # Powers such as Adam's beta^t are read once for all variables of a group, because each read
        # is an operation.
        powers: dict[int, dict[str, tf.Tensor]] = {}
        for gradient, variable in pairs:
            # Update functions compute in float32; TensorFlow's update operations compute in the
            # dtype of the variable.
            dtype = variable.dtype if self._spec.update is None else tf.float32
            if dtype not in rates:
                rates[dtype] = tf.cast(learning_rate, dtype)
            number = self._group_of[variable.ref()]
            with tf.device(variable.device):
                if number not in powers:
                    powers[number] = {n: read(power) for n, power in self._groups[number].items()}
                constants = {**powers[number], **self._constants}
                gradient = cast(gradient, dtype)
                ops += self._update_variable(gradient, variable, rates[dtype], constants)
        ops.extend(self._advance_powers(powers))
        ops = [op for op in ops if op is not None]
        with tf.control_dependencies(ops):
            ops += [op for op in map(self._update_average, updated) if op is not None]
        return ops

    def _update_average(self, variable: tf.Variable) -> Any:
        """Updates a variable's moving average with its new value. Returns the operation."""
        with tf.device(variable.device):
            average = self._slots[AVERAGE, variable.ref()]
            distance = read(average) - read(variable)
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
            arguments[name] = cast(read(slot), tf.float32)
        if spec.decoupled:
            arguments["decay"] = self._decay.get(variable.ref(), 0.0)
        if spec.takes_step:
            arguments["step"] = self._step
        weight = cast(read(variable), tf.float32)
        step, *states = spec.update(weight=weight, gradient=gradient, rate=rate, **arguments)
        # Raw operations are used, because the methods of a strategy's variables depend on the scope
        # that calls them.
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
