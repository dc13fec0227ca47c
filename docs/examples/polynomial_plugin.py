"""A polynomial fall of the learning rate: cnnbench --plugin=docs/examples/polynomial_plugin.py
--learning_rate_schedule=polynomial --init_learning_rate=0.1 --learning_rate_power=3.
"""

from collections.abc import Callable

from cnnbench.optimizers import (
    SCHEDULES,
    Constant,
    ScheduledSteps,
    ScheduleSpec,
    register_schedule,
)

POWER = Constant("learning_rate_power", 2.0, "Power of a polynomial fall", above=0)


def polynomial(run: ScheduledSteps, floor: float, power: float) -> Callable[[int], float]:
    """The rate of a step, counted from 0; not called for steps of the warm-up."""
    return lambda step: floor + (run.base - floor) * (1.0 - run.done(step)) ** power


register_schedule(
    ScheduleSpec(
        name="polynomial",
        about="by --learning_rate_power to --minimum_learning_rate at the end of the run",
        make=polynomial,
        constants={"floor": SCHEDULES.constants["minimum_learning_rate"], "power": POWER},
    )
)
