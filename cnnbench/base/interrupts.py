"""Interrupts by signals, and errors that native code derives from them.

A handler raises KeyboardInterrupt wherever Python is, which may be in a call from native code.
TensorFlow sometimes continues with the exception set and finally raises another one, such as
SystemError without any context.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from cnnbench.errors import BenchmarkError, UsageError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that interrupt a command, which keeps its measurements."""

LONGEST_WAIT_SECONDS = 1.0
"""Limit of a single wait: a signal that arrives just before it is handled only after it."""

_noted = 0


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handler of a signal: raises KeyboardInterrupt, and notes that for `restored`."""
    global _noted
    del number, frame
    _noted += 1
    raise KeyboardInterrupt


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], object] | None = None) -> Iterator[None]:
    """Restores the handlers of `SIGNALS` at the end of the block, which begins with `handler`.

    None leaves the handlers as they are. Ignored signals, and those handled by native code, are not
    changed. Does nothing outside of the main thread, which signals interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, old in before.items():
        if handler is not None and old not in (None, signal.SIG_IGN):
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            if old is not None:  # None is a handler of native code
                signal.signal(number, old)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Raises KeyboardInterrupt for an error in the block that results from an interrupt.

    That is every error after `interrupt`, except cnnbench's own, and any SystemError caused by one.
    """
    before = _noted
    try:
        yield
    except (BenchmarkError, UsageError):
        raise
    except Exception as error:
        cause = error.__cause__ or error.__context__
        caused = isinstance(error, SystemError) and isinstance(cause, KeyboardInterrupt)
        if _noted == before and not caused:
            raise
        raise KeyboardInterrupt from error
