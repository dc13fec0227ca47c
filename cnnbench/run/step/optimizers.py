"""Optimizers as declared: one of TensorFlow's fused operations per update.

It updates a variable and its slots, in the dtype of the variable. Weight decay and clipping are
done to the gradient before, apart from decay that is a part of the operation (`UpdatePlan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from cnnbench.flags.groups.optimizer import OptimizerParams
from cnnbench.flags.optimizers import OPTIMIZERS, OptimizerSpec
from cnnbench.variable_mgr.gradients import cast

# Distance of 1 from the next smaller float32.
_BELOW_ONE = 2.0**-24

# What the updates of one call have in common, made by the first of them that needs it: powers by
# number of the group, arguments of updates with decay by device and decay.
_Common: TypeAlias = "dict[Any, dict[str, tf.Tensor]]"


class Optimizer:
    """Updates variables in place.

    Args:
      flags: has the values of `spec.flags`.
    """

    def __init__(self, spec: OptimizerSpec, flags: OptimizerParams) -> None:
        self._spec = spec
        self._constants = {
            **spec.fixed,
            **{argument: getattr(flags, flag) for argument, flag in spec.constants.items()},
        }
        self._bases = {argument: getattr(flags, flag) for argument, flag in spec.powers.items()}
        self._slots: dict[tuple[str, Any], tf.Variable] = {}
        self._groups: list[dict[str, tf.Variable]] = []
        self._group_of: dict[Any, int] = {}
        self._decays: dict[Any, float] = {}

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Creates the state of one group of variables, outside any traced function.

        Call it once for every set of variables that `apply_gradients` gets together:
        once for shared variables, once per tower otherwise. An empty group is ignored.

        Raises:
          ValueError: if a variable has its slots already.
        """
        if not variables:
            return
        for variable in variables:
            if variable.ref() in self._group_of:
                raise ValueError(f"{variable.name} has optimizer slots already")
            self._group_of[variable.ref()] = len(self._groups)
            for slot in self._spec.slots:
                with tf.device(variable.device):
                    value = tf.fill(variable.shape, tf.constant(slot.initial, variable.dtype))
                    self._slots[slot.name, variable.ref()] = tf.Variable(
                        value, trainable=False, name=f"{_bare_name(variable)}/{slot.name}"
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

    def slot_variables(self) -> dict[tuple[str, Any], tf.Variable]:
        """Slot by (slot name, `Variable.ref()` of the variable it belongs to)."""
        return dict(self._slots)

    def shared_variables(self) -> dict[str, list[tf.Variable]]:
        """Scalars that belong to no variable: one per group, by name."""
        return {name: [group[name] for group in self._groups] for name in self._bases}

    def fuse_decay(self, variables: Iterable[tf.Variable], factor: float) -> None:
        """Includes weight decay in later updates: g + factor * w in place of g.

        Args:
          variables: those for which there is such an operation, see `UpdatePlan.fuses`.
        """
        self._decays.update((variable.ref(), factor) for variable in variables)

    def apply_gradients(
        self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]], learning_rate: tf.Tensor
    ) -> list[Any]:
        """Updates variables, each on its own device.

        Args:
          pairs: (gradient, variable), all variables of one group; gradients are dense.
          learning_rate: float32 scalar.

        Returns:
          The ops; empty in eager mode.

        Raises:
          KeyError: for a variable without slots.
        """
        ops = []
        rates = {tf.float32: learning_rate}
        common: _Common = {}
        for gradient, variable in pairs:
            dtype = variable.dtype
            if dtype not in rates:
                rates[dtype] = tf.cast(learning_rate, dtype)
            update = self._with_decay if variable.ref() in self._decays else self._plain
            with tf.device(variable.device):
                ops.append(update(cast(gradient, dtype), variable, rates[dtype], common))
        if self._bases:
            ops.extend(self._advance(common))
        return [op for op in ops if op is not None]

    def _plain(
        self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor, common: _Common
    ) -> Any:
        """Updates one variable and its slots, on the current device; None in eager mode."""
        spec = self._spec
        slots = {s.argument: self._slots[s.name, variable.ref()].handle for s in spec.slots}
        powers: dict[str, tf.Tensor] = {}
        if self._bases:
            number = self._group_of[variable.ref()]
            if number not in common:
                # Read once for all variables: a conversion in each update would be an op in each.
                common[number] = {n: _read(power) for n, power in self._groups[number].items()}
            powers = common[number]
        return getattr(tf.raw_ops, spec.operation)(
            var=variable.handle,
            **{spec.rate: rate, spec.gradient: gradient},
            **slots,
            **powers,
            **self._constants,
        )

    def _with_decay(
        self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor, common: _Common
    ) -> Any:
        """The same with g + d w."""
        decay = self._decays[variable.ref()]
        key = variable.device, decay
        if key not in common:
            # The proximal step of FOBOS (Duchi and Singer, 2009), (w - a g) / (1 + a d), is
            # w - lr (g + d w) for a = lr / (1 - lr d): in place, without a tensor of d w.
            # Where lr d is 1, a would be infinite; the next smaller number is taken instead,
            # which is within the rounding of w.
            kept = 1.0 - rate * decay
            alpha = rate / tf.where(kept == 0.0, _BELOW_ONE, kept)
            common[key] = {"alpha": alpha, "l1": tf.constant(0.0), "l2": tf.constant(decay)}
        operation = getattr(tf.raw_ops, self._spec.with_decay)
        return operation(var=variable.handle, delta=gradient, **common[key])

    def _advance(self, common: _Common) -> list[Any]:
        """Ops that multiply the powers read by updates, run after all of them."""
        ops = []
        for number, powers in common.items():
            for name, base in self._bases.items():
                power = self._groups[number][name]
                with tf.device(power.device):
                    ops.append(power.assign(powers[name] * base, read_value=False))
        return ops


def make_optimizer(flags: OptimizerParams) -> Optimizer:
    """The optimizer that --optimizer names, with its constants from the other flags."""
    return Optimizer(OPTIMIZERS[flags.optimizer], flags)


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return tf.convert_to_tensor(variable)


def _bare_name(variable: tf.Variable) -> str:
    return str(variable.name).split(":")[0]
