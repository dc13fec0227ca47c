"""Parts of a run that every scenario uses; without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cnnbench.base.text.progress import Messages, Progress
from cnnbench.machine.watch import Watch
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.measurements import Measurements
from cnnbench.run.driver.console import Console
from cnnbench.run.runtime.activity import Activity
from cnnbench.run.runtime.turns import Turns

if TYPE_CHECKING:
    from cnnbench.run.driver.step_profile import StepProfiler


@dataclass(frozen=True)
class ScenarioContext:
    """Parts that every scenario uses.

    Attributes:
      measurements: filled during the run.
      watch: entered before the timed loop and left after it.
      gone: returns workers that no longer answer, with the reasons; for runs that survive their
        loss.
      profiler: of the last steps of the warm-up.
      turns: turns of this process, where several processes step in turn.
      activity: what the loop is doing, for the watchdog.
    """

    plan: RunPlan
    console: Console
    messages: Messages
    progress: Progress
    measurements: Measurements
    watch: Watch
    gone: Callable[[], Mapping[str, str]] = dict
    profiler: StepProfiler | None = None
    turns: Turns = field(default_factory=Turns)
    activity: Activity = field(default_factory=Activity)
