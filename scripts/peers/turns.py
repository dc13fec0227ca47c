"""Programs that run in turn, started together, under equal conditions.

One of them runs at a time, the others are stopped (SIGSTOP), with all processes that each has
started. They start at the same time; turns begin when every one has done a step. A turn ends with
the first step that is done a while after its beginning. What a program waits is in no step's time,
and steps before the turns do not count.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

# How long one rests after a step while others still start. TensorFlow's workers take each other
# for dead after ten seconds without a word.
_REST_SECONDS = 3.0


class Rotation:
    """The order of the turns.

    Args:
      seconds: a turn takes, at least.
      is_step: whether a line of output is printed at the end of a step.
    """

    def __init__(self, seconds: float, is_step: Callable[[str], bool]) -> None:
        self.seconds = seconds
        self.is_step = is_step
        self._changed = threading.Condition()
        self._queue: list[Turn] = []
        self._starting: set[Turn] = set()
        self._running: set[Turn] = set()
        self._ended = False

    def join(self) -> Turn:
        """Adds a program at the end of the queue; to be called before the first program starts."""
        turn = Turn(self)
        with self._changed:
            self._queue.append(turn)
            self._starting.add(turn)
            self._running.add(turn)
        return turn

    def wait_for_others(self, turn: Turn) -> bool:
        """Waits until all programs have done a step; called after a step of a program.

        Returns when they have, or after a rest.
        """
        with self._changed:
            self._starting.discard(turn)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._starting or self._ended, _REST_SECONDS)

    def wait(self, turn: Turn, *, had_turn: bool) -> None:
        """Waits, while the program is stopped, until it is its turn."""
        with self._changed:
            self._running.remove(turn)
            if had_turn:
                self._queue.remove(turn)
                self._queue.append(turn)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._ended or (not self._running and self._queue[0] is turn)
            )
            self._running.add(turn)

    def leave(self, turn: Turn) -> None:
        """Removes a program; the next one has the turn."""
        with self._changed:
            self._queue.remove(turn)
            self._starting.discard(turn)
            self._running.discard(turn)
            self._changed.notify_all()

    def end(self) -> None:
        """Kills the processes and ends all waits."""
        with self._changed:
            self._ended = True
            for turn in self._queue:
                turn.signal(signal.SIGKILL)
            self._changed.notify_all()

    @property
    def alone(self) -> bool:
        """Whether no other program waits."""
        return len(self._queue) == 1

    @property
    def ended(self) -> bool:
        """Whether all programs are to end."""
        return self._ended


class Turn:
    """The turns of one program, in the thread that reads its output.

    Attributes:
      waited: seconds that it has been stopped.
    """

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._process: int | None = None
        self._began: float | None = None
        self.waited = 0.0

    def started(self, process: int) -> None:
        """Registers the process that is stopped and continued with its children."""
        self._process = process
        if self._rotation.ended:
            self.signal(signal.SIGKILL)

    def line(self, text: str) -> bool:
        """Handles a line of output; returns when the program may continue.

        Returns:
          Whether this is where its first turn begins: what was before does not count.
        """
        rotation = self._rotation
        if not rotation.is_step(text) or (self.had_any and rotation.alone):
            return False
        now = time.perf_counter()
        if self._began is not None and now - self._began < rotation.seconds:
            return False
        self.signal(signal.SIGSTOP)
        first = not self.had_any and rotation.wait_for_others(self)
        if first or self.had_any:
            rotation.wait(self, had_turn=not first)
            self._began = time.perf_counter()
        self.waited += time.perf_counter() - now
        self.signal(signal.SIGCONT)
        return first

    @property
    def had_any(self) -> bool:
        """Whether its turns have begun."""
        return self._began is not None

    def leave(self) -> None:
        """Notes that the program has ended."""
        self._process = None
        self._rotation.leave(self)

    def signal(self, number: int) -> None:
        """Sends a signal to the process and its descendants, if they exist."""
        if self._process is not None:
            signal_all(self._process, number)


def signal_all(root: int, number: int) -> None:
    """Sends a signal to a process and to all that descend from it.

    Groups of processes would not do: `cnnbench launch` gives each of its own one.
    """
    for process in family(root):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def family(root: int) -> list[int]:
    """A process and its descendants, as /proc has them; where there is none, itself."""
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
