"""Standard error: notices, warnings, and a live progress line on terminals.

Standard output belongs to the lines that scripts parse, so everything else is here.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from cnnbench.text.terminal import LineWriter, is_terminal

_BAR_WIDTH = 20
_SECONDS_BETWEEN_DRAWS = 0.1
_ERASE_LINE = "\r\x1b[K"


class Progress:
    """One line, rewritten in place: step, share done, images/sec, time left.

    A step costs a look at the clock, and only while there is a terminal to draw on.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        style: str = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Draws nothing until `start`.

        Args:
          stream: text stream; standard error if None.
          style: "auto" draws on terminals, "on" always, "off" never.
          clock: seconds, monotonic.
        """
        self._stream = sys.stderr if stream is None else stream
        self._enabled = style == "on" or (style == "auto" and is_terminal(self._stream))
        self._clock = clock
        self._label = ""
        self._total = 0
        self._images_per_step: int | None = None
        self._first: tuple[int, float] | None = None
        self._next_draw = 0.0
        self._drawn = False

    @classmethod
    def silent(cls) -> Progress:
        """Progress that nobody sees."""
        return cls(io.StringIO(), "off")

    def start(self, label: str, total: int, images_per_step: int | None = None) -> None:
        """Begins a phase.

        Args:
          label: what runs.
          total: steps of the phase.
          images_per_step: global batch; without it no rate is shown.
        """
        self.clear()
        self._label, self._total, self._images_per_step = label, total, images_per_step
        self._first = None
        self._next_draw = 0.0

    def update(self, done: int) -> None:
        """Says that this many steps of the phase are done; redraws ten times a second."""
        if not self._enabled:
            return
        now = self._clock()
        if self._first is None:
            # Rates count from the end of the first step, which compiles and allocates.
            self._first = (done, now)
        if now < self._next_draw:
            return
        self._next_draw = now + _SECONDS_BETWEEN_DRAWS
        text = self._line(done, now)[: self._columns() - 1]
        self._write(_ERASE_LINE + text)
        self._drawn = True

    def clear(self) -> None:
        """Takes the line off the terminal, so that another can be written."""
        if self._drawn:
            self._write(_ERASE_LINE)
            self._drawn = False
            self._next_draw = 0.0

    def finish(self) -> None:
        """Ends the phase; nothing of it stays on the terminal."""
        self.clear()

    def _line(self, done: int, now: float) -> str:
        share = min(done / self._total, 1.0) if self._total else 1.0
        filled = int(share * _BAR_WIDTH)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        parts = [f"{self._label} {done}/{self._total} [{bar}] {share:4.0%}"]
        assert self._first is not None
        first_done, first_time = self._first
        if done > first_done and now > first_time:
            steps_per_sec = (done - first_done) / (now - first_time)
            if self._images_per_step is not None:
                parts.append(f"{steps_per_sec * self._images_per_step:.1f} images/sec")
            parts.append(f"ETA {_clock_face((self._total - done) / steps_per_sec)}")
        return "  ".join(parts)

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError, io.UnsupportedOperation):
            return 80

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # A progress line must never end a run, least of all a terminal that is gone.
            self._enabled = self._drawn = False


class Messages:
    """One line each on standard error, clear of the progress line."""

    def __init__(self, stream: TextIO | None = None, progress: Progress | None = None) -> None:
        """Writes to a stream.

        Args:
          stream: text stream; standard error if None.
          progress: cleared before each message.
        """
        before_line = None if progress is None else progress.clear
        self._writer = LineWriter(sys.stderr if stream is None else stream, before_line)

    @classmethod
    def silent(cls) -> Messages:
        """Messages that nobody sees."""
        return cls(io.StringIO())

    def notice(self, text: str) -> None:
        """Something worth knowing."""
        self._writer.lines([f"cnnbench: {_one_line(text)}"])

    def warning(self, text: str) -> None:
        """Something that may spoil the figures."""
        self._writer.lines([f"cnnbench: warning: {_one_line(text)}"])


def _clock_face(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
