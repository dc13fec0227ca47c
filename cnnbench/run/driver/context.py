"""What the driver shares with the work of a run: plan, outputs, measurements, and the other
processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cnnbench.base.terminal import MessageWriter, ProgressLine
from cnnbench.machine.watch import ConditionMonitor
from cnnbench.plan import RunPlan
from cnnbench.records.measurements import Measurements
from cnnbench.records.result_files import ResultFiles
from cnnbench.run.driver.console import Console
from cnnbench.run.driver.membership import JobMembership

if TYPE_CHECKING:
    from cnnbench.run.driver.step_profile import StepProfiler


@dataclass(eq=False, repr=False)
class RunContext:
    """Everything that the work of a run needs besides its TensorFlow objects.

    Attributes:
      plan: the plan of the run.
      console, messages, progress_line: the log of the run, its notices and warnings, and the line
        that shows its progress.
      files: the result files of the run.
      measurements: results and recorded properties, which are filled in during the run.
      watch: a context manager around the timed loop. It measures conditions of the machine, from
        the start of the devices.
      membership: connections to the other processes of the job.
      profiler: profiles the last steps of the warm-up; None if nothing is profiled.
    """

    plan: RunPlan
    console: Console
    messages: MessageWriter
    progress_line: ProgressLine
    files: ResultFiles
    measurements: Measurements
    watch: ConditionMonitor
    membership: JobMembership
    profiler: StepProfiler | None = None
