"""Lets processes find each other: threads call other processes and answer their calls, and the main
thread waits.

Threads are used, because the look-up of a host name may block its thread for minutes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from cnnbench.base import message
from cnnbench.base.interrupts import LONGEST_WAIT_SECONDS, raise_if_interrupted
from cnnbench.base.probe import REPORT_SECONDS, RETRY_SECONDS

CALL_SECONDS = 10.0
"""Time limit for connecting, and for each message of a call."""

_FIRST_PAUSE_SECONDS = 0.005
"""Pause after the first call. Processes that are started together listen at about the same time."""


class Meeting:
    """A meeting of this process with others. It is over when its context ends.

    Args:
      tell: called every few seconds with a line about missing processes.

    Attributes:
      changed: lock of the values that the threads of the meeting share. It is notified if a value
        changes for which the main thread may wait.
      over: set when the meeting is over.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.changed = threading.Condition()
        self.over = threading.Event()
        self._tell = tell
        self._accepting: list[tuple[socket.socket, threading.Thread]] = []
        self._pauses: list[threading.Event] = []

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the meeting: closes all listening sockets."""
        self.over.set()
        for soon in self._pauses:
            soon.set()
        for listener, thread in self._accepting:
            # On Linux, this ends a waiting `accept` at once; elsewhere, it ends after its short
            # time limit.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()

    def answer_in_thread(
        self, listener: socket.socket, answer: Callable[[socket.socket], bool], most: int
    ) -> None:
        """Answers calls at a socket that listens, until the meeting is over, and closes the socket.

        Args:
          answer: called with each new connection, in a thread of its own. If it returns False, or
            if it raises one of `message.FOREIGN`, the connection is closed.
          most: maximum number of calls at the same time. Further calls are refused.
        """
        free = threading.BoundedSemaphore(most)

        def answer_call(link: socket.socket) -> None:
            kept = False
            try:
                link.settimeout(CALL_SECONDS)
                with contextlib.suppress(*message.FOREIGN):
                    kept = answer(link)
            finally:
                free.release()
                if not kept:
                    link.close()

        def accept_calls() -> None:
            listener.settimeout(RETRY_SECONDS)
            with listener:
                while not self.over.is_set():
                    with contextlib.suppress(OSError):  # No call, or the caller has left.
                        link, _ = listener.accept()
                        if free.acquire(blocking=False):
                            _start_thread(partial(answer_call, link))
                        else:
                            link.close()

        self._accepting.append((listener, _start_thread(accept_calls)))

    def repeat(self, call: Callable[[], bool]) -> threading.Event:
        """Calls `call` in a thread, until it returns True or the meeting is over.

        The pause between two calls doubles, up to `RETRY_SECONDS`. The returned event ends the
        current pause if it is set.
        """
        soon = threading.Event()
        self._pauses.append(soon)

        def run() -> None:
            pause = _FIRST_PAUSE_SECONDS
            while not self.over.is_set():
                soon.clear()
                if call():
                    return
                soon.wait(pause)
                pause = min(2 * pause, RETRY_SECONDS)

        _start_thread(run)
        return soon

    def wait(self, done: Callable[[], bool], timeout: float, missing: Callable[[], str]) -> bool:
        """Waits until `done` returns True, for up to `timeout` seconds. Returns its last result.

        `missing` returns the processes for which this process waits, for the reports. Both
        functions are called with the lock `changed`.
        """
        end = time.monotonic() + timeout
        report = time.monotonic() + REPORT_SECONDS
        with self.changed:
            while not done():
                raise_if_interrupted()
                now = time.monotonic()
                if now >= end:
                    return False
                if now >= report:
                    report = now + REPORT_SECONDS
                    self._tell(f"waiting for {missing()}")
                self.changed.wait(min(end - now, report - now, LONGEST_WAIT_SECONDS))
        return True


def _start_thread(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
