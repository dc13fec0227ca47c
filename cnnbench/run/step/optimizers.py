"""Optimizers as thin layers over TensorFlow's fused update ops.

One op updates a variable and its slots, in the dtype of the variable. Weight decay and
clipping are done to the gradient before it comes here.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from cnnbench.base.jobs.devices import is_cpu
from cnnbench.errors import FlagError
from cnnbench.flags.groups.optimizer import OptimizerParams
from cnnbench.variable_mgr.gradients import cast

# Distance of 1 from the next smaller float32.
_BELOW_ONE = 2.0**-24


class SlotSpec(NamedTuple):
    """State an optimizer keeps: its name and the value of every element at the start."""

    name: str
    initial: float


class _Update(NamedTuple):
    """A dense gradient of a variable, and the learning rate as a scalar."""

    gradient: tf.Tensor
    variable: tf.Variable
    learning_rate: tf.Tensor


class Optimizer(abc.ABC):
    """Updates variables in place.

    Attributes:
      slots: state per variable, with the variable's shape, on the variable's device.
      shared: scalars per group of variables that are updated together.
    """

    slots: ClassVar[tuple[SlotSpec, ...]] = ()

    def __init__(self) -> None:
        self.shared: tuple[SlotSpec, ...] = ()
        self._slots: dict[tuple[str, Any], tf.Variable] = {}
        self._groups: list[dict[str, tf.Variable]] = []
        self._group_of: dict[Any, int] = {}

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
            for slot in self.slots:
                self._slots[slot.name, variable.ref()] = _state(
                    f"{_bare_name(variable)}/{slot.name}",
                    slot,
                    variable.shape,
                    variable.device,
                    variable.dtype,
                )
        self._groups.append(
            {
                scalar.name: _state(f"optimizer/{scalar.name}", scalar, (), variables[0].device)
                for scalar in self.shared
            }
        )

    def slot_variables(self) -> dict[tuple[str, Any], tf.Variable]:
        """Slot by (slot name, `Variable.ref()` of the variable it belongs to)."""
        return dict(self._slots)

    def shared_variables(self) -> dict[str, list[tf.Variable]]:
        """Scalars that belong to no variable: one per group, by name."""
        return {s.name: [group[s.name] for group in self._groups] for s in self.shared}

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
        common: dict[Any, Any] = {}
        for gradient, variable in pairs:
            dtype = variable.dtype
            if dtype not in rates:
                rates[dtype] = tf.cast(learning_rate, dtype)
            with tf.device(variable.device):
                update = _Update(cast(gradient, dtype), variable, rates[dtype])
                ops.append(self._apply(update, common))
        ops.extend(self._finish(common))
        return [op for op in ops if op is not None]

    @abc.abstractmethod
    def _apply(self, update: _Update, common: dict[Any, Any]) -> Any:
        """Updates one variable and its slots by one op on the current device.

        Args:
          update: of the variable's dtype and on its device.
          common: what the updates of one call of `apply_gradients` have in common, by a key of
            the optimizer's own; filled by the first that needs it.

        Returns:
          The op; None in eager mode.
        """

    def _finish(self, common: Mapping[Any, Any]) -> list[Any]:
        """The ops that change, after all updates of a call, what they have in common."""
        del common
        return []

    def fold_decay(self, variable: tf.Variable, factor: float) -> bool:
        """Asks that updates of a variable include weight decay: g + factor w in place of g.

        Args:
          variable: on its own device from now on, for all updates.
          factor: of w.

        Returns:
          Whether they will; otherwise nothing has changed.
        """
        del variable, factor
        return False

    def _slot(self, name: str, variable: tf.Variable) -> tf.Tensor:
        return self._slots[name, variable.ref()].handle


class GradientDescent(Optimizer):
    """w -= lr (g + d w), where d is 0 unless `fold_decay` has set it."""

    def __init__(self) -> None:
        super().__init__()
        self._decays: dict[Any, float] = {}

    def fold_decay(self, variable: tf.Variable, factor: float) -> bool:
        """See `Optimizer.fold_decay`; there is such an op for CPUs."""
        if not is_cpu(variable.device) or variable.dtype != tf.float32:
            return False
        self._decays[variable.ref()] = factor
        return True

    def _apply(self, update: _Update, common: dict[Any, Any]) -> Any:
        gradient, variable, rate = update
        decay = self._decays.get(variable.ref())
        if decay is None:
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=rate, delta=gradient
            )
        key = variable.device, decay
        if key not in common:
            # The proximal step of FOBOS (Duchi and Singer, 2009), (w - a g) / (1 + a d), is
            # w - lr (g + d w) for a = lr / (1 - lr d): in place, without a tensor of d w.
            # Where lr d is 1, a would be infinite; the next smaller number is taken instead,
            # which is within the rounding of w.
            kept = 1.0 - rate * decay
            alpha = rate / tf.where(kept == 0.0, _BELOW_ONE, kept)
            common[key] = alpha, tf.constant(0.0), tf.constant(decay)
        alpha, l1, l2 = common[key]
        return tf.raw_ops.ResourceApplyProximalGradientDescent(
            var=variable.handle, alpha=alpha, l1=l1, l2=l2, delta=gradient
        )


class Momentum(Optimizer):
    """Nesterov's momentum: a = m a + g, w -= lr (g + m a).

    Args:
      momentum: m.
    """

    slots = (SlotSpec("momentum", 0.0),)

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self._momentum = momentum

    def _apply(self, update: _Update, common: dict[Any, Any]) -> Any:
        return tf.raw_ops.ResourceApplyMomentum(
            var=update.variable.handle,
            accum=self._slot("momentum", update.variable),
            lr=update.learning_rate,
            grad=update.gradient,
            momentum=self._momentum,
            use_nesterov=True,
        )


class RMSProp(Optimizer):
    """s = d s + (1-d) g², a = m a + lr g / sqrt(s + eps), w -= a; s starts at 1.

    Args:
      decay: d.
      momentum: m.
      epsilon: eps, inside the root.
    """

    slots = (SlotSpec("mean_square", 1.0), SlotSpec("momentum", 0.0))

    def __init__(self, decay: float, momentum: float, epsilon: float) -> None:
        super().__init__()
        self._decay = decay
        self._momentum = momentum
        self._epsilon = epsilon

    def _apply(self, update: _Update, common: dict[Any, Any]) -> Any:
        return tf.raw_ops.ResourceApplyRMSProp(
            var=update.variable.handle,
            ms=self._slot("mean_square", update.variable),
            mom=self._slot("momentum", update.variable),
            lr=update.learning_rate,
            rho=self._decay,
            momentum=self._momentum,
            epsilon=self._epsilon,
            grad=update.gradient,
        )


class Adam(Optimizer):
    """Adam as published, with the bias correction folded into the learning rate; for float32.

    m = b1 m + (1-b1) g, v = b2 v + (1-b2) g²,
    w -= lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps).

    The powers of b1 and b2 are state of each group; a call of `apply_gradients` counts as one step
    of it.

    Args:
      beta1, beta2: b1 and b2.
      epsilon: eps, outside the root.
    """

    slots = (SlotSpec("m", 0.0), SlotSpec("v", 0.0))

    def __init__(self, beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__()
        self.shared = (SlotSpec("beta1_power", beta1), SlotSpec("beta2_power", beta2))
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon

    def _apply(self, update: _Update, common: dict[Any, Any]) -> Any:
        variable = update.variable
        number = self._group_of[variable.ref()]
        if number not in common:
            # Read once for all variables: a conversion in each update would be an op in each.
            common[number] = {name: _read(power) for name, power in self._groups[number].items()}
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._slot("m", variable),
            v=self._slot("v", variable),
            **common[number],
            lr=update.learning_rate,
            beta1=self._beta1,
            beta2=self._beta2,
            epsilon=self._epsilon,
            grad=update.gradient,
        )

    def _finish(self, common: Mapping[Any, Any]) -> list[Any]:
        ops = []
        for number, powers in common.items():
            for name, beta in (("beta1_power", self._beta1), ("beta2_power", self._beta2)):
                power = self._groups[number][name]
                with tf.device(power.device):
                    ops.append(power.assign(powers[name] * beta, read_value=False))
        return ops


def make_optimizer(flags: OptimizerParams) -> Optimizer:
    """The optimizer that --optimizer names, with its constants from the other flags.

    Raises:
      FlagError: for an unknown name.
    """
    if flags.optimizer == "sgd":
        return GradientDescent()
    if flags.optimizer == "momentum":
        return Momentum(flags.momentum)
    if flags.optimizer == "rmsprop":
        return RMSProp(flags.rmsprop_decay, flags.rmsprop_momentum, flags.rmsprop_epsilon)
    if flags.optimizer == "adam":
        return Adam(flags.adam_beta1, flags.adam_beta2, flags.adam_epsilon)
    raise FlagError("optimizer", flags.optimizer, "must be one of momentum, sgd, rmsprop, adam")


def _read(variable: tf.Variable) -> tf.Tensor:
    with tf.device(variable.device):
        return tf.convert_to_tensor(variable)


def _state(
    name: str,
    slot: SlotSpec,
    shape: Sequence[int] | tf.TensorShape,
    device: str,
    dtype: tf.DType = tf.float32,
) -> tf.Variable:
    with tf.device(device):
        value = tf.fill(shape, tf.constant(slot.initial, dtype))
        return tf.Variable(value, trainable=False, name=name)


def _bare_name(variable: tf.Variable) -> str:
    return str(variable.name).split(":")[0]
