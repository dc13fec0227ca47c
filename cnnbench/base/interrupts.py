"""Interrupts by signals, and errors that native code derives from them.

A handler raises KeyboardInterrupt wherever Python is, which may be in a call from native code.
TensorFlow sometimes continues with the exception set and finally raises another one, such as
SystemError without any context.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from cnnbench.errors import BenchmarkError, UsageError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that interrupt a command, which keeps its measurements."""

LONGEST_WAIT_SECONDS = 1.0
"""Of a single wait: a signal that arrives just before a wait is handled only after it."""

_noted = 0


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handler of a signal: raises KeyboardInterrupt, and notes that for `restored`."""
    global _noted
    del number, frame
    _noted += 1
    raise KeyboardInterrupt


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
