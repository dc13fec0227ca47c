"""Flags of optimizer and learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from cnnbench.flags.declare import RunPart, flag
from cnnbench.optimizers.registry import (
    OPTIMIZERS,
    SCHEDULES,
    PiecewiseSchedule,
    Registry,
    parse_piecewise,
)

T = TypeVar("T")
_update = partial(flag, part=RunPart.UPDATE)
_schedule = partial(flag, part=RunPart.UPDATE | RunPart.LEARNING_RATE)


def _with_constants(group: type[T]) -> type[T]:
    """Class decorator: adds the constants of optimizers and schedules as fields.

    To be applied before the class is made a dataclass.
    """
    added: tuple[tuple[str, Registry[Any], Any], ...] = (
        ("optimizer", OPTIMIZERS, _update),
        ("learning_rate_schedule", SCHEDULES, _schedule),
    )
    for owner, registry, declared in added:
        for name, one in registry.constants.items():
            group.__annotations__[name] = "float"
            about = f"{one.help} (--{owner}={registry.users(name)})."
            setattr(group, name, declared(one.default, about, **one.limits))
    return group


@dataclass(frozen=True, kw_only=True)
@_with_constants
class OptimizerParams:
    """Optimizer and learning rate."""

    optimizer: str = _update(
        "sgd",
        "Update of weight w by gradient g at learning rate lr; constants are flags of the "
        "optimizer. " + ". ".join(f"{o.name}: {o.formula}" for o in OPTIMIZERS.values()) + ".",
        choices=OPTIMIZERS.keys(),
        checked_late=True,
    )
    init_learning_rate: float | None = _schedule(
        None, "Learning rate to start from; the model's own schedule if not given.", minimum=0
    )
    piecewise_learning_rate_schedule: PiecewiseSchedule | None = flag(
        None,
        "Learning rates and the epochs at which they change, LR0;E1;LR1;...;En;LRn: "
        "0.3;10;0.2;25;0.1 is 0.3 for ten epochs, 0.2 until epoch 25, then 0.1.",
        parser=parse_piecewise,
        part=RunPart.UPDATE | RunPart.LEARNING_RATE,
    )
    learning_rate_schedule: str = _schedule(
        "staircase",
        "How --init_learning_rate falls. "
        + ". ".join(f"{one.name}: {one.about}" for one in SCHEDULES.values())
        + ".",
        choices=SCHEDULES.keys(),
        checked_late=True,
    )
    num_learning_rate_warmup_epochs: float = _schedule(
        0.0,
        "Epochs over which the learning rate rises linearly from 0; only with "
        "--init_learning_rate or --piecewise_learning_rate_schedule.",
        minimum=0,
    )
    resnet_base_lr: float | None = _schedule(
        None,
        "Learning rate at a global batch of 256, for models whose own schedule follows the batch "
        "size; 0.128 for the ImageNet ResNets if not given.",
        minimum=0,
    )
    label_smoothing: float = _update(
        0.0,
        "Share of every label that the training loss spreads evenly over all classes; for models "
        "whose loss is the softmax cross entropy.",
        minimum=0,
        maximum=1,
    )
    gradient_clip: float | None = flag(
        None,
        "Clip every element of the reduced gradients to within plus and minus this.",
        above=0,
        part=RunPart.UPDATE | RunPart.CLIPPING,
    )
    weight_decay: float = _update(
        4e-5,
        "Factor of the L2 term, half the squared norm of the weights; with "
        f"--optimizer={', '.join(o.name for o in OPTIMIZERS.values() if o.decoupled)}, of decay as "
        "a part of the update and not of the loss.",
        minimum=0,
    )
