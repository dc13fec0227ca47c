"""Declares learning-rate schedules, which need only Python arithmetic, not TensorFlow."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeAlias

from cnnbench.base import interfaces, plugins
from cnnbench.base.text import exact_number, number
from cnnbench.base.values import parse_number
from cnnbench.errors import FlagError, UsageError
from cnnbench.optimizers.spec import Constant, check_constants

_LARGEST_EXPONENT = 88.0  # e^88 is about the largest float32 number.

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
        """Share of the steps after the warm-up that are complete before `step`, at most 1."""
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
        object.__setattr__(self, "make", interfaces.with_checked_results(self.make, returns, takes))

    @cached_property
    def flags(self) -> dict[str, Constant]:
        """The constants of the schedule by the names of their flags."""
        return {constant.flag: constant for constant in self.constants.values()}

    def missing_flags(self, params: object) -> list[str]:
        """Names of the flags in `needs` whose value in `params`, the values of all flags, is 0."""
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
        # Called once now, so that an invalid learning rate is reported before the run.
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
    """Decreases the rate along half a cosine (Loshchilov and Hutter, arXiv:1608.03983)."""
    half = 0.5 * (run.base - floor)
    return lambda step: floor + half * (1.0 + math.cos(math.pi * run.done(step)))


def _period(run: ScheduledSteps, factor: float, epochs: float) -> int:
    """Number of steps between two decays, at which the learning rate is multiplied by `factor`."""
    period = int(run.steps_per_epoch * epochs)
    if period < 1:
        reason = f"is less than one step; an epoch has {number(run.steps_per_epoch)} steps"
        raise FlagError(_EPOCHS.flag, epochs, reason)
    # With a factor above 1, the learning rate grows, and could exceed the range of float32.
    if math.log(factor) * (run.steps // period) > _LARGEST_EXPONENT:
        reason = f"makes the learning rate infinite within {run.steps} steps"
        raise FlagError(_FACTOR.flag, factor, reason)
    return period


def _staircase_decay(run: ScheduledSteps, floor: float, factor: float, epochs: float) -> Schedule:
    period = _period(run, factor, epochs)
    return lambda step: max(floor, run.base * factor ** (step // period))


def _exponential_decay(run: ScheduledSteps, floor: float, factor: float, epochs: float) -> Schedule:
    period = _period(run, factor, epochs)
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


# Rates that change at given epochs. They are a value of a flag, not a declared schedule.


@dataclass(frozen=True)
class PiecewiseSchedule:
    """A parsed --piecewise_learning_rate_schedule: rates, and the epochs at which they change."""

    rates: tuple[float, ...]
    boundaries: tuple[int, ...]
    source: str = field(default="", compare=False)


def parse_piecewise(text: str) -> PiecewiseSchedule:
    """Parses ``LR0;E1;LR1;...;En;LRn``: rates, and epochs. FlagError for an invalid value."""
    name = "piecewise_learning_rate_schedule"
    pieces = [piece.strip() for piece in text.split(";")]
    if len(pieces) % 2 == 0:
        reason = f"has {len(pieces)} parts, but needs an odd number of parts, as in 0.3;10;0.2"
        raise FlagError(name, text, reason)
    rates: list[float] = []
    boundaries: list[int] = []
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            rates.append(_parse_rate(name, text, piece))
        else:
            if not re.fullmatch("[0-9]{1,9}", piece):
                reason = f"{piece!r} is not an epoch (a whole number of at least 0)"
                raise FlagError(name, text, reason)
            boundaries.append(int(piece))
    if any(later <= earlier for earlier, later in itertools.pairwise(boundaries)):
        raise FlagError(name, text, "the epochs must increase from left to right")
    return PiecewiseSchedule(tuple(rates), tuple(boundaries), text)


def _parse_rate(name: str, text: str, piece: str) -> float:
    try:
        rate = parse_number(piece)
    except ValueError:
        rate = -1.0
    if rate < 0:
        raise FlagError(name, text, f"{piece!r} is not a learning rate (a number of at least 0)")
    return rate
