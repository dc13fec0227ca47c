"""Declares optimizers, and the constants of optimizers and schedules, without TensorFlow.

The declaration of an optimizer determines the choices and the help text of --optimizer, the flags
for constants, error messages, notices, MLPerf keys, the memory estimate, checkpoints, and the
update itself (cnnbench/run/step/optimizer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import GenericAlias
from typing import Annotated, Any, NamedTuple

from cnnbench.arrays import Tensor
from cnnbench.base import interfaces, plugins
from cnnbench.errors import UsageError


class Constant:
    """A constant that optimizers or schedules use, with the flag that sets its value.

    Args:
      flag: name of the flag. Several optimizers or several schedules may share a constant.
      default: the value if the flag is not given.
      help: beginning of the help sentence. The names of the optimizers or schedules are appended.
      minimum, maximum: smallest and largest valid value.
      above, below: bounds that the value must not reach.
      floor: whether the value is the lower limit of a learning rate. A schedule refuses a value
        above --init_learning_rate.
    """

    def __init__(
        self,
        flag: str,
        default: float,
        help: str,
        *,
        minimum: float | None = None,
        above: float | None = None,
        maximum: float | None = None,
        below: float | None = None,
        floor: bool = False,
    ) -> None:
        self.flag = flag
        self.default = default
        self.help = help
        self.floor = floor
        limits = {"minimum": minimum, "above": above, "maximum": maximum, "below": below}
        self.limits: dict[str, Any] = {
            name: bound for name, bound in limits.items() if bound is not None
        }


def check_constants(who: str, *constants: Mapping[str, object]) -> None:
    """Raises UsageError unless each argument is a dictionary with strings as keys and `Constant`s
    as values.
    """
    for table in constants:
        wrong = interfaces.describe_mismatch(table, dict[str, Constant])
        if wrong:
            raise UsageError(f"{who}: constants must be {wrong}")


class Slot(NamedTuple):
    """State that an optimizer keeps for each variable, with the same shape as the variable.

    `name` is the name in checkpoints, `argument` the argument of the operation or function, and
    `initial` the initial value of all elements.
    """

    name: str
    argument: str
    initial: float = 0.0


AVERAGE = "moving_average"
"""Name in checkpoints of the moving average of a variable (--ema_decay), besides the slots."""


def _wrong_shape_text(value: Any, arguments: Sequence[Any]) -> str:
    wanted = interfaces.tensor_sizes(arguments[0])
    sizes = interfaces.tensor_sizes(value) if interfaces.is_tensor(value) else ()
    if interfaces.sizes_agree(sizes, wanted):
        return ""
    return f"tensors of the shape of the weight, {wanted}, not {interfaces.value_text(value)}"


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """Declares an optimizer, which updates a variable by a TensorFlow operation or by a function.

    The function is called while the step is traced, on the device of the variable, with these
    keyword arguments: `weight` and `gradient`, float32 tensors with the shape of the whole
    variable; `rate`, a float32 scalar; slots (float32 tensors), `powers` (float32 scalars),
    `constants` and `fixed` by their argument names; `decay`, a number, if `decoupled`; and `step`,
    an int64 scalar, if `takes_step`. It returns the value that is subtracted from the weight, and
    the new value of each slot, in order.

    Attributes:
      formula: formula for the new weight w from gradient g and learning rate lr, for the help text.
      operation: name of an operation in tf.raw_ops. Its argument for the variable is `var`.
      rate, gradient: argument names of the operation for the learning rate and the gradient.
      update: the function, if there is no operation.
      slots: state of each variable.
      constants: constants by argument name.
      powers: constants by argument name that are raised to the power of the step number. They are
        state of each group of variables that are updated together.
      fixed: fixed values by argument name.
      linear: whether the change of w is proportional to lr * g, so that lr can be scaled instead of
        g.
      decoupled: whether weight decay is part of the update instead of an L2 loss in the gradient.
      takes_step: whether the function gets the number of the training step, which is 1 in the first
        step and continues after a checkpoint. Steps whose update is skipped count, too.
      refuses_fp16: why variables cannot be float16; "" if they can.
      normal_in_fp16: flags with values that must be normal (not subnormal) in the dtype of the
        variables.
      mlperf_name: name in MLPerf logs; by default `name`.
      mlperf: values in MLPerf logs by key. A value is a number, the flag of a constant, or the name
        of a value in `cnnbench.run.driver.observers.mlperf_log`, such as "base_rate".
    """

    name: str
    formula: str
    operation: str = ""
    rate: str = "lr"
    gradient: str = "grad"
    update: Callable[..., tuple[Tensor, ...]] | None = None
    slots: tuple[Slot, ...] = ()
    constants: Mapping[str, Constant] = field(default_factory=dict)
    powers: Mapping[str, Constant] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    linear: bool = False
    decoupled: bool = False
    takes_step: bool = False
    refuses_fp16: str = ""
    normal_in_fp16: tuple[str, ...] = ()
    mlperf_name: str = ""
    mlperf: Mapping[str, str | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plugins.check_name("an optimizer", self.name)
        if bool(self.operation) == bool(self.update):
            raise UsageError(
                f"optimizer {self.name} needs either an operation or an update function"
            )
        needing = {"decoupled weight decay": self.decoupled, "takes_step": self.takes_step}
        for what, is_set in needing.items():
            if is_set and not self.update:
                raise UsageError(f"optimizer {self.name}: {what} needs an update function")
        check_constants(f"optimizer {self.name}", self.constants, self.powers)
        if self.update:
            result = Annotated[Any, _wrong_shape_text]
            results = GenericAlias(tuple, (result,) * (1 + len(self.slots)))
            takes = ["*", "weight", "gradient", "rate", *(slot.argument for slot in self.slots)]
            takes += [*self.powers, *self.constants, *self.fixed]
            takes += ["decay"] * self.decoupled + ["step"] * self.takes_step
            checked = interfaces.with_checked_results(self.update, results, takes)
            object.__setattr__(self, "update", checked)

    @cached_property
    def flags(self) -> dict[str, Constant]:
        """The constants of the optimizer by the names of their flags."""
        return {c.flag: c for c in (*self.constants.values(), *self.powers.values())}

    def values(self, params: object) -> dict[str, float]:
        """Returns the values of the optimizer's flags by name; `params` has those of all flags."""
        return {flag: getattr(params, flag) for flag in self.flags}
