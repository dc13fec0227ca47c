"""The context of a run: parameters, plan, outputs, measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cnnbench.base.text.progress import Messages, Progress
from cnnbench.flags import Params
from cnnbench.machine.watch import Watch
from cnnbench.records.measurements import Measurements
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.learning_rate import Schedule, make_schedule
from cnnbench.run.driver.plan import Plan
from cnnbench.run.driver.probes import Looks
from cnnbench.run.runtime.activity import Activity
from cnnbench.run.runtime.turns import Turns


@dataclass(frozen=True)
class ScenarioContext:
    """Parts that every scenario uses.

    Attributes:
      measurements: filled during the run.
      watch: entered before the timed loop and left after it.
      gone: workers that do not answer any more, with the reason; for runs that outlive them.
      looks: probes of warm-up steps in addition to those of the parameters.
      turns: turns of this process, where several processes step in turn.
      activity: what the loop is doing, for the watchdog.
    """

    params: Params
    plan: Plan
    console: Console
    messages: Messages
    progress: Progress
    measurements: Measurements
    watch: Watch
    gone: Callable[[], Mapping[str, str]] = dict
    looks: Looks | None = None
    turns: Turns = field(default_factory=Turns)
    activity: Activity = field(default_factory=Activity)

    @property
    def schedule(self) -> Schedule:
        """The learning rate of every step."""
        plan = self.plan
        return make_schedule(
            self.params,
            plan.model.learning_rate,
            plan.global_batch,
            plan.train_examples,
            plan.training_steps,
        )
