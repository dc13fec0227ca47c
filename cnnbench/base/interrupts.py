"""Handles the signals that interrupt a command, in Python and in native code.

The signal handler raises KeyboardInterrupt in whatever code is running. In a destructor or a
callback of a weak reference, Python drops the exception. In Python code that native code calls,
TensorFlow may ignore the exception and later raise a different one, such as SystemError without any
context. Therefore the handler also counts the interrupt: `raise_if_interrupted` raises it again,
`errors_as_interrupts` converts errors that it has caused, and `conclude_command` reports
it at the end of the command.
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
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals that interrupt a command. It keeps its measurements. Slurm may send the last two."""

SHORTEST_GRACE = 10.0
"""Seconds between the interrupt and the kill of a process that has not finished a step."""

AT_ONCE = 2.0
"""Seconds until a process is killed after a second interrupt, or after its announced time."""

SAME_SECONDS = 1.0
"""Signals within this time count as one, because a process may receive a signal twice.

A signal to a process group reaches a forked process directly and through its parent.
"""

writing: bytearray | mmap.mmap = bytearray(1)
"""Its byte is not 0 during `delaying_interrupts`. For a fork, it is replaced by shared memory."""

WRITING_SECONDS = 60.0
"""Seconds allowed for writing a record or a checkpoint; the file system may be slow."""

# Time for two steps: the step that is running, and a step in which the workers agree to stop.
_STEPS, _MARGIN_SECONDS = 2, 2.0
_ANNOUNCED = re.compile(r"interrupted; waiting up to (\d+) s for .*")

LONGEST_WAIT_SECONDS = 1.0
"""Maximum length of a single wait. A signal that arrives just before a wait is handled after it."""

_noted = 0  # Number of interrupts since the command began.
_last = -SAME_SECONDS
_concluded = True  # True if no command is running, or if the output of the command is complete.


def signal_name(number: int) -> str:
    """Name of a signal, such as "SIGTERM". A signal without a name is called "signal 40", for
    example.
    """
    names: dict[int, str] = {signal_number: signal_number.name for signal_number in signal.Signals}
    return names.get(number, f"signal {number}")


def interrupt_grace_seconds(longest_step_seconds: float = 0.0) -> float:
    """Seconds that an interrupted process may continue to run before it is killed.
    `longest_step_seconds` is the time of its longest step.

    The result is larger while the process, a fork of this process, is in a block of
    `delaying_interrupts`.
    """
    seconds = max(SHORTEST_GRACE, _STEPS * longest_step_seconds + _MARGIN_SECONDS)
    return seconds + (WRITING_SECONDS if writing[0] else 0.0)


def grace_announcement(seconds: float) -> str:
    """Notice that tells the user how long an interrupted child process may continue to run."""
    what = "record or the checkpoint to be written" if writing[0] else "running step to end"
    notice = f"interrupted; waiting up to {math.ceil(seconds)} s for the {what}"
    return f"{notice} (a second signal ends the run at once)"


def find_grace_announcement(log: str) -> re.Match[str] | None:
    """Finds the last notice of `grace_announcement` in a log. Group 1 of the match contains the
    seconds.
    """
    return next(iter([*_ANNOUNCED.finditer(log)][-1:]), None)


def begin_command() -> None:
    """Marks the beginning of a command: from now until `conclude_command`, `SIGNALS` interrupt it.

    Signals that the caller ignores, as nohup does, stay ignored. Python runs signal handlers in the
    main thread, so the call does nothing in other threads.
    """
    global _noted, _last, _concluded
    if threading.current_thread() is threading.main_thread():
        _noted, _last, _concluded = 0, -SAME_SECONDS, False
        sys.unraisablehook = partial(_report_dropped, sys.unraisablehook)
        _set_handler(_handle)


def conclude_command() -> bool:
    """Marks the end of a command. The first call returns whether a signal interrupted the command.

    Later signals have no effect, so the exit code agrees with the complete output.
    """
    global _concluded
    is_first, _concluded = not _concluded, True
    return is_first and was_interrupted()


def was_interrupted() -> bool:
    """Whether a signal interrupted the command, even if the command finished normally."""
    return _noted > 0


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt if a signal has interrupted the running command.

    Call it in loops and before results are written, because Python may have dropped the exception
    that the handler raised.
    """
    if _noted and not _concluded:
        raise KeyboardInterrupt


def _handle(number: int, frame: FrameType | None) -> None:
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
    """Reports an exception that Python drops because it cannot be raised. KeyboardInterrupt is not
    reported, because the signal handler has already counted it.
    """
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        report(dropped)


def _set_handler(handler: Callable[[int, FrameType | None], object]) -> None:
    """Sets the handler of all `SIGNALS` except the signals that are ignored or handled by native
    code.
    """
    for number in SIGNALS:
        # If native code handles a signal, `signal.getsignal` returns None; such a handler is kept.
        if signal.getsignal(number) not in (None, signal.SIG_IGN):
            signal.signal(number, handler)


@contextlib.contextmanager
def handling_signals(
    handler: Callable[[int, FrameType | None], object] | None = None,
) -> Iterator[None]:
    """Context manager that sets `handler` for all `SIGNALS` and restores the previous handlers at
    the end.

    If `handler` is None, no handler is set. Signals that are ignored or handled by native code are
    not changed. Python runs signal handlers in the main thread, so the context manager does nothing
    in other threads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    report, before = sys.unraisablehook, {number: signal.getsignal(number) for number in SIGNALS}
    if handler is not None:
        _set_handler(handler)
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number, old in before.items():
            if old is not None:
                signal.signal(number, old)


@contextlib.contextmanager
def delaying_interrupts() -> Iterator[None]:
    """Context manager for a block that writes a record or a checkpoint: delays interrupts to the
    end of the block.

    Handlers are used instead of a signal mask, because TensorFlow's threads would receive a masked
    signal and pass it to the main thread.
    """
    held: list[int] = []
    before, writing[0] = writing[0], 1
    try:
        with handling_signals(lambda number, frame: held.append(number)):
            yield
    finally:
        writing[0] = before
        if held:
            signal.raise_signal(held[0])


@contextlib.contextmanager
def errors_as_interrupts() -> Iterator[None]:
    """Context manager that replaces an error in its block by KeyboardInterrupt if an interrupt
    caused the error.

    An interrupt is the cause of every error after an interrupt in the block, except cnnbench's own
    exceptions, and of a SystemError whose cause is KeyboardInterrupt.
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
