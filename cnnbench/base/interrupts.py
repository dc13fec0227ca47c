"""Interrupts of a command by signals, and what Python and native code make of them.

The handler raises KeyboardInterrupt wherever Python is. In a destructor or a callback of a weak
reference, Python drops the exception. In a call from native code, TensorFlow may continue with the
exception set and finally raise another one, such as SystemError without any context. Therefore the
handler also notes the interrupt. `obey` raises it again, `restored` recognises what became of it,
and `conclude` reports it at the end of the command.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from cnnbench.errors import BenchmarkError, UsageError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
"""Signals that interrupt a command, which keeps its measurements; the last two for Slurm."""

SHORTEST_GRACE = 10.0
"""Seconds between an interrupt and the kill of a process that has made no step."""

AT_ONCE = 2.0
"""Seconds for the end of a process that was interrupted twice, or whose announced time is over."""

SAME_SECONDS = 1.0
"""Two signals within this time are one: a signal to a group reaches a forked process twice."""

writing: bytearray | mmap.mmap = bytearray(1)
"""Not 0 in a block of `uninterrupted`; replaced by memory that this process shares with a fork."""

WRITING_SECONDS = 60.0
"""Seconds for a record or a checkpoint, whose file system may be slow."""

_STEPS, _MARGIN_SECONDS = 2, 2.0  # workers of a job agree in one more step to stop
_ANNOUNCED = re.compile(r"interrupted; waiting up to (\d+) s for .*")

LONGEST_WAIT_SECONDS = 1.0
"""Limit of a single wait: a signal that arrives just before it is handled only after it."""

_noted = 0  # interrupts of the command
_last = -SAME_SECONDS
_concluded = True  # no command is running, or the answer of the command is complete


def name_of(number: int) -> str:
    """Name of a signal, such as SIGTERM; of one without a name, such as "signal 40"."""
    names: dict[int, str] = {one: one.name for one in signal.Signals}
    return names.get(number, f"signal {number}")


def grace(longest: float = 0.0) -> float:
    """Seconds between an interrupt of a process and its kill; `longest` is its longest step so far.

    More while it, a fork of this process, is in a block of `uninterrupted`.
    """
    seconds = max(SHORTEST_GRACE, _STEPS * longest + _MARGIN_SECONDS)
    return seconds + (WRITING_SECONDS if writing[0] else 0.0)


def announcement(seconds: float) -> str:
    """Notice of how long a forked process, which was interrupted, may still run."""
    what = "record or the checkpoint to be written" if writing[0] else "running step to end"
    notice = f"interrupted; waiting up to {math.ceil(seconds)} s for the {what}"
    return f"{notice} (a second signal ends the run at once)"


def announced(log: str) -> re.Match[str] | None:
    """The last `announcement` in the log of a process; group 1 is its number of seconds."""
    return next(iter([*_ANNOUNCED.finditer(log)][-1:]), None)


def begin() -> None:
    """Makes `SIGNALS` interrupt a command, which begins here and ends with `conclude`.

    Signals that the caller ignores, as nohup does, stay ignored. Does nothing outside of the main
    thread, which signals interrupt.
    """
    global _noted, _last, _concluded
    if threading.current_thread() is threading.main_thread():
        _noted, _last, _concluded = 0, -SAME_SECONDS, False
        sys.unraisablehook = partial(_report_dropped, sys.unraisablehook)
        _handle(_interrupt)


def conclude() -> bool:
    """Ends the time in which signals interrupt the command; the first call returns whether one did.

    Later signals change nothing, so that the exit code is that of the complete answer.
    """
    global _concluded
    is_first, _concluded = not _concluded, True
    return is_first and received()


def received() -> bool:
    """Whether the command was interrupted, however it has ended."""
    return _noted > 0


def obey() -> None:
    """Raises KeyboardInterrupt if the running command was interrupted.

    For loops, and before results are written: the exception of the handler may have been dropped.
    """
    if _noted and not _concluded:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _noted, _last
    del number, frame
    now = time.monotonic()
    again, _last = now - _last < SAME_SECONDS, now
    if not again and not _concluded:
        _noted += 1
        raise KeyboardInterrupt


def _report_dropped(
    report: Callable[[UnraisableHookArgs], object], dropped: UnraisableHookArgs
) -> None:
    """Reports an exception that Python drops, unless it is an interrupt, which is noted."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        report(dropped)


def _handle(handler: Callable[[int, FrameType | None], object]) -> None:
    """Sets the handler of `SIGNALS` that are not ignored and that native code does not handle."""
    for number in SIGNALS:
        if signal.getsignal(number) not in (None, signal.SIG_IGN):  # None: native code's
            signal.signal(number, handler)


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], object] | None = None) -> Iterator[None]:
    """Restores the handlers of `SIGNALS` at the end of the block, which begins with `handler`.

    None leaves the handlers as they are. Ignored signals, and those handled by native code, are not
    changed. Does nothing outside of the main thread, which signals interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    report, before = sys.unraisablehook, {number: signal.getsignal(number) for number in SIGNALS}
    if handler is not None:
        _handle(handler)
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number, old in before.items():
            if old is not None:
                signal.signal(number, old)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defers interrupting signals to the end of the block, which writes a record or a checkpoint.

    By handlers, not by a mask: TensorFlow's threads would receive a masked signal and pass it to
    the main thread.
    """
    held: list[int] = []
    before, writing[0] = writing[0], 1
    try:
        with handling(lambda number, frame: held.append(number)):
            yield
    finally:
        writing[0] = before
        if held:
            signal.raise_signal(held[0])


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Raises KeyboardInterrupt for an error in the block that results from an interrupt.

    That is every error after an interrupt, except cnnbench's own, and any SystemError that an
    interrupt caused.
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
