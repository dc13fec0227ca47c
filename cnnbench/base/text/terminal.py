"""Output that survives closed pipes, full disks and limited encodings."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from cnnbench.base.text.escape import inert
from cnnbench.base.text.messages import error_line, notice_line, warning_line


class StandardStream:
    """A standard stream whose write errors are kept, not raised.

    From the first failure, `lost`, on, output goes to the null device. Text outside the stream's
    encoding is an error as before.
    """

    def __init__(self, stream: TextIO, tell: Callable[[Exception], None] | None = None) -> None:
        """Writes to a stream; `tell` is called at the first failure."""
        self.lost: Exception | None = None
        self._stream = stream
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def take_descriptor(self) -> None:
        """Writes to a copy of the descriptor from now on, unaffected by later redirections."""
        before = self._stream
        before.flush()
        self._stream = open(  # noqa: SIM115 - as long as the process
            os.dup(before.fileno()), "w", 1, encoding=before.encoding, errors=before.errors
        )

    def write(self, text: str) -> int:
        """Writes text as the stream does; returns its length."""
        try:
            return self._stream.write(text)
        except UnicodeError:
            raise
        except (OSError, ValueError) as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        first = self.lost is None
        self.lost = self.lost or error
        discard(self._stream)
        if first and self._tell is not None:
            self._tell(error)


@contextmanager
def standard_streams() -> Iterator[StandardStream | None]:
    """Keeps lost standard streams from ending the block; yields standard output, if open.

    Failures of standard error are ignored: it is for people. The loss of standard output is
    reported on standard error at once.
    """
    before = sys.stdout, sys.stderr
    out = None if sys.stdout is None else StandardStream(sys.stdout, _report)
    if out is not None:
        sys.stdout = cast("TextIO", out)
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", StandardStream(sys.stderr))

    try:
        yield out
    finally:
        sys.stdout, sys.stderr = before


def _report(error: Exception) -> None:
    if not isinstance(error, BrokenPipeError):
        reason = error.strerror if isinstance(error, OSError) else None
        print_error(f"cannot write to standard output: {reason or error}")


class LineWriter:
    """Writes and flushes whole lines, and stops writing after the first failure."""

    def __init__(
        self, stream: TextIO | None, before_line: Callable[[], None] | None = None
    ) -> None:
        """Writes to a stream; None, which Python has for a closed one, discards everything."""
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
            _write(stream, "".join(f"{inert(line)}\n" for line in lines))
        except (OSError, ValueError):
            self._stream = None
            discard(stream)


def print_result(text: str) -> None:
    """Prints the result of a command, within `standard_streams`, and a missing last line end.

    BrokenPipeError if the reader of standard output has closed the pipe.
    """
    stream = sys.stdout
    if stream is None:
        return
    _write(stream, text if text.endswith("\n") else f"{text}\n")
    lost = getattr(stream, "lost", None)
    if isinstance(lost, BrokenPipeError):
        raise lost


def print_notice(text: str) -> None:
    """Prints information on standard error."""
    LineWriter(sys.stderr).lines([notice_line(text)])


def print_warning(text: str) -> None:
    """Prints a warning on standard error."""
    LineWriter(sys.stderr).lines([warning_line(text)])


def print_error(text: str, *more: str) -> None:
    """Prints why a command fails on standard error, and details in lines below."""
    LineWriter(sys.stderr).lines([error_line(text), *map(notice_line, more)])


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
