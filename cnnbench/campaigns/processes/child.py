"""Starts child processes, and stops them after a time-out or when the parent process dies."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from cnnbench.base.child import ChildProcess, StopLadder, adopt_orphans
from cnnbench.base.interrupts import (
    AT_ONCE,
    LONGEST_WAIT_SECONDS,
    SAME_SECONDS,
    find_grace_announcement,
    interrupt_grace_seconds,
    raise_if_interrupted,
)
from cnnbench.base.terminal import print_notice, redraw_running_process
from cnnbench.campaigns.processes import guard
from cnnbench.errors import BenchmarkError
from cnnbench.machine import repository
from cnnbench.machine.cpu import count_oom_kills
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.load import record_from_json
from cnnbench.records.run import RunRecord
from cnnbench.run.runtime.supervisor import GUARDED

_LOOK_SECONDS = 0.1
_LATE = 1.2
_TAIL_BYTES = 8192


@dataclass(frozen=True)
class ProcessResult:
    """Result of a child process: its exit code, time and memory.

    `outcome.add_record_and_status` adds the record of a measurement.

    Attributes:
      code: exit code, or the negative number of the signal that killed the process; None if
        unknown, because its guard was killed too.
      seconds: wall time. For interleaved processes, the total time divided by their number.
      oom_kills: number of processes that the kernel's OOM killer killed in this time.
      error: the reason why the process could not be started; None if it was started.
      status: ok, failed, timed_out, killed or out_of_memory; "" if the process is not a
        measurement.
      message: the reason for a status other than ok, in one line; otherwise "".
      lost: how a signal from outside or a time-out ended the process (completes the sentence "it
        was ..."); otherwise "".
      document: the record as JSON values. If the process wrote none, a record of the error.
      unusable: content of an invalid record file; None if there is none.
    """

    code: int | None
    seconds: float
    timed_out: bool = False
    oom_kills: int = 0
    error: str | None = None
    status: str = ""
    message: str = ""
    lost: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    unusable: bytes | None = None

    @cached_property
    def decoded(self) -> RunRecord | AllReduceRecord:
        """The `document` as a record."""
        return record_from_json(self.document)

    @property
    def record(self) -> RunRecord:
        """The `document` of a run as a record."""
        return cast("RunRecord", self.decoded)


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command line of a child process, with its environment, log, folder and processors.

    Attributes:
      words: program and arguments.
      log: file for standard output and standard error. Its content is replaced.
      environment: variables that are added to the variables of this process.
      folder: working directory; None for the working directory of this process.
      cores: processors that the child may use; None for all processors of this process.
    """

    words: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: Path | None = None
    cores: Collection[int] | None = None

    def extra_environment(self) -> dict[str, str]:
        """Environment variables that the child process gets in addition to the variables of this
        process.
        """
        return {GUARDED: "1", **self.environment}


def execute(command: Command, timeout: float) -> ProcessResult:
    """Runs a command in its own process group until the command ends or `timeout` seconds have
    passed.

    On KeyboardInterrupt, the command is stopped, too. Raises the same errors as `Child`.
    """
    with Child(command) as child:
        try:
            deadline = time.monotonic() + timeout
            while child.ended is None and (seconds := deadline - time.monotonic()) > 0:
                wait_for_any([child], seconds)
            return child.ended or stop_children([child])[0]
        except KeyboardInterrupt:
            stop_children([child], print_notice)
            raise


def wait_for_any(
    children: Sequence[Child], seconds: float, links: Collection[socket.socket] = ()
) -> list[Child | socket.socket]:
    """Waits until a child ends or one of the links can be read, for at most `seconds` and at most
    `LONGEST_WAIT_SECONDS`.

    Sets `Child.ended` of the children that have ended. Returns them, and the links that can be
    read. Raises KeyboardInterrupt if a signal has interrupted the command.
    """
    raise_if_interrupted()
    redraw_running_process()
    running = [child for child in children if child.ended is None]
    sources: list[Child | socket.socket] = [*links, *running]
    ready, _, _ = select.select(sources, [], [], min(seconds, LONGEST_WAIT_SECONDS))
    for child in running:
        if child in ready:
            child.wait(0.0)
    return ready


def stop_children(
    children: Sequence[Child],
    print_announcement: Callable[[str], None] = lambda line: None,
    exit_timeout: float | None = None,
) -> list[ProcessResult]:
    """Interrupts child processes, and kills the processes that still run after `exit_timeout`
    seconds.

    If a child announces in its log that it needs longer, the announcement is passed to
    `print_announcement`, and the child gets that time. On KeyboardInterrupt, all children are
    interrupted again; a second interrupt ends a cnnbench process immediately.
    """
    ladder = StopLadder(interrupt_grace_seconds() if exit_timeout is None else exit_timeout)
    start = time.monotonic()
    ladder.interrupt(start)
    for child in children:
        child.interrupt()
    try:
        for child in children:
            while child.wait(_LOOK_SECONDS) is None and time.monotonic() < ladder.deadline:
                announcement = find_grace_announcement(log_tail(child.log))
                if announcement is not None and ladder.allow(int(announcement[1]) + AT_ONCE):
                    print_announcement(announcement.group())
    except KeyboardInterrupt:
        # A child would ignore a second signal that follows the first one too quickly.
        time.sleep(max(0.0, start + _LATE * SAME_SECONDS - time.monotonic()))
        deadline = time.monotonic() + AT_ONCE
        while time.monotonic() < deadline:
            for child in children:
                child.interrupt()
            again = min(deadline, time.monotonic() + _LATE * SAME_SECONDS)
            if all(child.wait(again - time.monotonic()) for child in children):
                break
        raise
    return [child.kill() for child in children]


def start_guard(
    *arguments: str, inherited: Sequence[int] = (), **options: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a guard (`cnnbench.campaigns.processes.guard`) with its kind and its arguments.

    Returns the process, and the link on which it sends its message. `inherited` are descriptors
    that it passes on, `options` those of `subprocess.Popen`.
    """
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as failed:
        failed.enter_context(ours)
        passed = [theirs.fileno(), *inherited]
        process = subprocess.Popen(
            [sys.executable, "-IS", guard.__file__, ",".join(map(str, passed)), *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,
            **options,
        )
        failed.pop_all()
    return process, ours


class Child(ChildProcess):
    """A command in its own process group. Leaving the context kills all processes of the group.

    If this process is killed, a guard process ends the group.

    Args:
      command: what runs.
      stdout: a descriptor for standard output instead of the log.
      inherited: a descriptor that the command inherits under the same number.

    Attributes:
      log: file with the output of the command.
      ended: the result of the command; None as long as it is not known.

    Raises:
      BenchmarkError: the log cannot be written, or the process cannot be started.
    """

    def __init__(
        self, command: Command, *, stdout: int | None = None, inherited: int | None = None
    ) -> None:
        # This process can then wait for all processes of the command.
        adopt_orphans()
        self.log = command.log
        self.ended: ProcessResult | None = None
        self._kills = count_oom_kills()
        self._started = time.monotonic()
        try:
            with open(command.log, "wb") as output:
                cores = ",".join(map(str, command.cores or ()))
                self._leader, link = start_guard(
                    "program",
                    cores,
                    *command.words,
                    inherited=() if inherited is None else (inherited,),
                    stdout=output if stdout is None else stdout,
                    stderr=output,
                    env={**repository.environment_for_git(), **command.extra_environment()},
                    cwd=command.folder,
                )
        except OSError as error:
            message = f"{error.filename or command.words[0]}: {error.strerror or error}"
            raise BenchmarkError(message) from error
        super().__init__(self._leader.pid, link, leads_group=True)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills all processes of the command's process group, and waits until they have ended.

        The wait matters because the kernel may need a moment to free their memory. The process id
        of the group is still valid, because its leader has not been reaped yet.
        """
        # ChildProcessError means that all processes have ended.
        with self.link, contextlib.suppress(ChildProcessError):
            self.send_signal(signal.SIGKILL)
            self._leader.wait()
            # The kernel cannot immediately kill a process that waits for a device.
            end = time.monotonic() + AT_ONCE
            while time.monotonic() < end:
                if os.waitpid(-self.pid, os.WNOHANG) == (0, 0):
                    time.sleep(_LOOK_SECONDS / 10)

    def wait(self, timeout: float) -> ProcessResult | None:
        """Waits for the result of the command, for up to `timeout` seconds. Returns None if the
        command still runs.
        """
        if self.ended is None:
            report = self.read_report(max(0.0, timeout))
            if report is not None:  # If the guard process has died, its report is empty.
                self.ended = self._result(report)
        return self.ended

    def kill(self) -> ProcessResult:
        """Kills the process if it has not ended. Returns the result, with `timed_out` set."""
        self.send_signal(signal.SIGKILL)
        ended = self.ended or self._result({"status": int(signal.SIGKILL)})
        self.ended = replace(ended, timed_out=True)
        return self.ended

    def _result(self, report: Mapping[str, Any]) -> ProcessResult:
        status = report.get("status")
        return ProcessResult(
            code=None if status is None else os.waitstatus_to_exitcode(status),
            seconds=time.monotonic() - self._started,
            oom_kills=count_oom_kills() - self._kills,
            error=report.get("error"),
        )


def log_tail(log: Path) -> str:
    """The last eight kilobytes of a log file as text; "" if the file cannot be read."""
    try:
        with open(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
