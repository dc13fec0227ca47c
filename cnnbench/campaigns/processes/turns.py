"""Child processes that are alive at the same time and step in turn.

They start side by side. From the moment all have started, at most one of them runs: it holds the
turn, and the others sleep in a read (`cnnbench.run.runtime.turns`). Waiting processes get the turn
in rotation, first once to warm up, then repeatedly for their timed steps; when none has any left,
each once more to its end. A child that ends drops out; one that never waits is waited for.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from cnnbench.base.interrupts import LONGEST_WAIT_SECONDS
from cnnbench.campaigns.processes.child import GRACE_SECONDS, Child, Command, Ended, start
from cnnbench.run.runtime.turns import GO_ON, VARIABLE, WAITS_AFTER_STEPS


def execute_in_turn(
    commands: Sequence[Command],
    timeout: float,
    turn_seconds: float,
    grace: float = GRACE_SECONDS,
) -> list[Ended]:
    """Runs commands to their ends, each in its own process group; the first has the first turn.

    Each may run for `timeout` seconds, excluding its waits, until its group gets SIGTERM, and
    SIGKILL `grace` seconds later; see `execute`.
    """
    with contextlib.ExitStack() as stack:
        members: list[_Member] = []
        try:
            for command in commands:
                members.append(_start(command, turn_seconds, stack))
            _take_turns(members, timeout, grace)
        except KeyboardInterrupt:
            _stop([one for one in members if one.ended is None], grace)
            raise
    return [one.ended for one in members if one.ended is not None]


class _Member:
    """A child that takes turns."""

    def __init__(self, child: Child, link: socket.socket) -> None:
        self.child = child
        self.link: socket.socket | None = link
        self.ended: Ended | None = None
        self.waits = self.steps_done = False
        self._used = 0.0
        self._since = time.monotonic()

    @property
    def used(self) -> float:
        """Seconds that it has run, without its waits."""
        return self._used + (0.0 if self.waits else time.monotonic() - self._since)

    def listen(self) -> None:
        assert self.link is not None
        try:
            said = self.link.recv(16)
        except ConnectionError:
            said = b""
        if not said:  # closed: the child needs no further turn
            self.link.close()
            self.link = None
            return
        self._used = self.used
        self.waits = True
        self.steps_done = said.endswith(WAITS_AFTER_STEPS)

    def go_on(self) -> None:
        assert self.link is not None
        self.waits, self._since = False, time.monotonic()
        with contextlib.suppress(ConnectionError):  # it has died; its guard will say how
            self.link.sendall(GO_ON)


def _start(command: Command, turn_seconds: float, stack: contextlib.ExitStack) -> _Member:
    ours, theirs = socket.socketpair()
    stack.callback(ours.close)
    with theirs:
        variables = {**command.environment, VARIABLE: f"{theirs.fileno()}:{turn_seconds!r}"}
        child = start(replace(command, environment=variables), inherited=theirs.fileno())
    return _Member(stack.enter_context(child), ours)


def _take_turns(members: Sequence[_Member], timeout: float, grace: float) -> None:
    last = -1
    while left := [one for one in members if one.ended is None]:
        running = [one for one in left if not one.waits]
        if not running:
            last = _next(members, last)
            members[last].go_on()
            continue
        patience = max(0.0, timeout - max(one.used for one in running))
        links = {one.link.fileno(): one for one in left if one.link is not None}
        guards = {one.child.fileno(): one for one in left}
        patience = min(patience, LONGEST_WAIT_SECONDS)
        ready, _, _ = select.select([*links, *guards], [], [], patience)
        for descriptor in ready:
            if descriptor in links:
                links[descriptor].listen()
        for descriptor in ready:
            if descriptor in guards:
                guards[descriptor].ended = guards[descriptor].child.wait(grace)
        _stop([one for one in running if one.ended is None and one.used >= timeout], grace)


def _next(members: Sequence[_Member], last: int) -> int:
    """The next holder of the turn: in rotation, those with timed steps left first."""
    order = [(last + step) % len(members) for step in range(1, len(members) + 1)]
    waiting = [number for number in order if members[number].ended is None]
    return next((n for n in waiting if not members[n].steps_done), waiting[0])


def _stop(members: Sequence[_Member], grace: float) -> None:
    """Ends children: SIGTERM to all, and SIGKILL to those left after the grace."""
    for one in members:
        one.child.terminate()
    deadline = time.monotonic() + grace
    for one in members:
        one.ended = one.child.leave(max(0.0, deadline - time.monotonic()))
        one.child.kill()
