"""Runs the processes of a job that `cnnbench launch` starts, and prints their output."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.base.child import exit_sentence
from cnnbench.base.escapes import to_terminal_line
from cnnbench.base.interrupts import AT_ONCE
from cnnbench.base.job import Job, Task
from cnnbench.base.log_lines import error_line, fatal_message
from cnnbench.base.ports import ReservedPorts
from cnnbench.campaigns.launch import JobLayout, TaskCommand, gpu_variables
from cnnbench.campaigns.processes import Child, Command, log_tail, stop_children, wait_for_any
from cnnbench.errors import BenchmarkError, ExitCode
from cnnbench.plan import RunPlan
from cnnbench.run.runtime.supervisor import GUARDED

AFTER_SUCCESS, AFTER_FAILURE = 30.0, 10.0
"""Seconds that other processes may continue after the chief has succeeded or failed."""

AFTER_LOSS = 45.0
"""Seconds that the chief may continue after another process has ended. In this time, it reports the
process and writes its record.
"""

_LOOK_SECONDS = 0.1
_LONGEST_PART = 1 << 20


@dataclass
class _JobProcess:
    """A process of a job, with the number of bytes of its log that have been printed."""

    task: Task
    child: Child
    shown: int = 0

    @property
    def has_succeeded(self) -> bool:
        return self.child.ended is not None and self.child.ended.code == 0

    def read_new_lines(self) -> list[str]:
        """Reads new lines of the process's log, and puts the name of its task before each line.

        An incomplete line is only included after the process has ended.
        """
        try:
            with open(self.child.log, "rb") as file:
                file.seek(self.shown)
                data = file.read(_LONGEST_PART)
        except OSError as error:
            raise BenchmarkError(f"{self.child.log}: {error.strerror or error}") from error
        if self.child.ended is None and len(data) < _LONGEST_PART:
            data = b"".join(data.rpartition(b"\n")[:2])  # Only complete lines are printed.
        self.shown += len(data)
        return [
            f"[{self.task}] " + to_terminal_line(line.rpartition("\r")[2])
            for line in data.decode(errors="replace").replace("\r\n", "\n").split("\n")
            if line.strip()
        ]


@dataclass(kw_only=True)
class JobSession:
    """Runs the processes of one job on this machine, and prints their output.

    The standard output of the chief is passed through unchanged. All other output is written to the
    log of its process and passed to `show`, after the name of the task.

    Attributes:
      layout: the processes of the job.
      command, towers: the command that all processes run, and the towers of each worker.
      chief: the plan of the job's chief, which says whether the job goes on without a task.
      cores: processors for each process, in the order of the tasks; None for all processors.
    """

    layout: JobLayout
    command: TaskCommand
    towers: int | None
    chief: RunPlan
    show: Callable[[str], None]
    cores: Sequence[set[int]] | None = None

    def __post_init__(self) -> None:
        self._processes: list[_JobProcess] = []
        self._stopped = self._interrupted = False

    def run(self, logs: Path) -> int:
        """Runs all processes of the job until they have ended, with a log for each in `logs`.

        Returns the job's exit code: 0 after a success, the exit code of the chief if the chief
        failed by itself, and 4 for any other failure. On KeyboardInterrupt, the chief has had
        time to write its record.
        """
        with ExitStack() as stack:
            ports = stack.enter_context(ReservedPorts(self.layout.size))
            # The last lines of the logs are printed after all processes have ended.
            stack.callback(self._show_log)
            try:
                self._start(self.layout.make_job(ports.numbers), logs, stack)
                self._wait()
            except KeyboardInterrupt:
                self._interrupted = True
                self._stop()
                raise
        return self._report_outcome()

    def _start(self, job: Job, logs: Path, stack: ExitStack) -> None:
        stdout = None
        cores = self.cores or (None,) * len(job.tasks)
        with suppress(AttributeError, OSError, ValueError):  # Standard output may be closed.
            sys.stdout.flush()
        with suppress(AttributeError, OSError, ValueError):
            stdout = sys.stdout.fileno()
        for task, own in zip(job.tasks, cores, strict=False):
            seen = replace(job, task=task)
            command = Command(
                words=self.command.task_command_line(seen, self.towers),
                log=logs / f"{task.job}-{task.index}.log",
                environment={GUARDED: "", **gpu_variables(seen, self.chief.params)},
                cores=own,
            )
            child = Child(command, stdout=stdout if task == job.chief else None)
            stack.enter_context(child)
            self._processes.append(_JobProcess(task, child))

    def _wait(self) -> None:
        """Waits until all processes have ended, and prints their output. Stops processes that still
        run after `_grace_seconds`.
        """
        deadline = math.inf
        while running := _running(self._processes):
            wait_for_any(running, _LOOK_SECONDS)
            self._show_log()
            deadline = min(deadline, time.monotonic() + self._grace_seconds())
            if time.monotonic() >= deadline:
                self._stop()
                return

    def _grace_seconds(self) -> float:
        """Seconds that running processes may continue after another process of the job has ended;
        may be infinite.
        """
        chief, *others = self._processes
        if chief.child.ended is not None:
            return AFTER_SUCCESS if chief.has_succeeded else AFTER_FAILURE
        ended = [other for other in others if other.child.ended is not None]
        return math.inf if all(map(self._tolerates_end, ended)) else AFTER_LOSS

    def _tolerates_end(self, process: _JobProcess) -> bool:
        """Whether the job continues, and can succeed, after a process has ended."""
        spared = self.chief.place.tolerates_loss_of(process.task, ended=True)
        return process.has_succeeded or spared

    def _stop(self) -> None:
        """Stops running processes. The chief is first, because its record contains the reason."""
        self._stopped = True
        for child in _running(self._processes):
            child.send_signal(signal.SIGCONT)  # The chief may wait for a suspended process.
        # Only the chief writes a record, so other processes get little time to end.
        for part, seconds in ((self._processes[:1], None), (self._processes[1:], AT_ONCE / 4)):
            stop_children(_running(part), lambda line: self._show_log(), seconds)

    def _show_log(self) -> None:
        # After an interrupt, `cnnbench launch` itself prints that it was interrupted.
        known = error_line("interrupted")
        for process in self._processes:
            for line in process.read_new_lines():
                if not (self._interrupted and line.endswith(known)):
                    self.show(line)

    def _report_outcome(self) -> int:
        for process in self._processes:
            if not process.has_succeeded:
                self.show(error_line(f"{_end_text(process)}; {process.child.log}"))
        chief, *others = self._processes
        code = None if chief.child.ended is None else chief.child.ended.code
        if code is not None and code > 0 and not self._stopped:
            return code
        succeeded = chief.has_succeeded and all(map(self._tolerates_end, others))
        return int(ExitCode.OK if succeeded else ExitCode.FAILED)


def _running(processes: Sequence[_JobProcess]) -> list[Child]:
    return [process.child for process in processes if process.child.ended is None]


def _end_text(process: _JobProcess) -> str:
    ended, log = process.child.ended, process.child.log
    if ended is None or (ended.timed_out and ended.code == -signal.SIGKILL):
        return f"{process.task} did not end and was killed"
    if ended.error is not None:
        return f"{process.task} was not started: {ended.error}"
    reason = fatal_message(log_tail(log)) if (ended.code or 0) < 0 else ""
    return f"{exit_sentence(str(process.task), ended.code)}{reason and ': '}{reason}"
