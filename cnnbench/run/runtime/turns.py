"""Turns of this process where several processes step in turn; standard library only.

`cnnbench.campaigns.processes.campaign` starts them and gives each one end of a socket pair, whose
number is in an environment variable. A waiting process sends a byte, sleeps until a byte comes
back, and then has the machine to itself until it waits again. It waits only between steps, so that
no wait is part of a step's time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, MutableMapping

from cnnbench.base.interrupts import LONGEST_WAIT_SECONDS, obey

VARIABLE = "CNNBENCH_TURNS"
"""Environment variable: the descriptor, a colon, and the seconds of a turn."""

WAITS, WAITS_AFTER_STEPS, GO_ON = b"w", b"a", b"g"
"""Messages of a process that waits, of one that waits after its timed steps, and the answer."""


class Turns:
    """Turns of this process; without a socket to the process that assigns them it never waits.

    A turn of `seconds` ends with the first step that ends later; `clock` is monotonic.
    """

    def __init__(
        self,
        link: socket.socket | None = None,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self.seconds = seconds
        self._clock = clock
        self._end = 0.0

    @classmethod
    def joined(cls, environ: MutableMapping[str, str]) -> Turns:
        """The turns that the parent process asks for.

        Removes the variable from `environ`, since it is not for processes that this one starts.
        """
        descriptor, _, seconds = environ.pop(VARIABLE, "").partition(":")
        if not descriptor:
            return cls()
        os.set_inheritable(int(descriptor), False)
        return cls(socket.socket(fileno=int(descriptor)), float(seconds))

    @property
    def taken(self) -> bool:
        """Whether there are other processes to take turns with."""
        return self._link is not None

    def due(self) -> bool:
        """Whether the turn is over."""
        return self._link is not None and self._clock() >= self._end

    def wait(self, *, steps_left: bool = True) -> tuple[float, float]:
        """Passes the turn on and waits for it to come back.

        Returns the seconds this took, 0 for a process that is alone or left alone, and the CPU
        seconds of all threads meanwhile. With `steps_left` False it also waits until the timed
        steps of the others are over.
        """
        if self._link is None:
            return 0.0, 0.0
        start, cpu = self._clock(), time.process_time()
        try:
            self._link.sendall(WAITS if steps_left else WAITS_AFTER_STEPS)
            message = self._told(self._link)
        except ConnectionError:
            message = b""
        if not message:  # the process that assigns turns has ended
            self._link.close()
            self._link = None
        now = self._clock()
        self._end = now + self.seconds
        return now - start, time.process_time() - cpu

    @staticmethod
    def _told(link: socket.socket) -> bytes:
        """Reads the answer; b"" if the parent has gone."""
        link.settimeout(LONGEST_WAIT_SECONDS)
        while True:
            obey()
            with contextlib.suppress(TimeoutError):
                return link.recv(1)
