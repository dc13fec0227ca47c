"""A quadratic fall of the learning rate: cnnbench --plugin=docs/examples/polynomial_plugin.py
--learning_rate_schedule=polynomial --init_learning_rate=0.1 --minimum_learning_rate=0.001.
"""

from collections.abc import Callable

from cnnbench.optimizers import SCHEDULES, ScheduledSteps, ScheduleSpec, register_schedule

POWER = 2.0


def polynomial(run: ScheduledSteps, floor: float) -> Callable[[int], float]:
    """The rate of a step, counted from 0; not called for steps of the warm-up."""
    return lambda step: floor + (run.base - floor) * (1.0 - run.done(step)) ** POWER


register_schedule(
    ScheduleSpec(
        name="polynomial",
        about="quadratically to --minimum_learning_rate at the end of the run",
        make=polynomial,
        constants={"floor": SCHEDULES.constants["minimum_learning_rate"]},
    )
)
