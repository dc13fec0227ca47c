"""Declaration of optimizers; no TensorFlow.

Choices and help of --optimizer, flags of constants, refusals, notices, MLPerf's keys, the memory
estimate, checkpoints and the update itself (cnnbench/run/step/update.py) follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import GenericAlias
from typing import Any, NamedTuple

from cnnbench.base import plugins
from cnnbench.errors import UsageError


class Constant:
    """A number of optimizers, with the flag that sets it.

    Args:
      flag: name of the flag; several optimizers may share a constant.
      help: what it is, in a sentence without its end, to which the optimizers are added.
      limits: `minimum`, `above`, `maximum` and `below` of the flag.
    """

    def __init__(self, flag: str, default: float, help: str, **limits: float) -> None:
        self.flag = flag
        self.default = default
        self.help = help
        self.limits = limits


class Slot(NamedTuple):
    """Optimizer state with the shape of a variable.

    `name` is that in checkpoints, `argument` that of the operation or function, `initial` each
    element's value.
    """

    name: str
    argument: str
    initial: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimizer, whose update of a variable is an operation of TensorFlow or a function.

    The function is called while the step is traced, on the device of the variable, with names:
    `weight` and `gradient`, float32 tensors of the shape of the variable, all of it; `rate`, a
    float32 scalar; slots (float32 tensors), `powers` (float32 scalars), `constants` and `fixed` by
    argument; `decay`, a number, if `decoupled`. It returns what is subtracted from the weight, and
    the new value of each slot in order.

    Attributes:
      formula: formula of the new weight w, for gradient g and learning rate lr; for the help.
      operation: name in tf.raw_ops; takes the variable as `var`.
      rate, gradient: names of the operation's arguments for the learning rate and the gradient.
      update: the function, in place of an operation.
      slots: state per variable.
      constants: constants by argument.
      powers: constants by argument, raised to the power of the step number; state of each group of
        variables that are updated together.
      fixed: values by argument.
      linear: whether w changes by a multiple of lr g, so that a factor of g can move to lr.
      decoupled: whether weight decay is a part of the update, and no L2 loss of the gradient.
      refuses_fp16: why its variables cannot be float16; "" if they can.
      normal_in_fp16: flags whose values must be normal numbers in the dtype of the variables.
      mlperf_name: its name in MLPerf's logs; `name` if not given.
      mlperf: values of MLPerf's logs by key: a number, or the name of a constant's flag or of a
        value in `cnnbench.run.driver.observers`, such as "base_rate".
    """

    name: str
    formula: str
    operation: str = ""
    rate: str = "lr"
    gradient: str = "grad"
    update: Callable[..., tuple[Any, ...]] | None = None
    slots: tuple[Slot, ...] = ()
    constants: Mapping[str, Constant] = field(default_factory=dict)
    powers: Mapping[str, Constant] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    linear: bool = False
    decoupled: bool = False
    refuses_fp16: str = ""
    normal_in_fp16: tuple[str, ...] = ()
    mlperf_name: str = ""
    mlperf: Mapping[str, str | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plugins.check_name("an optimizer", self.name)
        if bool(self.operation) == bool(self.update):
            raise UsageError(f"optimizer {self.name} needs an operation or an update, one of both")
        if self.decoupled and not self.update:
            raise UsageError(f"optimizer {self.name}: only an update can apply decay")
        if self.update:
            results = GenericAlias(tuple, (Any,) * (1 + len(self.slots)))
            object.__setattr__(self, "update", plugins.checked(self.update, results))

    @property
    def flags(self) -> dict[str, Constant]:
        """Its constants by flag."""
        return {one.flag: one for one in (*self.constants.values(), *self.powers.values())}

    def values(self, params: object) -> dict[str, float]:
        """Values of its flags by name, from an object that has all flags."""
        return {flag: getattr(params, flag) for flag in self.flags}
