"""Observers are called at the events of a run, and may do work between the steps of its timed loop.

The type of an observer says what it may do there:

- An `Observer` is called between two steps, and must return quickly. On a GPU, the next step
  already runs.
- A `PausingObserver` can also request pauses, in which no step is in flight. The time of a pause is
  part of the loop's time, but of no step's time.
- A `SuspendingObserver` can also suspend the loop. This time is not part of the loop's time.

Plug-ins can register observers of the first two types.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cnnbench.base import interfaces, plugins
from cnnbench.base.registry import Registry
from cnnbench.records.run import Evaluation

if TYPE_CHECKING:
    from cnnbench.run.driver.step_loop import LoopTimer  # This module loads TensorFlow.


class TrainingState(NamedTuple):
    """The state of a training after a step of the warm-up or of the timed loop.

    Attributes:
      global_step: global step of the weights.
      metrics: metrics of the step's batch by name; empty unless they are computed.
      images_per_sec: speed in the row of the step; None in the warm-up.
    """

    global_step: int
    learning_rate: float
    loss: float
    metrics: Mapping[str, float]
    images_per_sec: float | None


class Observer:
    """Base class of objects that are called at the events of a run. It ignores all events."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not plugins.is_defined_by_cnnbench(cls):
            interfaces.guard_plugin_methods(cls, PausingObserver)

    def training_begins(self, global_step: int, steps: int) -> None:
        """Called when the training begins, which runs a warm-up and at most `steps` timed steps."""

    def table_row_printed(
        self, step: int, images_per_sec: float, metrics: Mapping[str, float]
    ) -> None:
        """Called when the table's row for a timed step was printed. The first step is 1.

        `metrics` is as in `TrainingState`.
        """

    def evaluation_begins(self, global_step: int) -> None:
        """Called when an evaluation begins. The training is paused or has ended."""

    def evaluation_completed(self, evaluation: Evaluation) -> None:
        """Called when the metrics of an evaluation are complete."""

    def training_resumes_after_evaluation(self, global_step: int) -> None:
        """Called when the training continues after an evaluation."""

    def training_stopped(self, global_step: int) -> None:
        """Called after the last step and the last evaluation, also if no step was left.

        Metrics of evaluations may still be in computation.
        """

    def training_ended(self, global_step: int, steps: int, total: float, mean: float) -> None:
        """Called when the training and its last evaluation have ended.

        `steps` is the number of timed steps. `total` is the speed over the timed loop, `mean` the
        speed at the mean step, in images per second.
        """

    def close(self) -> None:
        """Called when the run has ended, successfully or not."""


class PausingObserver(Observer, abc.ABC):
    """Base class of observers that pause the warm-up and the timed loop."""

    @abc.abstractmethod
    def needs_pause_after(self, global_step: int) -> bool:
        """Returns whether to call `training_paused` after this step (warm-up or timed loop)."""

    @abc.abstractmethod
    def training_paused(self, state: TrainingState) -> None:
        """Called while no step is running, so that the call may take a long time."""


class SuspendingObserver(PausingObserver):
    """Base class of observers that also suspend the warm-up and the timed loop."""

    @abc.abstractmethod
    def needs_suspension_after(self, global_step: int) -> bool:
        """Returns whether to call `training_suspended` after this step."""

    @abc.abstractmethod
    def training_suspended(
        self, global_step: int, loop_seconds: float | None, timer: LoopTimer
    ) -> bool:
        """Called while no step is running and the timed loop is suspended. Returns whether to end
        the training.

        Args:
          global_step: global step of the weights.
          loop_seconds: time of the timed loop so far; None in the warm-up.
          timer: times the loop, and excludes this call.
        """

    @abc.abstractmethod
    def steps_ended(self, global_step: int, loop_seconds: float, timer: LoopTimer) -> None:
        """Called after the last step, also if no step was left.

        The arguments are those of `training_suspended`; `loop_seconds` is 0 without timed steps.
        """


M = TypeVar("M", bound=Callable[[Any], Observer | None])

OBSERVERS: Registry[str, Callable[[Any], Observer | None]] = Registry(
    "observer", "cnnbench.run.driver.observers.register_observer(name)"
)
"""Functions that create the observers of plug-ins, by name."""


def register_observer(name: str) -> Callable[[M], M]:
    """Decorator that registers a function that creates an observer of each run.

    The function takes the flags of the run (`cnnbench.Params`). If it returns None, the run has no
    such observer. In a job, every process calls the function.

    Raises:
      UsageError: another observer has the name.
    """

    def register(make: M) -> M:
        plugins.check_name("an observer", name)
        OBSERVERS.add(name, interfaces.with_checked_results(make, Observer | None, ("params",)))
        return make

    return register
