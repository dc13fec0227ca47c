"""Line output that survives closed pipes, full disks and limited encodings."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from cnnbench.errors import BenchmarkError
from cnnbench.text.escape import one_line


class LineWriter:
    """Writes and flushes whole lines, and stops writing after the first failure.

    The exit code of a command does not depend on whether its output is read. Standard output
    that cannot be written, such as on a full disk, is reported once on standard error.
    """

    def __init__(
        self, stream: TextIO | None, before_line: Callable[[], None] | None = None
    ) -> None:
        """Writes to a stream.

        Args:
          stream: text stream; None, which Python has for a closed one, discards everything.
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
                print_message(f"error: {unwritable(error)}")


def print_result(text: str) -> None:
    """Prints the result of a command, without which it has failed.

    Args:
      text: lines; the last may lack its end.

    Raises:
      BenchmarkError: standard output cannot be written.
      BrokenPipeError: its reader has closed the pipe.
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


def print_message(message: str) -> None:
    """Prints a line of cnnbench on standard error.

    Control characters, which names of files and text of records may contain, are removed.
    """
    LineWriter(sys.stderr).lines([f"cnnbench: {one_line(message)}"])


def unwritable(error: Exception) -> str:
    """The message for a failure to write to standard output."""
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
    """Redirects a stream that cannot be written to the null device.

    Otherwise the interpreter's flush at exit would fail again and turn the exit code into 120.
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
