"""Runs processes interleaved in short time slices (--pairing=turns).

The processes start at the same time. After all of them have started, at most one of them runs, and
the other processes wait in a blocking read (`cnnbench.run.runtime.turns`). The time slices rotate
among the waiting processes: first once for the warm-up, then repeatedly for the timed steps. When
no timed steps remain, each process gets one more time slice and runs to its end. A process that has
ended is removed from the rotation. A process that never waits runs to its end.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from cnnbench.base.terminal import print_notice
from cnnbench.campaigns.processes.child import (
    Child,
    Command,
    ProcessResult,
    stop_children,
    wait_for_any,
)
from cnnbench.run.runtime.turns import GO_ON, VARIABLE, WAITS_AFTER_STEPS


def execute_interleaved(
    commands: Sequence[Command], timeout: float, turn_seconds: float
) -> list[ProcessResult]:
    """Runs processes interleaved in short time slices: only one process runs steps at a time, while
    the other processes wait.

    The first command gets the first time slice. Each process has its own process group, and is
    stopped after `timeout` seconds, not including its waits; see `child.execute`.
    """
    with contextlib.ExitStack() as stack:
        members: list[_Member] = []
        try:
            for command in commands:
                ours, theirs = socket.socketpair()
                stack.callback(ours.close)
                with theirs:
                    variables = {VARIABLE: f"{theirs.fileno()}:{turn_seconds!r}"}
                    own = replace(command, environment={**command.environment, **variables})
                    child = Child(own, inherited=theirs.fileno())
                members.append(_Member(stack.enter_context(child), ours))
            _run_members(members, timeout)
        except KeyboardInterrupt:
            stop_children([member.child for member in _alive(members)], print_notice)
            raise
    return [member.child.ended for member in members if member.child.ended is not None]


class _Member:
    """A child process that runs interleaved with other processes."""

    def __init__(self, child: Child, link: socket.socket) -> None:
        self.child = child
        self.link: socket.socket | None = link
        self.waits = self.steps_done = False
        self._used = 0.0
        self._since = time.monotonic()

    @property
    def used_seconds(self) -> float:
        """Seconds that the child process has run, without the time in which it waited for other
        processes.
        """
        return self._used + (0.0 if self.waits else time.monotonic() - self._since)

    def receive_message(self) -> None:
        """Receives a message from the child process: the process waits for its next time slice, or
        it has closed the socket.
        """
        assert self.link is not None
        try:
            reply = self.link.recv(16)
        except ConnectionError:
            reply = b""
        # An empty message means that the child has closed the socket and waits no more.
        if not reply:
            self.link.close()
            self.link = None
            return
        self._used = self.used_seconds
        self.waits = True
        self.steps_done = reply.endswith(WAITS_AFTER_STEPS)

    def start_time_slice(self) -> None:
        """Lets the child process run steps until its time slice ends."""
        assert self.link is not None
        self.waits, self._since = False, time.monotonic()
        # If the child has died, its guard process reports the exit status.
        with contextlib.suppress(ConnectionError):
            self.link.sendall(GO_ON)


def _alive(members: Sequence[_Member]) -> list[_Member]:
    return [member for member in members if member.child.ended is None]


def _run_members(members: Sequence[_Member], timeout: float) -> None:
    last = -1
    while alive := _alive(members):
        running = [member for member in alive if not member.waits]
        if not running:
            last = _next_index(members, last)
            members[last].start_time_slice()
            continue
        patience = max(0.0, timeout - max(member.used_seconds for member in running))
        links = [member.link for member in alive if member.link is not None]
        ready = wait_for_any([member.child for member in alive], patience, links)
        for member in alive:
            if member.link in ready:
                member.receive_message()
        late = [member for member in _alive(running) if member.used_seconds >= timeout]
        stop_children([member.child for member in late])


def _next_index(members: Sequence[_Member], last: int) -> int:
    """Index of the process that gets the next time slice. `last` is the index of the previous
    process.

    The processes rotate. Processes with remaining timed steps come first.
    """
    order = [(last + step) % len(members) for step in range(1, len(members) + 1)]
    waiting = [number for number in order if members[number].child.ended is None]
    return next((n for n in waiting if not members[n].steps_done), waiting[0])
