"""Registers optimizers and learning-rate schedules by name, and declares the built-in schedules."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from cnnbench.arrays import Tensor
from cnnbench.base import plugins
from cnnbench.base.registry import SpecRegistry
from cnnbench.base.text import enumeration, exact_number, number
from cnnbench.errors import FlagError, UsageError, text_of
from cnnbench.optimizers import builtin

# Declares optimizers. This module does not import TensorFlow.
#
# The declaration of an optimizer determines the choices and the help text of --optimizer,
# the flags for constants, error messages, notices, MLPerf keys, the memory estimate,
# checkpoints, and the update itself (cnnbench/run/step/optimizer.py).


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
    """Raises UsageError unless all constants are instances of `Constant` in dictionaries with text
    keys.
    """
    for table in constants:
        wrong = plugins.describe_mismatch(table, dict[str, Constant])
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
    wanted = plugins.tensor_sizes(arguments[0])
    sizes = plugins.tensor_sizes(value) if plugins.is_tensor(value) else ()
    if plugins.sizes_agree(sizes, wanted):
        return ""
    return f"tensors of the shape of the weight, {wanted}, not {plugins.value_text(value)}"


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
            checked = plugins.with_checked_results(self.update, results, takes)
            object.__setattr__(self, "update", checked)

    @cached_property
    def flags(self) -> dict[str, Constant]:
        """The constants of the optimizer by the names of their flags."""
        return {c.flag: c for c in (*self.constants.values(), *self.powers.values())}

    def values(self, params: object) -> dict[str, float]:
        """Returns the values of the optimizer's flags by flag name. `params` is an object with the
        values of all flags.
        """
        return {flag: getattr(params, flag) for flag in self.flags}


# Declares learning-rate schedules, which need only Python arithmetic, not TensorFlow.

_LARGEST_EXPONENT = 88.0  # The largest float32 number is approximately e^88.

Schedule: TypeAlias = Callable[[int], float]
"""Function from the number of a step (from 0) to the learning rate."""


class ScheduledSteps(NamedTuple):
    """Input of a learning-rate schedule: the learning rate after the warm-up, and numbers of steps.

    A schedule is not called for warm-up steps.

    Attributes:
      base: learning rate after the warm-up.
      warmup: number of warm-up steps.
      steps: number of steps in the whole run, from global step 0.
      steps_per_epoch: number of steps in one pass over the examples.
    """

    base: float
    warmup: int
    steps: int
    steps_per_epoch: float

    def done(self, step: int) -> float:
        """Share of the steps after the warm-up that are complete before the given step, at most
        1.
        """
        return (step - self.warmup) / (self.steps - self.warmup) if step < self.steps else 1.0


def _invalid_rate_text(value: Any, arguments: Sequence[Any]) -> str:
    wanted = "a finite rate of at least 0"
    return "" if 0 <= value < math.inf else f"{wanted}, not {value} for step {arguments[0]}"


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """Declares a learning-rate schedule, which is a value of --learning_rate_schedule.

    Attributes:
      about: how the rate decreases, for the help text.
      make: function that makes the schedule. Its arguments are `ScheduledSteps` and the constants,
        by argument name. May raise FlagError.
      constants: constants by argument name.
      needs: flags that must not be 0; otherwise the learning rate is constant.
    """

    name: str
    about: str
    make: Callable[..., Schedule]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plugins.check_name("a schedule", self.name)
        if not callable(self.make):
            raise UsageError(f"schedule {self.name} needs a function, not {self.make!r}")
        check_constants(f"schedule {self.name}", self.constants)
        returns = Callable[[int], Annotated[float, _invalid_rate_text]]
        takes = ["run", "*", *self.constants]
        object.__setattr__(self, "make", plugins.with_checked_results(self.make, returns, takes))

    @cached_property
    def flags(self) -> dict[str, Constant]:
        """The constants of the schedule by the names of their flags."""
        return {constant.flag: constant for constant in self.constants.values()}

    def missing_flags(self, params: object) -> list[str]:
        """Names of the flags in `needs` whose value is 0. `params` is an object with the values of
        all flags.
        """
        return [flag for flag in self.needs if not getattr(params, flag)]

    def __call__(self, run: ScheduledSteps, params: object) -> Schedule:
        """Creates the schedule of a run. `params` is an object with the values of all flags."""
        if self.missing_flags(params):
            return lambda step: run.base
        values = {name: getattr(params, constant.flag) for name, constant in self.constants.items()}
        for name, constant in self.constants.items():
            if constant.floor and values[name] > run.base:
                reason = f"must be at most --init_learning_rate={exact_number(run.base)}"
                raise FlagError(constant.flag, exact_number(values[name]), reason)
        schedule = self.make(run, **values)
        # The schedule is called once, so that an invalid learning rate is reported before the run.
        schedule(run.warmup)
        return schedule


_MINIMUM = Constant(
    "minimum_learning_rate", 0.0, "Lower limit of a decaying learning rate", minimum=0, floor=True
)
_FACTOR = Constant(
    "learning_rate_decay_factor",
    0.0,
    "Factor by which the learning rate is multiplied at every decay; 0 means no decay",
    minimum=0,
)
_EPOCHS = Constant(
    "num_epochs_per_decay",
    0.0,
    "Number of epochs between two decays of --init_learning_rate; 0 means no decay",
    minimum=0,
)


def _cosine_decay(run: ScheduledSteps, floor: float) -> Schedule:
    """Schedule that decreases the rate along half a cosine (Loshchilov and Hutter,
    arXiv:1608.03983).
    """
    half = 0.5 * (run.base - floor)
    return lambda step: floor + half * (1.0 + math.cos(math.pi * run.done(step)))


def _decay_period_steps(run: ScheduledSteps, factor: float, epochs: float) -> int:
    """Number of steps between two decays, at which the learning rate is multiplied by `factor`."""
    period = int(run.steps_per_epoch * epochs)
    if period < 1:
        reason = f"is less than one step; an epoch has {number(run.steps_per_epoch)} steps"
        raise FlagError(_EPOCHS.flag, epochs, reason)
    # With a factor above 1, the learning rate grows. It must not exceed the range of float32.
    if math.log(factor) * (run.steps // period) > _LARGEST_EXPONENT:
        reason = f"makes the learning rate infinite within {run.steps} steps"
        raise FlagError(_FACTOR.flag, factor, reason)
    return period


def _staircase_decay(run: ScheduledSteps, floor: float, factor: float, epochs: float) -> Schedule:
    period = _decay_period_steps(run, factor, epochs)
    return lambda step: max(floor, run.base * factor ** (step // period))


def _exponential_decay(run: ScheduledSteps, floor: float, factor: float, epochs: float) -> Schedule:
    period = _decay_period_steps(run, factor, epochs)
    return lambda step: max(floor, run.base * factor ** (step / period))


_DECAY = {"epochs": _EPOCHS, "factor": _FACTOR, "floor": _MINIMUM}
BUILT_IN = (
    ScheduleSpec(
        name="staircase",
        about="times --learning_rate_decay_factor after every --num_epochs_per_decay epochs",
        make=_staircase_decay,
        constants=_DECAY,
        needs=(_EPOCHS.flag, _FACTOR.flag),
    ),
    ScheduleSpec(
        name="exponential",
        about="the same factor is spread evenly over the steps of these epochs",
        make=_exponential_decay,
        constants=_DECAY,
        needs=(_EPOCHS.flag, _FACTOR.flag),
    ),
    ScheduleSpec(
        name="cosine",
        about="half a period of a cosine, down to --minimum_learning_rate at the end of the run",
        make=_cosine_decay,
        constants={"floor": _MINIMUM},
    ),
)


# Registries of built-in optimizers and schedules, to which plug-ins and entry points add more.


class _DeclaresFlags(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def flags(self) -> Mapping[str, Constant]: ...


D = TypeVar("D", bound=_DeclaresFlags)


class DeclarationRegistry(SpecRegistry[D]):
    """Registry of optimizers or schedules by name. The names are the valid values of a flag such as
    --optimizer.

    cnnbench's own declarations come before those of plug-ins.

    Attributes:
      check_flag: function of the name and the constant of a new flag, which raises UsageError if
        the flag cannot be added. `cnnbench.flags` sets this function.
    """

    def __init__(self, flag: str, spec: type[D], work: str, built_in: Iterable[D]) -> None:
        noun = flag.rpartition("_")[2]  # For example, "schedule".
        call = f"cnnbench.optimizers.register_{noun}({spec.__name__}(...))"
        super().__init__(spec, work, kind=noun, call=call, flag=flag, group=f"cnnbench.{noun}s")
        self._read_specs: tuple[D, ...] = ()
        self._constants: dict[str, Constant] = {}
        self.update({spec.name: spec for spec in built_in})
        self._own_flags = frozenset(self.constants)
        self.check_flag: Callable[[str, Constant], None] = lambda name, constant: None

    @property
    def constants(self) -> dict[str, Constant]:
        """The constants of all registered optimizers or schedules, by the names of their flags."""
        if (specs := tuple(self.values())) != self._read_specs:
            self._read_specs = specs
            self._constants = {name: c for spec in specs for name, c in spec.flags.items()}
        return self._constants

    @property
    def plugin_constants(self) -> dict[str, Constant]:
        """The constants that plug-ins have added, by the names of their flags."""
        return {name: c for name, c in self.constants.items() if name not in self._own_flags}

    def add(self, name: str, value: D, shown: str = "") -> None:
        """Registers an optimizer or schedule under a new name, and adds the flags of its
        constants.
        """
        if name not in self:
            self._check_flags(value)
        super().add(name, value, shown)

    def _check_flags(self, spec: D) -> None:
        known = self.constants
        for flag, constant in spec.flags.items():
            if known.get(flag) is not constant:
                if flag in known:
                    shared = f"{self.kind.upper()}S.constants[{flag!r}]"
                    reason = f"--{flag} exists; use {shared}, or another name"
                    raise UsageError(f"{self.kind} {spec.name}: {reason}")
                try:
                    self.check_flag(flag, constant)
                except UsageError as error:
                    raise UsageError(f"{self.kind} {spec.name}: {text_of(error)}") from None

    def users_text(self, flag: str) -> str:
        """Lists the optimizers or schedules that have a constant with this flag, such as "adam,
        adamw or lamb".
        """
        return enumeration(spec.name for spec in self.values() if flag in spec.flags)


def _built_in_optimizers() -> Iterable[OptimizerSpec]:
    for module in plugins.submodule_names(builtin):
        yield importlib.import_module(f"{builtin.__name__}.{module}").OPTIMIZER


OPTIMIZERS = DeclarationRegistry("optimizer", OptimizerSpec, "update", _built_in_optimizers())
"""Values of --optimizer."""
SCHEDULES = DeclarationRegistry("learning_rate_schedule", ScheduleSpec, "make", BUILT_IN)
"""Values of --learning_rate_schedule."""

register_optimizer = OPTIMIZERS.register
register_schedule = SCHEDULES.register
