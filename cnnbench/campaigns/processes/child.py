"""Child processes that end after a time-out or when their parent ends, and their commands."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import cnnbench
from cnnbench.base.interrupts import (
    AT_ONCE,
    LONGEST_WAIT_SECONDS,
    SAME_SECONDS,
    announced,
    grace,
    obey,
)
from cnnbench.base.terminal import print_notice
from cnnbench.campaigns.processes import guard
from cnnbench.errors import BenchmarkError
from cnnbench.machine import repository
from cnnbench.machine.cpu import oom_kills
from cnnbench.records.run import RunRecord
from cnnbench.run.runtime.supervisor import GUARDED

_LOOK_SECONDS = 0.1
_LATE = 1.2
_TAIL_BYTES = 8192
_PR_SET_CHILD_SUBREAPER = 36

# The working directory is excluded, because its files must not shadow a package.
_LAUNCH = (
    "import sys; root = sys.argv.pop(1); "
    "sys.path[:] = [path for path in (root, *sys.path) if path]; "
)

COMMAND_LINE = "from cnnbench.cli import entry_point; entry_point()"
"""Code for `launcher` that runs cnnbench with the command line in sys.argv."""


def launcher(code: str) -> str:
    """Code for ``python -c`` that imports cnnbench from the folder in its first argument.

    Then `code` runs, with the remaining arguments in sys.argv.
    """
    return _LAUNCH + code


def own_checkout() -> str:
    """Checkout of the running cnnbench; "" if it is installed."""
    package = Path(os.path.abspath(cnnbench.__file__)).parent
    return "" if (package / "models").is_dir() else str(package.parent)


def command_prefix() -> tuple[str, ...]:
    """Program and first arguments with which this cnnbench can be started again.

    A command line is appended to them.
    """
    script = Path(sys.argv[0])
    if script.name == "cnnbench" and script.is_file():
        # With -m, a checkout in the working directory would be used instead of the installed
        # package.
        return (sys.executable, str(script.resolve()))
    # This process is a side of an experiment and may have any working directory.
    if sys.argv[0] == "-c":
        return (sys.executable, "-c", launcher(COMMAND_LINE), own_checkout())
    return (sys.executable, "-m", "cnnbench")


@dataclass(frozen=True)
class ProcessResult:
    """Result of a process. `campaign.judge` adds the record of a measurement.

    Attributes:
      code: exit code, or the negative number of the signal that killed the process; None if
        unknown, because its guard was killed too.
      seconds: wall time. For processes that took turns, the share of the total time.
      max_rss_bytes: maximum resident memory; None if unknown.
      oom_kills: number of processes that the kernel's OOM killer killed in this time.
      error: the reason why the process could not be started; None if it was.
      status: ok, failed, timed_out, killed or out_of_memory; "" if the process is not a
        measurement.
      message: the reason for a status other than ok, in one line; otherwise "".
      lost: how a signal from outside or a time-out ended the process (completes the sentence "it
        was ..."); otherwise "".
      document: the record as JSON values. If the process wrote none, a record of the error.
      unusable: content of an invalid record file; None if there is none.
      group: number of the group of processes that were alive at the same time, in its folder.
    """

    code: int | None
    seconds: float
    timed_out: bool = False
    max_rss_bytes: int | None = None
    oom_kills: int = 0
    error: str | None = None
    status: str = ""
    message: str = ""
    lost: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    unusable: bytes | None = None
    group: int = 0

    @cached_property
    def record(self) -> RunRecord:
        """The record of a run, decoded."""
        return RunRecord.from_dict(self.document)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A process to run.

    Its environment variables are added to those of this process. Its standard output and standard
    error replace the content of its log.

    `cores` contains the processors that it may use; None means all processors of this process.
    """

    words: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: Path | None = None
    cores: Collection[int] | None = None

    def variables(self) -> dict[str, str]:
        """Environment variables of the process in addition to those of this process."""
        return {GUARDED: "1", **self.environment}


def execute(command: Command, timeout: float) -> ProcessResult:
    """Runs a command in its own process group until it ends.

    The command is stopped after `timeout` seconds, or on KeyboardInterrupt. Raises BenchmarkError
    if the log cannot be written or the process cannot be started.
    """
    with start(command) as child:
        try:
            deadline = time.monotonic() + timeout
            while (left := deadline - time.monotonic()) > 0:
                obey()
                if ended := child.wait(min(left, LONGEST_WAIT_SECONDS)):
                    return ended
            return stop([child])[0]
        except KeyboardInterrupt:
            stop([child], print_notice)
            raise


def stop(
    children: Sequence[Child],
    tell: Callable[[str], None] = lambda line: None,
    seconds: float | None = None,
) -> list[ProcessResult]:
    """Interrupts children, and kills those that still run after `seconds` (or a short grace).

    If a child announces in its log that it needs longer, the announcement is passed to `tell`, and
    the child gets that time. On KeyboardInterrupt, all children are interrupted again; a second
    interrupt ends a cnnbench process immediately.
    """
    start = time.monotonic()
    deadline = start + (grace() if seconds is None else seconds)
    for child in children:
        child.interrupt()
    try:
        for child in children:
            while child.wait(_LOOK_SECONDS) is None and time.monotonic() < deadline:
                announcement = announced(log_tail(child.log))
                if announcement is not None and start + int(announcement[1]) + AT_ONCE > deadline:
                    deadline = start + int(announcement[1]) + AT_ONCE
                    tell(announcement.group())
    except KeyboardInterrupt:
        # A process ignores a signal within SAME_SECONDS of the first one, and the first one may
        # arrive late.
        time.sleep(max(0.0, start + _LATE * SAME_SECONDS - time.monotonic()))
        deadline = time.monotonic() + AT_ONCE
        while time.monotonic() < deadline:
            for child in children:
                child.interrupt()
            again = min(deadline, time.monotonic() + _LATE * SAME_SECONDS)
            if all(child.wait(again - time.monotonic()) for child in children):
                break
        raise
    return [child.stopped() for child in children]


def start(command: Command, *, stdout: int | None = None, inherited: int | None = None) -> Child:
    """Starts a command in its own process group. Raises the same errors as `execute`.

    When the context of the returned child ends, no process of the group remains. If this process is
    killed, a guard process ends the group. `stdout` is a descriptor for standard output instead of
    the log. `inherited` is a descriptor that the command inherits under the same number.
    """
    # Processes whose parent was killed become children of this process.
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    kills = oom_kills()
    ours, theirs = socket.socketpair()
    started = time.monotonic()
    try:
        with theirs, open(command.log, "wb") as output, _restrict_cores(command.cores):
            passed = [theirs.fileno(), *([] if inherited is None else [inherited])]
            numbers = ",".join(map(str, passed))
            leader = subprocess.Popen(
                [sys.executable, "-IS", guard.__file__, numbers, *command.words],
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=output,
                pass_fds=passed,
                start_new_session=True,
                env={**repository.environment(), **command.variables()},
                cwd=command.folder,
            )
    except BaseException as error:
        ours.close()
        if isinstance(error, OSError):
            message = f"{error.filename or command.words[0]}: {error.strerror or error}"
            raise BenchmarkError(message) from error
        raise
    return Child(command.log, leader, ours, started, kills)


@contextlib.contextmanager
def _restrict_cores(cores: Collection[int] | None) -> Iterator[None]:
    """Context manager that restricts processes started in it to `cores`; None: no restriction."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(eq=False)
class Child:
    """A running command that `start` has started. It ends with the context."""

    log: Path
    _leader: subprocess.Popen[bytes]
    _link: socket.socket
    _started: float
    _kills: int
    _report: bytes | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the whole group. Its leader is not reaped yet, so its number is still valid.

        Also waits for the other processes of the group, because the kernel may need a moment to
        free their memory.
        """
        with self._link, contextlib.suppress(ChildProcessError):  # no process remains
            self.send(signal.SIGKILL)
            self._leader.wait()
            # A process that waits for a device cannot be killed immediately.
            end = time.monotonic() + AT_ONCE
            while time.monotonic() < end:
                if os.waitpid(-self._leader.pid, os.WNOHANG) == (0, 0):
                    time.sleep(_LOOK_SECONDS / 10)

    def fileno(self) -> int:
        """Descriptor for `select`; readable when the process has ended."""
        return self._link.fileno()

    def wait(self, seconds: float) -> ProcessResult | None:
        """The result of the process; None if it still runs after `seconds`."""
        deadline = time.monotonic() + seconds
        while self._report is None:
            left = max(0.0, deadline - time.monotonic())
            if select.select([self._link], [], [], min(left, LONGEST_WAIT_SECONDS))[0]:
                try:
                    self._report = self._link.recv(4096)  # b"" if the guard has died
                except ConnectionError:
                    self._report = b""
            elif not left:
                return None
        return self._ended(self._report, timed_out=False)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader.pid, number)

    def interrupt(self) -> None:
        """Interrupts the group, even if it is suspended."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)

    def stopped(self) -> ProcessResult:
        """The result of an interrupted process. The process is killed if it still runs."""
        self.send(signal.SIGKILL)
        return self._ended(self._report or b"", timed_out=True)

    def _ended(self, report: bytes, timed_out: bool) -> ProcessResult:
        facts = json.loads(report) if report else {}
        code = -signal.SIGKILL if timed_out else None
        if "status" in facts:
            code = os.waitstatus_to_exitcode(facts["status"])
        return ProcessResult(
            code=code,
            seconds=time.monotonic() - self._started,
            timed_out=timed_out,
            max_rss_bytes=facts.get("max_rss_bytes"),
            oom_kills=oom_kills() - self._kills,
            error=facts.get("error"),
        )


def log_tail(log: Path) -> str:
    """The last eight kilobytes of a log; "" if it cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
