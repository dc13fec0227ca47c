"""Progress on standard error: a line per run, with the time left.

What processes say may be anybody's text, that of a pull request in a log of GitHub's: none of
it starts a line or steers the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from cnnbench.text.escape import one_line
from cnnbench.text.terminal import LineWriter, is_terminal

_ERASE_LINE = "\r\x1b[K"


class Durations:
    """What runs took, to tell what the rest will take."""

    def __init__(self) -> None:
        """Knows nothing."""
        self._by_key: dict[tuple[str, bool], list[float]] = {}
        self._now: list[float] = []

    def add(self, key: str, search: bool, seconds: float, past: bool = False) -> None:
        """Takes one duration.

        Args:
          key: of the case.
          search: whether it was the search for a batch size.
          seconds: wall time.
          past: whether it is from an earlier sweep, maybe of other cases than today's.
        """
        self._by_key.setdefault((key, search), []).append(seconds)
        if not past:
            self._now.append(seconds)

    def left(self, waiting: Iterable[tuple[str, bool]]) -> float | None:
        """Seconds for these keys, those unknown as the mean of this sweep's; None if unknown."""
        total = 0.0
        for key in waiting:
            known = self._by_key.get(key) or self._now
            if not known:
                return None
            total += sum(known) / len(known)
        return total


class Reporter:
    """Writes the lines; on a terminal also which run is at work.

    Args:
      stream: standard error if None.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = is_terminal(self._stream)
        self._writer = LineWriter(self._stream, self._clear)
        self._drawn = False

    def line(self, text: str) -> None:
        """A notice."""
        self._write(f"cnnbench: {text}")

    def started(self, index: int, total: int, label: str) -> None:
        """A run begins."""
        if self._live:
            self._draw(f"[{index}/{total}] {label} ...")

    def ended(
        self, index: int, total: int, label: str, what: str, seconds: float, left: float | None
    ) -> None:
        """A run is over.

        Args:
          index: counted from 1.
          total: all runs.
          label: which.
          what: became of it.
          seconds: it took.
          left: seconds that the others will take, 0 after the last, None if unknown.
        """
        eta = f" ETA {duration(left)}" if left else ""
        self._write(f"[{index}/{total}] {label}: {what} ({duration(seconds)}){eta}")

    def _write(self, text: str) -> None:
        self._writer.lines([one_line(text)])

    def _draw(self, text: str) -> None:
        try:
            self._stream.write(_ERASE_LINE + one_line(text)[:200])
            self._stream.flush()
            self._drawn = True
        except (OSError, ValueError):
            self._live = False

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = False
            try:
                self._stream.write(_ERASE_LINE)
            except (OSError, ValueError):
                self._live = False


def duration(seconds: float) -> str:
    """A time in words: "42 s", "5 min", "2 h 10 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
