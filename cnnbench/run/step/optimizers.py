"""Optimizers as declared: one of TensorFlow's fused operations per update, or a function.

An operation updates a variable and its slots in the variable's dtype. A function computes in
float32; its step is subtracted in place, so that asynchronous updates lose none. Weight decay and
clipping are applied to the gradient before (`UpdatePlan`), apart from decay that is a part of the
update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from cnnbench.optimizers.spec import OptimizerSpec
from cnnbench.run.step.fused_decay import FusedDecay
from cnnbench.variable_mgr import tower_variable
from cnnbench.variable_mgr.gradients import cast


class Optimizer:
    """Updates variables in place; `values` are those of `spec.flags`."""

    def __init__(self, spec: OptimizerSpec, values: Mapping[str, float]) -> None:
        self._spec = spec
        self._constants = {
            **spec.fixed,
            **{argument: values[one.flag] for argument, one in spec.constants.items()},
        }
        self._bases = {argument: values[one.flag] for argument, one in spec.powers.items()}
        self._slots: dict[tuple[str, Any], tf.Variable] = {}
        self._groups: list[dict[str, tf.Variable]] = []
        self._group_of: dict[Any, int] = {}
        self._fused_decay: FusedDecay | None = None
        self._decayed: set[Any] = set()
        self._decay: dict[Any, float] = {}

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Creates the state of one group of variables, outside any traced function.

        To be called once per set of variables that `apply_gradients` gets together: once for shared
        variables, once per tower otherwise. An empty group is ignored.
        """
        if not variables:
            return
        for variable in variables:
            self._group_of[variable.ref()] = len(self._groups)
            for slot in self._spec.slots:
                with tf.device(variable.device):
                    value = tf.fill(variable.shape, tf.constant(slot.initial, variable.dtype))
                    self._slots[slot.name, variable.ref()] = tf.Variable(
                        value, trainable=False, name=f"{variable.name.split(':')[0]}/{slot.name}"
                    )
        with tf.device(variables[0].device):
            self._groups.append(
                {
                    name: tf.Variable(
                        base, dtype=tf.float32, trainable=False, name=f"optimizer/{name}"
                    )
                    for name, base in self._bases.items()
                }
            )

    def fuse_decay(self, variables: Iterable[tf.Variable], decay: FusedDecay) -> None:
        """Lets `decay` make later updates of these variables; `spec` is that of SGD."""
        self._fused_decay = decay
        self._decayed = {variable.ref() for variable in variables}

    def decay(self, variables: Iterable[tf.Variable], factor: float) -> None:
        """Lets later updates of these variables apply weight decay; `spec` is decoupled."""
        self._decay.update({variable.ref(): factor for variable in variables})

    def slot_variables(self) -> dict[tuple[str, Any], tf.Variable]:
        """Slots by (slot name, `Variable.ref()` of the variable)."""
        return dict(self._slots)

    def shared_variables(self) -> dict[str, list[tf.Variable]]:
        """Scalars that belong to no variable: one per group, by name."""
        return {name: [group[name] for group in self._groups] for name in self._bases}

    def apply_gradients(
        self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]], learning_rate: tf.Tensor
    ) -> list[Any]:
        """Updates variables of a group, each on its device, by dense gradients; returns ops."""
        ops = []
        if self._fused_decay is not None:
            decayed = [pair for pair in pairs if pair[1].ref() in self._decayed]
            ops += self._fused_decay.apply(decayed, learning_rate)
            pairs = [pair for pair in pairs if pair[1].ref() not in self._decayed]
        rates = {tf.float32: learning_rate}
        # Powers by number of the group, read once for all of its variables: a conversion in each
        # update would be an operation in each.
        powers: dict[int, dict[str, tf.Tensor]] = {}
        for gradient, variable in pairs:
            # Functions compute in float32.
            dtype = variable.dtype if self._spec.update is None else tf.float32
            if dtype not in rates:
                rates[dtype] = tf.cast(learning_rate, dtype)
            number = self._group_of[variable.ref()]
            with tf.device(variable.device):
                if number not in powers:
                    powers[number] = {
                        n: tower_variable.read(power) for n, power in self._groups[number].items()
                    }
                given = {**powers[number], **self._constants}
                ops += self._update(cast(gradient, dtype), variable, rates[dtype], given)
        ops.extend(self._advance(powers))
        return [op for op in ops if op is not None]

    def _update(
        self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor, given: dict[str, Any]
    ) -> list[Any]:
        spec = self._spec
        slots = {s.argument: self._slots[s.name, variable.ref()] for s in spec.slots}
        if spec.update is None:
            given |= {name: slot.handle for name, slot in slots.items()}
            given |= {"var": variable.handle, spec.rate: rate, spec.gradient: gradient}
            return [getattr(tf.raw_ops, spec.operation)(**given)]
        for name, slot in slots.items():
            given[name] = cast(tower_variable.read(slot), tf.float32)
        if spec.decoupled:
            given["decay"] = self._decay.get(variable.ref(), 0.0)
        weight = cast(tower_variable.read(variable), tf.float32)
        step, *states = spec.update(weight=weight, gradient=gradient, rate=rate, **given)
        # Operations: assignments of a strategy's variables depend on where they are called.
        ops = [
            tf.raw_ops.AssignVariableOp(resource=slot.handle, value=cast(state, slot.dtype))
            for slot, state in zip(slots.values(), states, strict=True)
        ]
        change = cast(step, variable.dtype)
        return [*ops, tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change)]

    def _advance(self, powers: Mapping[int, Mapping[str, tf.Tensor]]) -> list[Any]:
        """Ops that multiply the powers read by updates, run after all of them."""
        ops = []
        for number, of_group in powers.items():
            for name, base in self._bases.items():
                power = self._groups[number][name]
                with tf.device(power.device):
                    ops.append(power.assign(of_group[name] * base, read_value=False))
        return ops
