"""Declared optimizers and learning-rate schedules; importing this does not import TensorFlow."""

from cnnbench.optimizers.registry import (
    OPTIMIZERS,
    SCHEDULES,
    register_optimizer,
    register_schedule,
)
from cnnbench.optimizers.schedules import ScheduleSpec, Span
from cnnbench.optimizers.spec import Constant, OptimizerSpec, Slot

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Constant",
    "OptimizerSpec",
    "ScheduleSpec",
    "Slot",
    "Span",
    "register_optimizer",
    "register_schedule",
]
