"""The optimizers, one declaration each; no TensorFlow.

Choices and help of --optimizer, refusals, notices, the memory estimate and the update itself
(cnnbench/run/step/optimizers.py) use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Slot(NamedTuple):
    """Optimizer state with the shape of a variable.

    `name` is that in checkpoints, `argument` that of the operation, `initial` each element's value.
    """

    name: str
    argument: str
    initial: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimizer whose update of a variable is one operation of TensorFlow.

    Attributes:
      formula: formula of the new weight w, for gradient g and learning rate lr; for the help.
      operation: name in tf.raw_ops; takes the variable as `var`.
      rate, gradient: names of its arguments for the learning rate and the gradient.
      slots: state per variable.
      constants: flags by argument.
      powers: flags by argument, raised to the power of the step number; state of each group of
        variables that are updated together.
      fixed: values by argument.
      linear: whether w changes by a multiple of lr g, so that a factor of g can move to lr.
      refuses_fp16: why its variables cannot be float16; "" if they can.
      normal_in_fp16: flags whose values must be normal numbers in the dtype of the variables.
    """

    name: str
    formula: str
    operation: str
    rate: str = "lr"
    gradient: str = "grad"
    slots: tuple[Slot, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)
    powers: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    linear: bool = False
    refuses_fp16: str = ""
    normal_in_fp16: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of the flags that only this optimizer reads."""
        return tuple(dict.fromkeys((*self.constants.values(), *self.powers.values())))

    def values(self, params: object) -> dict[str, float]:
        """Values of its flags by name, from an object that has all flags."""
        return {flag: getattr(params, flag) for flag in self.flags}


_ALL = (
    OptimizerSpec(
        name="momentum",
        formula="a = momentum a + g, w -= lr (g + momentum a), which is Nesterov's",
        operation="ResourceApplyMomentum",
        slots=(Slot("momentum", "accum"),),
        constants={"momentum": "momentum"},
        fixed={"use_nesterov": True},
    ),
    OptimizerSpec(
        name="sgd",
        formula="w -= lr g",
        operation="ResourceApplyGradientDescent",
        rate="alpha",
        gradient="delta",
        linear=True,
    ),
    OptimizerSpec(
        name="rmsprop",
        formula="s = decay s + (1 - decay) g^2, a = momentum a + lr g / sqrt(s + epsilon), w -= a; "
        "s is 1 at first",
        operation="ResourceApplyRMSProp",
        slots=(Slot("mean_square", "ms", 1.0), Slot("momentum", "mom")),
        constants={
            "rho": "rmsprop_decay",
            "momentum": "rmsprop_momentum",
            "epsilon": "rmsprop_epsilon",
        },
        normal_in_fp16=("rmsprop_epsilon",),
    ),
    OptimizerSpec(
        name="adam",
        formula="m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, "
        "w -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon) in step t",
        operation="ResourceApplyAdam",
        slots=(Slot("m", "m"), Slot("v", "v")),
        constants={"beta1": "adam_beta1", "beta2": "adam_beta2", "epsilon": "adam_epsilon"},
        powers={"beta1_power": "adam_beta1", "beta2_power": "adam_beta2"},
        refuses_fp16="squares of gradients vanish in fp16",
    ),
)

OPTIMIZERS: Mapping[str, OptimizerSpec] = {spec.name: spec for spec in _ALL}
"""Optimizers by name, in the order of the help."""
