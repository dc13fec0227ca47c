"""Writing lines to a stream whose reader may be slow, narrow-minded or gone."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from cnnbench.errors import BenchmarkError
from cnnbench.text.escape import one_line


class LineWriter:
    """Writes and flushes whole lines; falls silent when the stream takes no more.

    What a command comes to does not depend on whether somebody reads along. Standard output
    that cannot be written, to a full disk for one, is told on standard error, once.
    """

    def __init__(
        self, stream: TextIO | None, before_line: Callable[[], None] | None = None
    ) -> None:
        """Writes to a stream.

        Args:
          stream: text stream; None, which is what Python has for a closed one, takes nothing.
          before_line: called before each write.
        """
        self._stream = stream
        self._before_line = before_line

    def lines(self, lines: Iterable[str]) -> None:
        """Writes these lines in one go and flushes."""
        if self._stream is None:
            return
        if self._before_line is not None:
            self._before_line()
        stream = self._stream
        try:
            _write(stream, "".join(f"{line}\n" for line in lines))
        except (OSError, ValueError) as error:
            self._stream = None
            discard(stream)
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                tell(f"error: {unwritable(error)}")


def write_product(text: str) -> None:
    """Prints what a command was asked for: without it, it has done nothing.

    Args:
      text: lines; the last may lack its end.

    Raises:
      BenchmarkError: standard output cannot be written.
      BrokenPipeError: its reader has gone.
    """
    stream = sys.stdout
    if stream is None:
        return
    try:
        _write(stream, text if text.endswith("\n") else f"{text}\n")
    except BrokenPipeError:
        discard(stream)
        raise
    except (OSError, ValueError) as error:
        discard(stream)
        raise BenchmarkError(unwritable(error)) from error


def tell(message: str) -> None:
    """Prints a line of the program's own on standard error.

    The message may hold names of files and text of records: it stays one line, and none that
    a terminal or the log of a build would obey.
    """
    LineWriter(sys.stderr).lines([f"cnnbench: {one_line(message)}"])


def unwritable(error: Exception) -> str:
    """What to say where standard output cannot be written."""
    reason = error.strerror if isinstance(error, OSError) else None
    return f"cannot write to standard output: {reason or error}"


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a path that the terminal's encoding lacks
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def discard(stream: TextIO) -> None:
    """Points a stream that takes no more at the null device.

    What Python still holds in its buffer would otherwise raise again when the
    interpreter flushes at exit, and turn a good run's exit code into 120.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, io.UnsupportedOperation):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, descriptor)
    finally:
        os.close(null)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that understands control sequences."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False
