"""Writing lines to a stream whose reader may be slow, narrow-minded or gone."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import TextIO


class LineWriter:
    """Writes and flushes whole lines; falls silent when the reader is gone."""

    def __init__(self, stream: TextIO, before_line: Callable[[], None] | None = None) -> None:
        """Writes to a stream.

        Args:
          stream: text stream.
          before_line: called before each write.
        """
        self._stream = stream
        self._before_line = before_line
        self._gone = False

    def lines(self, lines: Iterable[str]) -> None:
        """Writes these lines in one go and flushes."""
        if self._gone:
            return
        if self._before_line is not None:
            self._before_line()
        text = "".join(f"{line}\n" for line in lines)
        try:
            self._write(text)
        except BrokenPipeError:
            self._gone = True
            discard(self._stream)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:  # a path that the terminal's encoding lacks
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._stream.flush()


def discard(stream: TextIO) -> None:
    """Points a stream without reader at the null device.

    What Python still holds in its buffer would otherwise raise again when the
    interpreter flushes at exit, and turn a good run's exit code into 120.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, descriptor)
    finally:
        os.close(null)


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal that understands control sequences."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False
