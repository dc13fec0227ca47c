"""Execution of all processes of a job on this machine, up to their common end."""

from __future__ import annotations

import math
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.base.interrupts import AT_ONCE, name_of, obey
from cnnbench.base.jobs.job import Job, Task
from cnnbench.base.jobs.probe import REFUSED
from cnnbench.base.text.escape import one_line
from cnnbench.base.text.messages import error_line, fatal_message
from cnnbench.campaigns.processes.child import Child, Command, Ended, end_of, start, stop
from cnnbench.errors import BenchmarkError, ExitCode

_LOOK_SECONDS = 0.1
_LONGEST_PART = 1 << 20

AFTER_SUCCESS, AFTER_FAILURE = 30.0, 10.0
"""Seconds that the others may still run after the end of the chief."""

AFTER_LOSS = 45.0
"""Seconds that the chief may still run after the end of another process, which it names before it
writes the record."""


@dataclass
class _Process:
    """A process of the job, and how much of its log has been shown."""

    task: Task
    child: Child
    log: Path
    ended: Ended | None = None
    shown: int = 0

    @property
    def ok(self) -> bool:
        return self.ended is not None and self.ended.code == 0

    def news(self) -> list[str]:
        """New lines of the log with the name of the task; incomplete ones only after its end."""
        try:
            with open(self.log, "rb") as file:
                file.seek(self.shown)
                data = file.read(_LONGEST_PART)
        except OSError as error:
            raise BenchmarkError(f"{self.log}: {error.strerror or error}") from error
        if self.ended is None and len(data) < _LONGEST_PART:
            data = b"".join(data.rpartition(b"\n")[:2])  # whole lines
        self.shown += len(data)
        return [
            f"[{self.task}] " + one_line(line.rpartition("\r")[2])
            for line in data.decode(errors="replace").replace("\r\n", "\n").split("\n")
            if line.strip()
        ]


@dataclass(kw_only=True)
class JobSession:
    """One job, whose chief prints to the standard output of this process, byte for byte.

    All other output goes to the log of its process and, after the name of its task, to `show`.

    Attributes:
      job: its tasks, as the chief sees them.
      command, variables: program with arguments, and environment variables, of each process.
      cores: processors for each process, in the order of the tasks; None for all of them.
      spares: whether the others continue when a task is gone; see `Watchdog`.
    """

    job: Job
    command: Callable[[Job], Sequence[str]]
    variables: Callable[[Job], Mapping[str, str]]
    logs: Path
    show: Callable[[str], None]
    cores: Sequence[set[int]] | None = None
    spares: Callable[[Task, str], bool] = lambda task, state: False

    def __post_init__(self) -> None:
        self._processes: list[_Process] = []
        self._stopped = self._interrupted = False

    def run(self) -> int:
        """Runs the job to its end; none of its processes remains afterwards.

        Returns the exit code of the chief if it has failed by itself; 4 for any other failure. On
        KeyboardInterrupt the chief has had time to write its record.
        """
        with ExitStack() as stack:
            stack.callback(self._show_news)  # the last lines, when all are gone
            try:
                self._start(stack)
                self._wait()
            except KeyboardInterrupt:
                self._interrupted = True
                self._stop()
                raise
        return self._outcome()

    def _start(self, stack: ExitStack) -> None:
        job, stdout = self.job, None
        cores = self.cores or (None,) * len(job.tasks)
        with suppress(AttributeError, OSError, ValueError):  # it may be closed
            sys.stdout.flush()
        with suppress(AttributeError, OSError, ValueError):
            stdout = sys.stdout.fileno()
        for task, own in zip(job.tasks, cores, strict=False):
            seen = replace(job, task=task)
            log = self.logs / f"{task.job}-{task.index}.log"
            command = Command(
                words=self.command(seen), log=log, environment=self.variables(seen), cores=own
            )
            child = start(command, stdout=stdout if task == job.chief else None)
            stack.enter_context(child)
            self._processes.append(_Process(task, child, log))

    def _wait(self) -> None:
        """Waits until all processes have ended, or for the time left after the end of others."""
        deadline = math.inf
        while running := self._running(self._processes):
            obey()
            self._look(running)
            deadline = min(deadline, time.monotonic() + self._limit())
            if time.monotonic() >= deadline:
                self._stop()
                return

    def _limit(self) -> float:
        """Seconds from now that others may still run after the ends so far; may be infinite."""
        chief = self._processes[0]
        if chief.ok:
            return AFTER_SUCCESS
        if chief.ended is not None:
            return AFTER_FAILURE
        lost = [one for one in self._processes if one.ended is not None and not one.ok]
        return math.inf if all(map(self._spared, lost)) else AFTER_LOSS

    def _spared(self, process: _Process) -> bool:
        return self.spares(process.task, REFUSED)

    def _stop(self) -> None:
        """Ends running processes: the chief first, whose record has the reason."""
        self._stopped = True
        for process in self._running(self._processes):
            process.child.send(signal.SIGCONT)  # the chief may wait for a suspended one
        # The others, which leave no record, need not announce anything.
        for part, seconds in ((self._processes[:1], None), (self._processes[1:], AT_ONCE / 4)):
            running = self._running(part)
            ended = stop([one.child for one in running], lambda line: self._show_news(), seconds)
            for process, end in zip(running, ended, strict=True):
                process.ended = end

    @staticmethod
    def _running(processes: Sequence[_Process]) -> list[_Process]:
        return [process for process in processes if process.ended is None]

    def _look(self, running: Sequence[_Process]) -> None:
        """Waits a moment, registers ended processes, and prints new output."""
        by_child = {process.child: process for process in running}
        ended, _, _ = select.select(list(by_child), [], [], _LOOK_SECONDS)
        for child in ended:
            by_child[child].ended = child.wait(_LOOK_SECONDS)
        self._show_news()

    def _show_news(self) -> None:
        known = error_line("interrupted")  # the line of the job, too
        for process in self._processes:
            for line in process.news():
                if not (self._interrupted and line.endswith(known)):
                    self.show(line)

    def _outcome(self) -> int:
        for process in self._processes:
            if not process.ok:
                why = _ended(process.ended, process.log)
                self.show(error_line(f"{process.task} {why}; {process.log}"))
        chief = self._processes[0].ended
        if not self._stopped and chief is not None and (chief.code or 0) > 0:
            return int(chief.code or 0)
        ok = all(one.ok or self._spared(one) for one in self._processes[1:])
        return int(ExitCode.OK if self._processes[0].ok and ok else ExitCode.FAILED)


def _ended(ended: Ended | None, log: Path) -> str:
    if ended is None or (ended.timed_out and ended.code == -signal.SIGKILL):
        return "did not end and was killed"
    if ended.error is not None:
        return f"was not started: {ended.error}"
    if ended.code is None:
        return "was killed together with its guard"
    if ended.code < 0:
        reason = fatal_message(end_of(log))
        return f"was ended by {name_of(-ended.code)}{reason and ': '}{reason}"
    return f"ended with exit status {ended.code}"
