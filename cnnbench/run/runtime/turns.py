"""Interleaves the steps of several processes in time slices: in each slice, only one process runs.

`cnnbench.campaigns.processes.interleaved` starts the processes, and gives each process one end of a
socket pair. The descriptor of the socket is in an environment variable. A process that waits for
its time slice sends a byte and sleeps until a byte arrives. Then it is the only process that runs
steps, until it waits again. It waits only between steps, so the time of a step contains no wait.

Earlier versions of cnnbench have the same variable and messages, because `ab` measures them, too.

This module uses only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, MutableMapping

from cnnbench.base.interrupts import LONGEST_WAIT_SECONDS, raise_if_interrupted

VARIABLE = "CNNBENCH_TURNS"
"""Environment variable with a socket descriptor, a colon, and the seconds of a time slice."""

WAITS, WAITS_AFTER_STEPS, GO_ON = b"w", b"a", b"g"
"""Messages: a process waits; it waits after its timed steps; the answer starts a time slice."""


class TimeSlices:
    """Time slices of this process, in which no other process of an experiment runs steps.

    Args:
      link: socket to the process that assigns time slices. Without a link, this process never
        waits.
      seconds: minimum length of a time slice, which ends with the first step that ends later.
      clock: a monotonic clock.
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
    def from_environment(cls, environ: MutableMapping[str, str]) -> TimeSlices:
        """Creates the object for this process from the environment variable `VARIABLE`.

        The parent process sets the variable if it assigns time slices. The variable is removed from
        `environ`, because child processes must not use it.
        """
        descriptor, _, seconds = environ.pop(VARIABLE, "").partition(":")
        if not descriptor:
            return cls()
        os.set_inheritable(int(descriptor), False)
        return cls(socket.socket(fileno=int(descriptor)), float(seconds))

    @property
    def is_interleaved(self) -> bool:
        """Whether the steps of this process are interleaved with the steps of other processes."""
        return self._link is not None

    def is_slice_over(self) -> bool:
        """Whether the time slice is over, so that `wait_for_next_slice` should be called."""
        return self._link is not None and self._clock() >= self._end

    def wait_for_next_slice(self, *, steps_left: bool = True) -> tuple[float, float]:
        """Ends this time slice, and waits for the next time slice of this process.

        Returns the seconds of the wait (0 without other processes), and the CPU seconds of all
        threads during the wait. If `steps_left` is false, it also waits until the timed steps of
        all other processes have ended.
        """
        if self._link is None:
            return 0.0, 0.0
        start, cpu = self._clock(), time.process_time()
        try:
            self._link.sendall(WAITS if steps_left else WAITS_AFTER_STEPS)
            message = self._receive(self._link)
        except ConnectionError:
            message = b""
        if not message:  # The assigning process has ended.
            self._link.close()
            self._link = None
        now = self._clock()
        self._end = now + self.seconds
        return now - start, time.process_time() - cpu

    @staticmethod
    def _receive(link: socket.socket) -> bytes:
        """Reads the message that starts a time slice; b"" if the assigning process has ended."""
        link.settimeout(LONGEST_WAIT_SECONDS)
        while True:
            raise_if_interrupted()
            with contextlib.suppress(TimeoutError):
                return link.recv(1)
