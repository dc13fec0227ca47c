"""Runs one child to its end, with a hard time-out; it dies with its parent."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cnnbench.errors import BenchmarkError
from cnnbench.machine.cpu import cgroup_folders
from cnnbench.machine.host import Host
from cnnbench.processes import guard

GRACE_SECONDS = 10.0
"""Between SIGTERM, on which a child writes what it has measured, and SIGKILL."""


@dataclass(frozen=True)
class Finished:
    """How a child ended.

    Attributes:
      status: exit status; the negative number of the signal that ended it; None if it was
        lost with its guard.
      seconds: wall time.
      timed_out: whether it was ended for taking too long.
      max_rss_bytes: most memory it held, None if unknown.
      oom_kills: processes that the kernel's OOM killer ended meanwhile.
      error: why it could not be started, or None.
    """

    status: int | None
    seconds: float
    timed_out: bool = False
    max_rss_bytes: int | None = None
    oom_kills: int = 0
    error: str | None = None


def execute(
    command: Sequence[str],
    log: Path,
    timeout: float,
    grace: float = GRACE_SECONDS,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Finished:
    """Runs a command in a process group of its own.

    All of the group is gone when this returns or raises; when this process is killed
    instead, the guard ends the group.

    Args:
      command: program and arguments.
      log: takes standard output and standard error; replaced.
      timeout: seconds until the group gets SIGTERM.
      grace: seconds from there to SIGKILL.
      environment: variables added to those of this process.
      folder: working directory; that of this process if None.

    Raises:
      KeyboardInterrupt: after the child has had SIGTERM and its grace.
      BenchmarkError: the log cannot be written, or no process can be started.
    """
    kills = oom_kills()
    ours, theirs = socket.socketpair()
    with ours, contextlib.ExitStack() as stack:
        started = time.monotonic()
        leader = _start(command, log, theirs, environment, folder)
        stack.callback(_end, leader)
        report, timed_out = _wait(ours, leader, timeout, grace)
        seconds = time.monotonic() - started
    facts = json.loads(report) if report else {}
    return Finished(
        status=_exit_status(facts, timed_out),
        seconds=seconds,
        timed_out=timed_out,
        max_rss_bytes=facts.get("max_rss_bytes"),
        oom_kills=oom_kills() - kills,
        error=facts.get("error"),
    )


def _start(
    command: Sequence[str],
    log: Path,
    theirs: socket.socket,
    environment: Mapping[str, str] | None,
    folder: Path | None,
) -> subprocess.Popen[bytes]:
    """The guard with its end of the link, which is closed here."""
    try:
        with theirs, open(log, "wb") as output:
            return subprocess.Popen(
                [sys.executable, "-I", guard.__file__, str(theirs.fileno()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=None if environment is None else {**os.environ, **environment},
                cwd=folder,
            )
    except OSError as error:
        raise BenchmarkError(
            f"{error.filename or command[0]}: {error.strerror or error}"
        ) from error


def _wait(
    link: socket.socket, leader: subprocess.Popen[bytes], timeout: float, grace: float
) -> tuple[bytes | None, bool]:
    """The guard's line as `_receive` has it, and whether time was up."""
    try:
        report = _receive(link, timeout)
        if report is not None:
            return report, False
        _signal(leader, signal.SIGTERM)
        return _receive(link, grace), True
    except KeyboardInterrupt:
        _signal(leader, signal.SIGTERM)
        _receive(link, grace)
        raise


def _receive(link: socket.socket, seconds: float) -> bytes | None:
    """The guard's line; b"" if it is dead, None if time is up."""
    deadline = time.monotonic() + seconds
    data = b""
    while not data.endswith(b"\n"):
        # A day at a time: what a socket can wait for has an end.
        link.settimeout(min(max(deadline - time.monotonic(), 0.001), 86400.0))
        try:
            part = link.recv(4096)
        except TimeoutError:
            if time.monotonic() >= deadline:
                return None
            continue
        except ConnectionError:
            return b""
        if not part:
            return b""
        data += part
    return data


def _exit_status(facts: dict[str, int], timed_out: bool) -> int | None:
    if "status" in facts:
        return os.waitstatus_to_exitcode(facts["status"])
    return -signal.SIGKILL if timed_out else None


def _end(leader: subprocess.Popen[bytes]) -> None:
    """Kills the whole group. Its leader has not been waited for, so the number is still its."""
    _signal(leader, signal.SIGKILL)
    leader.wait()


def _signal(leader: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)


def oom_kills(host: Host | None = None) -> int:
    """Cumulative OOM-kill counter of this control group or, without one, of the machine.

    Args:
      host: where to read; this machine if None.

    Returns:
      A count of which only differences are meaningful; 0 if unavailable.
    """
    host = Host() if host is None else host
    # Version 2 and version 1 of control groups.
    names = ("memory.events", "memory.oom_control")
    counters = [f"{folder}/{n}" for folder in cgroup_folders(host, "memory") for n in names]
    for counter in (*counters, "proc/vmstat"):
        found = re.search(r"^oom_kill (\d+)$", host.text(counter) or "", re.MULTILINE)
        if found is not None:
            return int(found.group(1))
    return 0
