"""Flags for optimizer and learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from cnnbench.base.rules import FlagRule, Severity, always, no_effect, refuse, refuse_with
from cnnbench.flags.declare import (
    FlagSpec,
    OrText,
    RunPart,
    flag,
    names_of_flags,
    number_flag,
    specs_of,
)
from cnnbench.flags.facts import RunFacts, no_effect_forward, no_effect_input_only
from cnnbench.optimizers.clipping import CLIPPINGS
from cnnbench.optimizers.registry import OPTIMIZERS, SCHEDULES, DeclarationRegistry
from cnnbench.optimizers.schedules import PiecewiseSchedule, ScheduleSpec, parse_piecewise
from cnnbench.optimizers.spec import Constant

_update = partial(flag, part=RunPart.UPDATE)
_schedule = partial(flag, part=RunPart.UPDATE | RunPart.LEARNING_RATE)


REGISTRIES: Mapping[str, DeclarationRegistry[Any]] = {
    "optimizer": OPTIMIZERS,
    "learning_rate_schedule": SCHEDULES,
}
"""Registries of declarations with constants, by the flag that selects from them."""
_PARTS = {
    "optimizer": RunPart.UPDATE,
    "learning_rate_schedule": RunPart.UPDATE | RunPart.LEARNING_RATE,
}


def _constant_field(name: str) -> Any:
    """Declares a constant of optimizers or schedules of cnnbench as an argument of `Params`."""
    owner, table = next(pair for pair in REGISTRIES.items() if name in pair[1].constants)
    constant = table.constants[name]
    spec = constant_flag(name, constant, owner, table.users_text(name))
    return flag(spec.default, spec.help, part=spec.part, **constant.limits)


def added_constants() -> dict[str, FlagSpec]:
    """Returns, by name, the flags that are not declared as fields of `OptimizerParams`:
    thresholds of gradient clipping, and constants of optimizers and schedules, of cnnbench and of
    loaded plug-ins.
    """
    fields = OptimizerParams.__dataclass_fields__
    bounds = {
        name: number_flag(name, clipping.help, RunPart.UPDATE, optional=True, above=0)
        for name, clipping in CLIPPINGS.items()
        if name not in fields
    }
    constants = {
        name: constant_flag(name, constant, owner, registry.users_text(name))
        for owner, registry in REGISTRIES.items()
        for name, constant in registry.constants.items()
        if name not in fields
    }
    return bounds | constants


@cache
def constant_flag(name: str, constant: Constant, owner: str, users: str) -> FlagSpec:
    """Creates the flag that sets a constant of an optimizer or a learning rate schedule.

    Args:
      owner: the flag that selects the optimizer or the schedule.
      users: names of the optimizers or schedules with this constant, for the help.
    """
    about = f"{constant.help} (--{owner}={users})."
    return number_flag(name, about, _PARTS[owner], constant.default, **constant.limits)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class OptimizerParams:
    """Flags for optimizer and learning rate."""

    optimizer: str = _update(
        "sgd",
        "How weight w is updated with gradient g and learning rate lr. Each constant in the "
        "formulas is a flag, such as --adam_beta1. "
        + ". ".join(f"{o.name}: {o.formula}" for o in OPTIMIZERS.values())
        + ".",
        choices=OPTIMIZERS.keys(),
        checked_late=True,
        part=RunPart.UPDATE | RunPart.HEADER,
    )
    init_learning_rate: float | None = _schedule(
        None,
        "First learning rate. If not given, the learning rate schedule of the model is used.",
        minimum=0,
    )
    piecewise_learning_rate_schedule: OrText[PiecewiseSchedule | None] = flag(
        None,
        "Learning rates and the epochs at which they change. For example, 0.3;10;0.2;25;0.1 means "
        "0.3 for ten epochs, 0.2 until epoch 25, then 0.1. In general: LR0;E1;LR1;...;En;LRn.",
        parser=parse_piecewise,
        part=RunPart.UPDATE | RunPart.LEARNING_RATE,
        unset="",
    )
    learning_rate_schedule: str = _schedule(
        "staircase",
        "How the learning rate decreases from --init_learning_rate. "
        + ". ".join(f"{schedule.name}: {schedule.about}" for schedule in SCHEDULES.values())
        + ".",
        choices=SCHEDULES.keys(),
        checked_late=True,
    )
    num_learning_rate_warmup_epochs: float = _schedule(
        0.0,
        "Number of epochs in which the learning rate rises linearly from 0. Only with "
        "--init_learning_rate or --piecewise_learning_rate_schedule.",
        minimum=0,
    )
    resnet_base_lr: float | None = _schedule(
        None,
        "Learning rate for a global batch of 256, for models whose schedule is proportional to "
        "the batch size. If not given, 0.128 for the ImageNet ResNets.",
        minimum=0,
    )
    label_smoothing: float = _update(
        0.0,
        "Share of each label that the training loss distributes evenly over all classes. Only for "
        "models whose loss is the softmax cross entropy.",
        minimum=0,
        maximum=1,
    )
    gradient_clip: float | None = _update(None, CLIPPINGS["gradient_clip"].help, above=0)
    ema_decay: float = flag(
        0.0,
        "Compute a moving average of every weight: after an update, average = N average + (1 - N) "
        "weight. The first average is the initial weight. Evaluations and --export_dir use the "
        "averages. Checkpoints contain weights and averages. With 0, there are no averages.",
        minimum=0,
        below=1,
    )
    weight_decay: float = _update(
        4e-5,
        "Factor of the L2 term of the loss (half the squared norm of the weights). With "
        f"--optimizer={', '.join(o.name for o in OPTIMIZERS.values() if o.decoupled)}, the loss "
        "has no L2 term; the flag is then the factor of the weight decay in the update.",
        minimum=0,
        part=RunPart.UPDATE | RunPart.HEADER,
    )

    # These constants of optimizers and schedules are arguments of `Params`. All other constants,
    # and the thresholds of gradient clipping, are also flags, but not arguments of `Params`
    # (`added_constants`).
    adam_beta1: float = _constant_field("adam_beta1")
    adam_beta2: float = _constant_field("adam_beta2")
    adam_epsilon: float = _constant_field("adam_epsilon")
    lamb_epsilon: float = _constant_field("lamb_epsilon")
    momentum: float = _constant_field("momentum")
    lars_coefficient: float = _constant_field("lars_coefficient")
    lion_beta1: float = _constant_field("lion_beta1")
    lion_beta2: float = _constant_field("lion_beta2")
    rmsprop_decay: float = _constant_field("rmsprop_decay")
    rmsprop_momentum: float = _constant_field("rmsprop_momentum")
    rmsprop_epsilon: float = _constant_field("rmsprop_epsilon")
    num_epochs_per_decay: float = _constant_field("num_epochs_per_decay")
    learning_rate_decay_factor: float = _constant_field("learning_rate_decay_factor")
    minimum_learning_rate: float = _constant_field("minimum_learning_rate")


_SMALLEST_FP16 = 2.0**-14
"""The smallest normal number of fp16."""

_UPDATING = names_of_flags(specs_of(OptimizerParams), RunPart.UPDATE)


def _follows_model(p: RunFacts) -> bool:
    """Whether the learning rate follows the schedule of the model."""
    return p.params.init_learning_rate is None and p.params.piecewise_learning_rate_schedule is None


def _chosen_schedule(p: RunFacts) -> ScheduleSpec:
    return SCHEDULES.find(p.params.learning_rate_schedule)


def _missing_reason(p: RunFacts) -> str:
    missing = [] if p.params.init_learning_rate is not None else ["init_learning_rate"]
    missing += _chosen_schedule(p).missing_flags(p.params)
    return f"needs {' and '.join(f'--{name}' for name in missing)}" if missing else ""


def _vanishes_in_fp16(p: RunFacts, flag: str) -> bool:
    used = flag in p.numerics.optimizer_spec.normal_in_fp16 and not p.work.only_forward
    return bool(p.params.fp16_vars and used and getattr(p.params, flag) < _SMALLEST_FP16)


def rules_of_constants() -> tuple[FlagRule[RunFacts], ...]:
    """Rules about constants, learning rates and their schedules, including those of plug-ins."""
    decaying = ("learning_rate_schedule", *SCHEDULES.constants)
    return (
        FlagRule(
            tuple(OPTIMIZERS.constants),
            _vanishes_in_fp16,
            Severity.REFUSAL,
            "is too small for fp16; with --fp16_vars it must be at least 2^-14",
        ),
        refuse_with((*decaying, "init_learning_rate"), "piecewise_learning_rate_schedule", ""),
        FlagRule(
            tuple(SCHEDULES.constants),
            lambda p, flag: p.params.changed(flag) and flag not in _chosen_schedule(p).flags,
            Severity.REFUSAL,
            lambda p: (
                f"cannot be used with --learning_rate_schedule={p.params.learning_rate_schedule}, "
                "which does not depend on it"
            ),
        ),
        refuse(decaying, always, _missing_reason),
        # Notices.
        no_effect_input_only((*_UPDATING, *added_constants(), "ema_decay")),
        no_effect_forward((*_UPDATING, *added_constants())),
        *(
            FlagRule[RunFacts](
                (flag,),
                lambda p, flag: flag not in p.numerics.optimizer_spec.flags,
                Severity.NOTICE,
                f"without --optimizer={OPTIMIZERS.users_text(flag)}",
            )
            for flag in OPTIMIZERS.constants
        ),
    )


RULES: tuple[FlagRule[RunFacts], ...] = (
    no_effect(
        "ema_decay",
        lambda p: p.params.forward_only and p.params.train_dir is None,
        "with --forward_only and without --train_dir, from which averages are read",
    ),
    no_effect(
        "learning_rate_schedule",
        lambda p: _chosen_schedule(p).missing_flags(p.params),
        lambda p: f"without --{_chosen_schedule(p).missing_flags(p.params)[0]}",
    ),
    no_effect(
        "num_learning_rate_warmup_epochs",
        _follows_model,
        "on the model's own schedule; add --init_learning_rate or "
        "--piecewise_learning_rate_schedule",
    ),
    no_effect(
        "resnet_base_lr",
        lambda p: not _follows_model(p),
        "with --init_learning_rate or --piecewise_learning_rate_schedule",
    ),
)
