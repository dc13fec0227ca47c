"""Keeping signals away from what must be done in one piece."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds back Ctrl-C and SIGTERM until the block is over; SIGKILL takes no holding."""
    if not hasattr(signal, "pthread_sigmask"):  # not on every platform
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
