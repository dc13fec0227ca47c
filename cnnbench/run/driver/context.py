"""What a run shares with its work: plan, outputs, measurements, and the other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cnnbench.machine.watch import ConditionMonitor
from cnnbench.plan.run_plan import RunPlan
from cnnbench.records.measurements import Measurements
from cnnbench.run.driver.console import RunOutput
from cnnbench.run.driver.membership import JobMembership

if TYPE_CHECKING:
    from cnnbench.run.driver.step_profile import StepProfiler


@dataclass(frozen=True)
class RunContext:
    """What the work of a run needs besides its TensorFlow objects.

    It exists as soon as the processes of the job are connected.

    Attributes:
      plan: the plan of the run.
      output: what the run prints, and its result files.
      measurements: results and recorded properties, which are filled in during the run.
      watch: a context manager around the timed loop, which measures conditions of the machine.
      membership: connections to the other processes of the job.
      profiler: profiles the last steps of the warm-up; None if nothing is profiled.
    """

    plan: RunPlan
    output: RunOutput
    measurements: Measurements
    watch: ConditionMonitor
    membership: JobMembership
    profiler: StepProfiler | None
