"""Runs processes, alone or interleaved, and records when each of their output lines arrives.

Interleaved processes are started together, and one of them runs at a time for a time slice. The
others are stopped (SIGSTOP), with all their descendants. The first time slice begins when every
process has completed a step. A time slice ends with the first step that is complete after its
length. Step times do not include the time in which a process is stopped, and steps before the first
time slice are not included in results. This module needs only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STEP_LINE = re.compile(r"^(\d+)\timages/sec: ")
_REST_SECONDS = 3.0
"""Seconds for which a process is stopped after a step while other processes still start.

TensorFlow's workers consider each other dead after ten seconds without a message.
"""
_CHECK_SECONDS = 0.2
"""Seconds between two checks of stopped processes and time-outs."""


class ProcessError(Exception):
    """A process has failed. The message is one line."""


@dataclass(frozen=True)
class Line:
    """A line of a process's standard output.

    Attributes:
      seconds: Time of arrival, in seconds after the start of the process, without stopped time.
      resident_bytes: Resident memory of the process at this time; None if unknown.
    """

    seconds: float
    text: str
    resident_bytes: int | None = None


@dataclass(eq=False)
class Process:
    """A child process in its own process group: command, state and results.

    Attributes:
      watch_memory: Function that selects the lines at which resident memory is recorded.
      status: Exit status; None if the process could not be started.
      seconds: Duration of the process in seconds, without stopped time.
      timed_out: Whether the process was killed because of the time-out.
      waited: Seconds for which the process was stopped; not included in other times.
      counted: Index of the last line before the first time slice, from which times are used.
      peak_bytes: Peak resident memory of the process, or of a child that it waited for.
      cpu_seconds: CPU time of the process and of children that it waited for.
      stopped: Time at which the process was stopped; None while it runs.
      turn: Time at which the latest time slice began; None before the first time slice.
    """

    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    watch_memory: Callable[[str], bool] | None = None
    status: int | None = None
    seconds: float = 0.0
    lines: list[Line] = field(default_factory=list)
    errors: str = ""
    timed_out: bool = False
    waited: float = 0.0
    counted: int = 0
    peak_bytes: int | None = None
    cpu_seconds: float = 0.0
    stopped: float | None = None
    turn: float | None = None

    @property
    def reason(self) -> str:
        """Why the process failed, in one line."""
        if self.timed_out:
            return f"killed after {self.seconds:.0f} s"
        if self.status is None:
            return self.errors
        printed = [line.strip() for line in self.errors.splitlines() if line.strip()]
        printed = printed or [line.text.strip() for line in self.lines if line.text.strip()]
        return f"exit status {self.status}: {printed[-1][:200] if printed else 'no output'}"

    def require(self, status: int = 0) -> None:
        """Raises ProcessError unless the process ended by itself with this exit status."""
        if self.timed_out or self.status != status:
            raise ProcessError(self.reason)

    def start(self) -> bool:
        """Starts the process; returns whether this succeeded."""
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see reap
        self._begun, self._rest = time.perf_counter(), b""
        try:
            self._popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
                cwd=self.folder,
                start_new_session=True,
            )
        except OSError as error:
            self.errors = f"{self.command[0]} cannot be started: {error.strerror}"
        return not self.errors

    def fileno(self) -> int:
        """Returns the file descriptor of the process's standard output, for `select`."""
        assert self._popen.stdout is not None
        return self._popen.stdout.fileno()

    def read(self) -> list[str] | None:
        """Reads, records and returns lines that have arrived; returns None at the end of output."""
        seconds = time.perf_counter() - self._begun - self.waited
        data = os.read(self.fileno(), 1 << 16)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            whole = [self._rest]
        found = [line.decode(errors="replace") for line in whole]
        for text in found:
            watched = self.watch_memory is not None and self.watch_memory(text)
            memory = resident_bytes(self._popen.pid) if watched else None
            self.lines.append(Line(seconds, text, memory))
        return found if data else None

    def stop(self) -> None:
        """Stops the process and its descendants."""
        self.stopped = time.perf_counter()
        signal_all(self._popen.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Continues the stopped process and its descendants."""
        self.waited += time.perf_counter() - (self.stopped or 0.0)
        self.stopped = None
        signal_all(self._popen.pid, signal.SIGCONT)

    def kill_if_late(self, timeout: float) -> bool:
        """Kills the process if it has exceeded `timeout` seconds; returns whether it has."""
        if not self.timed_out and time.perf_counter() - self._begun > timeout:
            self.timed_out = True
            self.kill()
        return self.timed_out

    def kill(self) -> None:
        """Kills the process and its descendants."""
        signal_all(self._popen.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def reap(self, timeout: float) -> None:
        """Waits for the end of the process, after the end of its output."""
        while not (end := os.wait4(self._popen.pid, os.WNOHANG))[0]:
            self.kill_if_late(timeout)
            time.sleep(0.001)
        self._popen.returncode = self.status = os.waitstatus_to_exitcode(end[1])
        self.seconds = time.perf_counter() - self._begun - self.waited
        self.peak_bytes = end[2].ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self.cpu_seconds = end[2].ru_utime + end[2].ru_stime
        self._errors.seek(0)
        self.errors = self._errors.read()
        self._errors.close()
        self._popen.stdout.close()  # type: ignore[union-attr]


def run(
    command: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> Process:
    """Runs one command to its end; after the time-out, kills it and its descendants."""
    process = Process(command, environment or {}, folder)
    run_in_turn([process], timeout)
    return process


def run_in_turn(
    processes: Sequence[Process], timeout: float, turn_seconds: float | None = None
) -> None:
    """Runs processes to their ends, interleaved in time slices of at least `turn_seconds`.

    None for `turn_seconds` runs all processes at the same time.
    """
    queue: list[Process] = []
    try:
        for one in processes:
            if one.start():
                queue.append(one)
        starting = {*queue} if turn_seconds is not None else set()
        while queue:
            readable, _, _ = select.select(queue, [], [], min(_CHECK_SECONDS, timeout))
            for one in readable:
                lines = one.read()
                if lines is None:
                    one.reap(timeout)
                    queue.remove(one)
                    starting.discard(one)
                elif turn_seconds is not None and any(map(is_step_line, lines)):
                    starting.discard(one)
                    _after_step(one, queue, turn_seconds)
            waiting = [one for one in queue if not one.kill_if_late(timeout) and one.stopped]
            now = time.perf_counter()
            if starting:
                for one in waiting:
                    if now - (one.stopped or now) > _REST_SECONDS:
                        one.go_on()
            elif turn_seconds is not None and len(waiting) == len(queue) > 0:
                queue[0].turn = now
                queue[0].go_on()
    finally:
        for one in queue:
            one.kill()
            one.reap(timeout)


def _after_step(one: Process, queue: list[Process], turn_seconds: float) -> None:
    """Stops a process after a step, if its time slice is over or time slices have not begun."""
    if one.turn is None:
        one.counted = len(one.lines) - 1
    elif len(queue) == 1 or time.perf_counter() - one.turn < turn_seconds:
        return
    else:
        queue.remove(one)
        queue.append(one)
    one.stop()


def is_step_line(text: str) -> bool:
    """Whether an output line reports a training step."""
    return STEP_LINE.match(text) is not None


def resident_bytes(root: int) -> int | None:
    """Returns the largest resident memory among a process and its descendants; None if unknown.

    A run of cnnbench measures in a child of the process that was started.
    """
    found = []
    for process in process_tree_ids(root):
        with contextlib.suppress(OSError):
            pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
            found.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))
    return max(found, default=None)


def signal_all(root: int, number: int) -> None:
    """Sends a signal to a process and its descendants.

    A signal to the process group is not enough, because `cnnbench launch` starts each process in a
    separate group.
    """
    for process in process_tree_ids(root):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def process_tree_ids(root: int) -> list[int]:
    """Returns the process ids of a process and its descendants; without /proc, only `root`."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rsplit(b")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = [root]
    for process in found:
        found += children.get(process, ())
    return found
