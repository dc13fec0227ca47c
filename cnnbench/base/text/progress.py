"""Standard error: notices, warnings, and a live progress line on terminals.

Scripts parse standard output, so everything else is here. The live line is not drawn by rich, which
takes 0.5 ms or more for a redraw, ten times a second in the timed loop, and 40 ms for its import;
this one takes 5 us.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from cnnbench.base.text.escape import one_line
from cnnbench.base.text.messages import error_line, notice_line, warning_line
from cnnbench.base.text.numbers import duration
from cnnbench.base.text.terminal import LineWriter, is_terminal

_BAR_WIDTH = 20
_SECONDS_BETWEEN_DRAWS = 0.1
_ERASE_LINE = "\r\x1b[K"


class LiveLine:
    """One line of a terminal, rewritten in place.

    `enabled` is False once the stream has failed; `drawn` is whether the line is on the terminal.
    """

    def __init__(self, stream: TextIO, enabled: bool) -> None:
        self._stream = stream
        self.enabled = enabled
        self.drawn = False

    def draw(self, text: str) -> None:
        """Replaces the line, cut to the width of the terminal."""
        if self.enabled:
            self._write(_ERASE_LINE + text[: self._columns() - 1])
            self.drawn = self.enabled

    def clear(self) -> None:
        """Removes the line, so that another can be written."""
        if self.drawn:
            self.drawn = False
            self._write(_ERASE_LINE)

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
            # A closed terminal must not end a run.
            self.enabled = False


class Progress:
    """Progress of a loop: step, share done, images/sec, time left.

    A step costs a reading of the clock, and only if there is a terminal to draw on.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        style: str = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Draws nothing until `start`; `stream` is standard error if None.

        `style` is "auto" (draws on terminals), "on" or "off"; `clock` returns seconds, monotonic.
        """
        stream = sys.stderr if stream is None else stream
        enabled = style == "on" or (style == "auto" and is_terminal(stream))
        self._live = LiveLine(stream, enabled)
        self._clock = clock
        self.start("", 0)

    @classmethod
    def silent(cls) -> Progress:
        """Progress that is never drawn."""
        return cls(io.StringIO(), "off")

    def start(self, label: str, total: int, images_per_step: int | None = None) -> None:
        """Begins a phase; without `images_per_step`, the global batch, no rate is shown."""
        self.clear()
        self._label, self._total, self._images_per_step = label, total, images_per_step
        self._first: tuple[int, float] | None = None
        self._next_draw = 0.0

    def update(self, done: int) -> bool:
        """Sets the number of steps done; redraws at most ten times a second.

        Returns whether there is a terminal for it.
        """
        if not self._live.enabled:
            return False
        now = self._clock()
        if self._first is None:
            # Rates count from the end of the first step, which compiles and allocates.
            self._first = (done, now)
        if now >= self._next_draw:
            self._next_draw = now + _SECONDS_BETWEEN_DRAWS
            self._live.draw(self._line(done, now, *self._first))
        return True

    def clear(self) -> None:
        """Removes the line from the terminal; the next update draws it again."""
        if self._live.drawn:
            self._live.clear()
            self._next_draw = 0.0

    finish = clear

    def _line(self, done: int, now: float, first_done: int, first_time: float) -> str:
        share = min(done / self._total, 1.0) if self._total else 1.0
        filled = int(share * _BAR_WIDTH)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        parts = [f"{self._label} {done}/{self._total} [{bar}] {share:4.0%}"]
        if done > first_done and now > first_time:
            steps_per_sec = (done - first_done) / (now - first_time)
            if self._images_per_step is not None:
                parts.append(f"{steps_per_sec * self._images_per_step:.1f} images/sec")
            left = max(0, round((self._total - done) / steps_per_sec))
            parts.append(f"ETA {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}")
        return "  ".join(parts)


class Messages:
    """Lines on standard error that do not interfere with the progress line."""

    def __init__(
        self, stream: TextIO | None = None, progress: Progress | LiveLine | None = None
    ) -> None:
        """Writes to a stream; standard error if None."""
        before_line = None if progress is None else progress.clear
        self._writer = LineWriter(sys.stderr if stream is None else stream, before_line)

    @classmethod
    def silent(cls) -> Messages:
        """Messages that are dropped."""
        return cls(io.StringIO())

    def notice(self, text: str) -> None:
        """See `notice_line`."""
        self._writer.lines([notice_line(text)])

    def warning(self, text: str) -> None:
        """See `warning_line`."""
        self._writer.lines([warning_line(text)])

    def error(self, text: str) -> None:
        """See `error_line`."""
        self._writer.lines([error_line(text)])

    def plain(self, text: str) -> None:
        """Writes a line in the format of another program."""
        self._writer.lines([one_line(text)])


class Reporter(Messages):
    """Progress of child processes: a notice per process, on terminals also the running one.

    Labels and results may hold text of any origin; it is escaped. The stream is standard error if
    None.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = sys.stderr if stream is None else stream
        self._live = LiveLine(stream, is_terminal(stream))
        super().__init__(stream, self._live)

    def started(self, index: int, total: int, label: str, left: float | None = None) -> None:
        """Shows a process as running; arguments as in `ended`, but `left` includes this process."""
        eta = f" ETA {duration(left)}" if left else ""
        self._live.draw(one_line(f"[{index}/{total}] {label} ...{eta}"))

    def ended(
        self, index: int, total: int, label: str, result: str, seconds: float, left: float | None
    ) -> None:
        """Writes the line of a process that has ended; `index` counts from 1.

        `left` is the time of the remaining processes in seconds, 0 after the last, None if unknown.
        """
        eta = f" ETA {duration(left)}" if left else ""
        self.notice(f"[{index}/{total}] {label}: {result} ({duration(seconds)}){eta}")
