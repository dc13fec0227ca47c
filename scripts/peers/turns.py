"""Processes that are alive together and run in turn, so that all meet the same machine.

One of them runs at a time, the others are stopped (SIGSTOP). A turn ends with the first step
that is done a while after its beginning, the first one with the first step: from then on all are
warm. What a process waits is in no step's time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable


class Rotation:
    """Whose turn it is.

    Args:
      seconds: a turn takes, at least.
      is_step: whether a line of output tells the end of a step.
    """

    def __init__(self, seconds: float, is_step: Callable[[str], bool]) -> None:
        self.seconds = seconds
        self.is_step = is_step
        self._changed = threading.Condition()
        self._queue: deque[Turn] = deque()
        self._ended = False

    def join(self) -> Turn:
        """A place behind those there are."""
        turn = Turn(self)
        with self._changed:
            self._queue.append(turn)
        return turn

    def wait(self, turn: Turn) -> None:
        """Returns when it is its turn, or the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._queue[0] is turn)

    def pass_on(self) -> None:
        """The turn goes to the next one."""
        with self._changed:
            self._queue.rotate(-1)
            self._changed.notify_all()

    def leave(self, turn: Turn) -> None:
        """One less; the next one has the turn."""
        with self._changed:
            self._queue.remove(turn)
            self._changed.notify_all()

    def end(self) -> None:
        """Kills the processes; nobody waits any more."""
        with self._changed:
            self._ended = True
            for turn in self._queue:
                turn.signal(signal.SIGKILL)
            self._changed.notify_all()

    @property
    def alone(self) -> bool:
        """Whether nobody waits."""
        return len(self._queue) == 1

    @property
    def ended(self) -> bool:
        """Whether all is to end."""
        return self._ended


class Turn:
    """The turns of one process, in the thread that reads its output.

    Attributes:
      waited: seconds that it has been stopped.
    """

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._group: int | None = None
        self._began: float | None = None
        self.waited = 0.0

    def start(self) -> None:
        """Waits until the process may be started.

        Raises:
          InterruptedError: none is to be started any more.
        """
        self._rotation.wait(self)
        if self._rotation.ended:
            raise InterruptedError("interrupted")

    def started(self, group: int) -> None:
        """Takes the process group that is to be stopped and continued."""
        self._group = group
        if self._rotation.ended:
            self.signal(signal.SIGKILL)

    def line(self, text: str) -> None:
        """Takes a line of output as soon as it is there; returns when the process may go on."""
        rotation = self._rotation
        if not rotation.is_step(text) or rotation.alone:
            return
        now = time.perf_counter()
        if self._began is not None and now - self._began < rotation.seconds:
            return
        self.signal(signal.SIGSTOP)
        rotation.pass_on()
        rotation.wait(self)
        self._began = time.perf_counter()
        self.waited += self._began - now
        self.signal(signal.SIGCONT)

    def leave(self) -> None:
        """The process has ended."""
        self._group = None
        self._rotation.leave(self)

    def signal(self, number: int) -> None:
        """Sends a signal to the process and its children, if they are there."""
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, number)
