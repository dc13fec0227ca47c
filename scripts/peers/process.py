"""Execution of one process, with the arrival time of every line it prints."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from peers.turns import Turn, family, signal_all


class ProcessError(Exception):
    """A process that failed; one line."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of standard output.

    Attributes:
      seconds: When it arrived, after the start of the process, less the time it was stopped.
      resident_bytes: Resident memory of the process then, None if unknown.
    """

    seconds: float
    text: str
    resident_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class EndedProcess:
    """A process that has ended.

    Attributes:
      timed_out: Whether it was killed for taking too long.
      waited: Seconds that it was stopped, in no other of these.
      counted: Which lines count: those from the beginning of its turns on.
      peak_bytes: The most resident memory it had, or a child that it waited for; None if unknown.
    """

    status: int
    seconds: float
    lines: tuple[Line, ...]
    errors: str
    timed_out: bool
    waited: float = 0.0
    counted: int = 0
    peak_bytes: int | None = None

    @property
    def reason(self) -> str:
        """The reason of its failure, in one line."""
        if self.timed_out:
            return f"killed after {self.seconds:.0f} s"
        printed = [line.strip() for line in self.errors.splitlines() if line.strip()]
        printed = printed or [line.text.strip() for line in self.lines if line.text.strip()]
        return f"exit status {self.status}: {printed[-1][:200] if printed else 'no output'}"

    def require(self, status: int = 0) -> None:
        """Raises ProcessError unless the process ended by itself with this exit status."""
        if self.timed_out or self.status != status:
            raise ProcessError(self.reason)


def resident_bytes(pid: int) -> int | None:
    """Largest resident memory of a process and its descendants, None if unknown.

    A run of cnnbench measures in a child of the process that was started.
    """
    found = []
    for process in family(pid):
        with contextlib.suppress(OSError):
            pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
            found.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))
    return max(found, default=None)


def run(
    command: Sequence[str],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
    watch_memory: Callable[[str], bool] | None = None,
    turn: Turn | None = None,
) -> EndedProcess:
    """Runs a command in a process group of its own, which is killed when time is up.

    Args:
      watch_memory: Selects the lines at which resident memory is noted.

    Raises:
      OSError: The program cannot be started.
    """
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=variables,
            cwd=folder,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if turn is not None:
            turn.started(process.pid)
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            _kill(process.pid)

        timer = threading.Timer(timeout, expire)
        timer.start()
        try:
            lines, counted = _read(process, start, watch_memory, turn)
            status, peak = _reap(process)
            wall = time.perf_counter() - start
        except BaseException:
            _kill(process.pid)
            process.wait()
            raise
        finally:
            timer.cancel()
            if process.stdout:
                process.stdout.close()
        errors.seek(0)
        waited = turn.waited if turn else 0.0
        ended = (status, wall - waited, lines, errors.read(), expired.is_set())
        return EndedProcess(*ended, waited, counted, peak)


def _read(
    process: subprocess.Popen[str],
    start: float,
    watch_memory: Callable[[str], bool] | None,
    turn: Turn | None,
) -> tuple[tuple[Line, ...], int]:
    """Reads standard output to its end.

    Args:
      start: When the process started, by `time.perf_counter`.

    Returns:
      The lines, and the number of those before the process's turns.
    """
    lines: list[Line] = []
    counted = 0
    for text in process.stdout or ():
        seconds = time.perf_counter() - start - (turn.waited if turn else 0.0)
        text = text.rstrip("\n")
        watched = watch_memory is not None and watch_memory(text)
        memory = resident_bytes(process.pid) if watched else None
        lines.append(Line(seconds, text, memory))
        if turn is not None and turn.line(text):
            counted = len(lines) - 1
    if turn is not None and not turn.had_any:
        counted = len(lines)  # it ended before them
    return tuple(lines), counted


def _reap(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Waits for a process; returns its exit status and its peak of resident memory in bytes."""
    _, state, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(state)
    unit = 1 if sys.platform == "darwin" else 1024
    return process.returncode, usage.ru_maxrss * unit


def _kill(leader: int) -> None:
    signal_all(leader, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
