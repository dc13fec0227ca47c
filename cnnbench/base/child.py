"""Child processes: their link with this process, how they end, and how they are ended.

Two modules start children. A campaign and `cnnbench launch` start programs under a guard process
(`cnnbench.campaigns.processes.child`). A run forks the process that measures
(`cnnbench.run.runtime.supervisor`). This module contains what both have in common.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from cnnbench.base import message
from cnnbench.base.interrupts import AT_ONCE, SAME_SECONDS, signal_name
from cnnbench.errors import ExitCode

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ChildProcess:
    """A child of this process, and the link on which it sends one message before it ends.

    Args:
      pid: process ID of the child.
      link: socket to the child, or to its guard.
      leads_group: whether the child leads a process group. If so, signals are sent to the group.
    """

    def __init__(self, pid: int, link: socket.socket, *, leads_group: bool = False) -> None:
        self.pid = pid
        self.link = link
        self._leads_group = leads_group
        self._report: Mapping[str, Any] | None = None

    def fileno(self) -> int:
        """File descriptor for `select`, which is readable when the child has sent its message, or
        has ended.
        """
        return self.link.fileno()

    def read_report(self, timeout: float = 0.0) -> Mapping[str, Any] | None:
        """Waits up to `timeout` seconds for the message of the child.

        Returns None if there is no message yet, and an empty mapping if the child has closed the
        link without a message.
        """
        if self._report is None and select.select([self.link], [], [], timeout)[0]:
            report: Mapping[str, Any] = {}
            with contextlib.suppress(*message.FOREIGN):
                report = dict(message.receive(self.link, AT_ONCE))
            self._report = report
        return self._report

    def send_signal(self, number: int) -> None:
        """Sends a signal to the child or to its process group, if it has not ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if self._leads_group else os.kill)(self.pid, number)

    def interrupt(self) -> None:
        """Sends SIGTERM. A suspended child continues, because it must handle the signal."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)


class StopLadder:
    """Decides when an interrupted child is killed: it may get more time once, and a second
    interrupt ends it at once.

    Args:
      seconds: time that the child has after the first interrupt, before `allow` is called.

    Attributes:
      deadline: time of `time.monotonic` at which this time is over; infinite before an interrupt.
    """

    def __init__(self, seconds: float = SAME_SECONDS) -> None:
        self._seconds = seconds
        self._first = self.deadline = math.inf

    def interrupt(self, now: float) -> bool:
        """Records that the child was interrupted at the time `now`. Returns whether this is a
        second interrupt.

        Interrupts within `SAME_SECONDS` count as one. A child must end at once after the second.
        """
        if self._first == math.inf:
            self._first, self.deadline = now, now + self._seconds
        return now - self._first > SAME_SECONDS

    def allow(self, seconds: float) -> bool:
        """Allows the child to run until `seconds` after the first interrupt.

        Returns whether this is later than the deadline. If not, nothing is changed.
        """
        later = self._first + seconds
        if later < self.deadline + SAME_SECONDS / 10:
            return False
        self.deadline = later
        return True


def fork_child() -> tuple[ChildProcess | None, socket.socket]:
    """Forks this process. Returns the child, or None in the child, and the own end of the link.

    The child ends when this process ends, or the thread that calls the function.
    """
    parent = os.getpid()
    ours, theirs = socket.socketpair()
    if sys.platform == "linux":
        _c_library()  # If there is too little memory for it, this process fails, and not the child.
    if pid := os.fork():
        theirs.close()
        return ChildProcess(pid, ours), ours
    ours.close()
    end_with_parent(parent)
    return None, theirs


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent, or the thread that forked it, ends.

    `parent` is the process ID of the parent. Only Linux can do this.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(int(ExitCode.FAILED))


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process, which can then wait for them.

    Only Linux can do this.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@functools.cache
def _c_library() -> Any:
    import ctypes  # Imported late, because most commands start no process.

    return ctypes.CDLL(None)


def _prctl(option: int, value: int) -> None:
    _c_library().prctl(option, value)


def exit_manner(code: int | None) -> str:
    """How a process ended, for messages: "by SIGSEGV", or "with exit code 3".

    `code` is the exit code, or the negative number of the signal that ended the process; None if
    its guard was killed, too.
    """
    if code is None:
        return "together with its guard"
    return f"by {signal_name(-code)}" if code < 0 else f"with exit code {code}"


def exit_sentence(who: str, code: int | None) -> str:
    """A sentence about how a process ended (see `exit_manner`): "worker:1 was ended by SIGSEGV"."""
    if code is not None and code >= 0:
        return f"{who} ended {exit_manner(code)}"
    verb = "killed" if code is None else "ended"
    return f"{who} was {verb} {exit_manner(code)}"
