"""Optimizers and learning-rate schedules. This package does not import TensorFlow."""

from cnnbench.optimizers.registry import (
    OPTIMIZERS,
    SCHEDULES,
    Constant,
    OptimizerSpec,
    ScheduledSteps,
    ScheduleSpec,
    Slot,
    register_optimizer,
    register_schedule,
)

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
