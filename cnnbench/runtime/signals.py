"""Defers signals during work that must not be interrupted."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defers Ctrl-C and SIGTERM to the end of the block.

    By handlers, not by a mask: TensorFlow's threads would receive a masked signal and pass it
    to the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals interrupt the main thread only
        return
    held: list[int] = []
    before = {n: signal.signal(n, lambda number, frame: held.append(number)) for n in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])
