"""Runs all processes of a job on this machine until they have ended."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.base.child import exit_sentence
from cnnbench.base.interrupts import AT_ONCE
from cnnbench.base.job import Job, Task
from cnnbench.base.probe import REFUSED
from cnnbench.base.text import error_line, fatal_message, to_terminal_line
from cnnbench.campaigns.processes.child import (
    Child,
    Command,
    log_tail,
    stop_children,
    watch_children,
)
from cnnbench.errors import BenchmarkError, ExitCode

_LOOK_SECONDS = 0.1
_LONGEST_PART = 1 << 20

AFTER_SUCCESS, AFTER_FAILURE = 30.0, 10.0
"""Seconds that other processes may continue after the chief has succeeded or failed."""

AFTER_LOSS = 45.0
"""Seconds that the chief may continue after another process has ended. In this time, it reports the
process and writes its record.
"""


@dataclass
class _JobProcess:
    """A process of a job, with the number of bytes of its log that have been printed."""

    task: Task
    child: Child
    shown: int = 0

    @property
    def has_succeeded(self) -> bool:
        return self.child.ended is not None and self.child.ended.code == 0

    def new_log_lines(self) -> list[str]:
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
    """Runs the processes of one job, and prints their output.

    The standard output of the chief is passed through unchanged. All other output is written to the
    log of its process and passed to `show`, after the name of the task.

    Attributes:
      job: the job; its task is the chief.
      command, variables: program with arguments, and environment variables, of each process.
      cores: processors for each process, in the order of the tasks; None for all processors.
      spares: whether other tasks continue after a task has ended; see `Watchdog`.
    """

    job: Job
    command: Callable[[Job], Sequence[str]]
    variables: Callable[[Job], Mapping[str, str]]
    logs: Path
    show: Callable[[str], None]
    cores: Sequence[set[int]] | None = None
    spares: Callable[[Task, str], bool] = lambda task, state: False

    def __post_init__(self) -> None:
        self._processes: list[_JobProcess] = []
        self._stopped = self._interrupted = False

    def run(self) -> int:
        """Runs all processes of the job until they have ended. Returns the job's exit code.

        This is the exit code of the chief if the chief failed by itself, and 4 for any other
        failure. On KeyboardInterrupt, the chief has had time to write its record.
        """
        with ExitStack() as stack:
            # The last lines of the logs are printed after all processes have ended.
            stack.callback(self._show_new_log_lines)
            try:
                self._start_processes(stack)
                self._wait_for_processes()
            except KeyboardInterrupt:
                self._interrupted = True
                self._stop_processes()
                raise
        return self._job_exit_code()

    def _start_processes(self, stack: ExitStack) -> None:
        job, stdout = self.job, None
        cores = self.cores or (None,) * len(job.tasks)
        with suppress(AttributeError, OSError, ValueError):  # Standard output may be closed.
            sys.stdout.flush()
        with suppress(AttributeError, OSError, ValueError):
            stdout = sys.stdout.fileno()
        for task, own in zip(job.tasks, cores, strict=False):
            seen = replace(job, task=task)
            log = self.logs / f"{task.job}-{task.index}.log"
            command = Command(
                words=self.command(seen), log=log, environment=self.variables(seen), cores=own
            )
            child = Child(command, stdout=stdout if task == job.chief else None)
            stack.enter_context(child)
            self._processes.append(_JobProcess(task, child))

    def _wait_for_processes(self) -> None:
        """Waits until all processes have ended, and prints their output. Stops processes that still
        run after `_remaining_seconds`.
        """
        deadline = math.inf
        while running := _running(self._processes):
            watch_children(running, _LOOK_SECONDS)
            self._show_new_log_lines()
            deadline = min(deadline, time.monotonic() + self._remaining_seconds())
            if time.monotonic() >= deadline:
                self._stop_processes()
                return

    def _remaining_seconds(self) -> float:
        """Seconds that running processes may continue after another process of the job has ended;
        may be infinite.
        """
        chief = self._processes[0]
        if chief.has_succeeded:
            return AFTER_SUCCESS
        if chief.child.ended is not None:
            return AFTER_FAILURE
        lost = [
            process
            for process in self._processes
            if process.child.ended is not None and not process.has_succeeded
        ]
        spared = all(self.spares(process.task, REFUSED) for process in lost)
        return math.inf if spared else AFTER_LOSS

    def _stop_processes(self) -> None:
        """Stops running processes. The chief is first, because its record contains the reason."""
        self._stopped = True
        for child in _running(self._processes):
            child.send_signal(signal.SIGCONT)  # The chief may wait for a suspended process.
        # Only the chief writes a record, so other processes get little time to end.
        for part, seconds in ((self._processes[:1], None), (self._processes[1:], AT_ONCE / 4)):
            stop_children(_running(part), lambda line: self._show_new_log_lines(), seconds)

    def _show_new_log_lines(self) -> None:
        # After an interrupt, `cnnbench launch` itself prints that it was interrupted.
        known = error_line("interrupted")
        for process in self._processes:
            for line in process.new_log_lines():
                if not (self._interrupted and line.endswith(known)):
                    self.show(line)

    def _job_exit_code(self) -> int:
        for process in self._processes:
            if not process.has_succeeded:
                self.show(error_line(f"{_end_text(process)}; {process.child.log}"))
        chief = self._processes[0].child.ended
        if not self._stopped and chief is not None and (chief.code or 0) > 0:
            return int(chief.code or 0)
        others = self._processes[1:]
        ok = all(other.has_succeeded or self.spares(other.task, REFUSED) for other in others)
        return int(ExitCode.OK if self._processes[0].has_succeeded and ok else ExitCode.FAILED)


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
