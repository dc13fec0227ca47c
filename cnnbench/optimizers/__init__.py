"""Optimizers and learning-rate schedules. This package does not import TensorFlow."""

from cnnbench.optimizers.registry import (
    OPTIMIZERS,
    SCHEDULES,
    register_optimizer,
    register_schedule,
)
from cnnbench.optimizers.schedules import ScheduledSteps, ScheduleSpec
from cnnbench.optimizers.spec import Constant, OptimizerSpec, Slot

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Constant",
    "OptimizerSpec",
    "ScheduleSpec",
    "ScheduledSteps",
    "Slot",
    "register_optimizer",
    "register_schedule",
]
