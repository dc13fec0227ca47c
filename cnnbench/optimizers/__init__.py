"""Optimizers and learning-rate schedules. This package does not import TensorFlow."""

from cnnbench.optimizers.clipping import CLIPPINGS
from cnnbench.optimizers.registry import (
    OPTIMIZERS,
    SCHEDULES,
    DeclarationRegistry,
    register_optimizer,
    register_schedule,
)
from cnnbench.optimizers.schedules import (
    PiecewiseSchedule,
    Schedule,
    ScheduledSteps,
    ScheduleSpec,
    parse_piecewise,
)
from cnnbench.optimizers.spec import Constant, OptimizerSpec, Slot

__all__ = [
    "CLIPPINGS",
    "OPTIMIZERS",
    "SCHEDULES",
    "Constant",
    "DeclarationRegistry",
    "OptimizerSpec",
    "PiecewiseSchedule",
    "Schedule",
    "ScheduleSpec",
    "ScheduledSteps",
    "Slot",
    "parse_piecewise",
    "register_optimizer",
    "register_schedule",
]
