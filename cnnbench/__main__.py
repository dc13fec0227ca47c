"""``python -m cnnbench``, and the console script."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def _exit_interrupted(*_: object) -> None:
    """Ends the process after a signal that arrives before the command has begun."""
    _exit_now("interrupted", 130)


def _exit_now(reason: str, code: int) -> NoReturn:
    """Ends the process before the command has begun. At this time there is nothing to undo."""
    try:
        os.write(2, f"cnnbench: error: {reason}\n".encode())
    finally:
        os._exit(code)


def _exit_on_signals() -> None:
    try:
        for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2"):
            number = signal.Signals[f"SIG{name}"]
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _exit_interrupted)
    except KeyboardInterrupt:  # Python's own signal handler, which was not replaced yet, raised it.
        _exit_interrupted()


def entry_point() -> NoReturn:
    """Runs the command in `sys.argv`, and exits with its exit code.

    Signals end the process from the first line on: a signal during an import would print a
    traceback. Only this function installs signal handlers; imports of cnnbench do not.
    """
    _exit_on_signals()
    from cnnbench.errors import ExitCode, exhausted

    try:
        from cnnbench import cli
    except (MemoryError, ImportError) as error:
        reason = exhausted(error)
        if not reason:
            raise
        # Python would exit with 1, which means a regression.
        _exit_now(reason, ExitCode.FAILED)
    cli.entry_point()


if __name__ == "__main__":
    entry_point()
