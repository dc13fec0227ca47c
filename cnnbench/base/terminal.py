"""Writes to a terminal: streams that tolerate errors, notices and progress lines.

Scripts parse standard output, so notices and progress go to standard error. The progress line is
redrawn ten times a second in the timed loop. This module takes 5 us for a redraw; rich would take
at least 0.5 ms, and 40 ms for its import.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TextIO, cast

from cnnbench.base.escapes import disable_ci_commands, to_terminal_line
from cnnbench.base.log_lines import error_line, notice_line
from cnnbench.base.text import cut_to_width, format_duration, wrap_words

# Output streams that tolerate closed pipes, full disks and limited encodings.


class ErrorStoringStream:
    """Wrapper of a standard stream that stores write errors instead of raising them.

    `lost` is the first error; after it, output goes to the null device. Text that the stream cannot
    encode still raises UnicodeError.
    """

    def __init__(self, stream: TextIO, tell: Callable[[Exception], None] | None = None) -> None:
        """Wraps `stream`. If writing fails, `tell` is called with the first error."""
        self.lost: Exception | None = None
        self._stream = stream
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def duplicate_descriptor(self) -> None:
        """Makes this stream write to a copy of its file descriptor, so that later redirections have
        no effect.

        They have no effect on a stream without a descriptor, which stays as it is.
        """
        before = self._stream
        before.flush()
        try:
            descriptor = os.dup(before.fileno())
        except io.UnsupportedOperation:
            return
        # `closefd=False`, because Python would warn of a stream that is not closed before the
        # process exits.
        self._stream = open(  # noqa: SIM115
            descriptor,
            "w",
            1,
            encoding=before.encoding,
            errors=before.errors,
            closefd=False,
        )

    def write(self, text: str) -> int:
        """Writes text and returns its length. A write error is not raised, but stored in `lost`."""
        try:
            return self._stream.write(text)
        except UnicodeError:
            raise
        except (OSError, ValueError) as error:
            self._store_error(error)
            return len(text)

    def flush(self) -> None:
        """Flushes the stream. A write error is not raised, but stored in `lost`."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._store_error(error)

    def _store_error(self, error: Exception) -> None:
        first = self.lost is None
        self.lost = self.lost or error
        redirect_to_null(self._stream)
        if first and self._tell is not None:
            self._tell(error)


@contextmanager
def tolerating_output_errors() -> Iterator[ErrorStoringStream | None]:
    """Context manager for a block in which write errors of the standard streams are not raised.

    It yields standard output, or None if it is closed. Errors of standard error are ignored,
    because only people read it. The first error of standard output is reported on standard error
    immediately.
    """
    before = sys.stdout, sys.stderr
    out = None if sys.stdout is None else ErrorStoringStream(sys.stdout, _output_failed)
    if out is not None:
        sys.stdout = cast("TextIO", out)
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", ErrorStoringStream(sys.stderr))

    try:
        yield out
    finally:
        sys.stdout, sys.stderr = before


def _output_failed(error: Exception) -> None:
    if not isinstance(error, BrokenPipeError):
        reason = error.strerror if isinstance(error, OSError) else None
        print_error(f"cannot write to standard output: {reason or error}")


class LineWriter:
    """Writes whole lines to a stream and flushes it. After the first failure, nothing more is
    written.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """Uses `stream` for output. If `stream` is None, as `sys.stderr` is if it was closed, all
        lines are discarded.
        """
        self._stream = stream

    def write_lines(self, lines: Iterable[str]) -> None:
        """Writes all lines in one call and flushes the stream."""
        stream = self._stream
        if stream is None:
            return
        try:
            _write_text(stream, "".join(f"{disable_ci_commands(line)}\n" for line in lines))
        except (OSError, ValueError):
            self._stream = None
            redirect_to_null(stream)


def print_result(text: str) -> None:
    """Prints the result of a command to standard output, and adds a newline if it is missing at the
    end.

    Call it within `tolerating_output_errors`. BrokenPipeError if the reader of standard output has
    closed the pipe.
    """
    stream = sys.stdout
    if stream is None:
        return
    _write_text(stream, text if text.endswith("\n") else f"{text}\n")
    lost = getattr(stream, "lost", None)
    if isinstance(lost, BrokenPipeError):
        raise lost


def print_notice(text: str) -> None:
    """Prints a notice for the user to standard error."""
    MessageWriter().notice(text)


_silenced: set[str] = set()


def silence_warnings(names: Iterable[str]) -> None:
    """Sets the names of the warnings that this process does not print (--quiet_conditions)."""
    _silenced.clear()
    _silenced.update(names)


def print_warning(text: str, name: str) -> None:
    """Prints a warning to standard error. `name` is the name of the warning in
    --quiet_conditions.
    """
    MessageWriter().warning(text, name)


def print_error(text: str, *more: str) -> None:
    """Prints to standard error why a command fails, followed by further lines with details."""
    MessageWriter().error(text, *more)


def _write_text(stream: TextIO, text: str) -> None:
    if LiveLine.visible is not None:
        LiveLine.visible.clear()
    try:
        stream.write(text)
    # The encoding of the terminal may lack a character, for example of a path.
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def redirect_to_null(stream: TextIO) -> None:
    """Redirects a stream to the null device after a write error.

    Otherwise Python's flush at exit would fail again and change the exit code to 120.
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
    """Whether a stream is a terminal that supports control sequences."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # `isatty` raises ValueError if the stream is closed.
        return False


_USUAL, _NARROWEST = 100, 40


def line_width() -> int:
    """Width of a line in characters: COLUMNS if set, otherwise the width of the terminal, otherwise
    100.
    """
    variable = os.environ.get("COLUMNS", "")
    if variable.isascii() and variable.isdigit() and int(variable):
        return max(int(variable), _NARROWEST)
    columns = _columns(sys.stdout) if is_terminal(sys.stdout) else 0
    return max(columns, _NARROWEST) if columns else _USUAL


def _columns(stream: TextIO) -> int:
    """Width of a terminal in columns; 0 if it is unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, io.UnsupportedOperation):
        return 0


def wrap_text(text: str, indent: str = "", subsequent_indent: str | None = None) -> list[str]:
    """Breaks a text between words into lines of at most `line_width` characters.

    `indent` is put before the first line, and `subsequent_indent` before all other lines
    (by default, `indent`).
    """
    lines = wrap_words(
        text,
        line_width(),
        initial_indent=indent,
        subsequent_indent=indent if subsequent_indent is None else subsequent_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*map(disable_ci_commands, lines)] or [indent.rstrip()]


# Classes that write notices, warnings and, on terminals, a progress line to standard error.

_BAR_WIDTH = 20
_SECONDS_BETWEEN_DRAWS = 0.1
_USUAL_OF_LIVE_LINE = 80
_ERASE_LINE = "\r\x1b[K"


class LiveLine:
    """A line on a terminal that is rewritten in place. Whatever this module writes removes it.

    `enabled` becomes False after a write error. `drawn` says whether the line is currently visible.
    """

    visible: ClassVar[LiveLine | None] = None

    def __init__(self, stream: TextIO, enabled: bool) -> None:
        self._stream = stream
        self.enabled = enabled
        self.drawn = False

    def draw(self, text: str) -> None:
        """Replaces the text of the line. Text beyond the width of the terminal is cut off."""
        if self.enabled:
            columns = _columns(self._stream) or _USUAL_OF_LIVE_LINE
            # Set before writing: if an interrupt comes while the line is written, the line is
            # removed later.
            self.drawn, LiveLine.visible = True, self
            self._write(_ERASE_LINE + cut_to_width(text, columns - 1))

    def clear(self) -> None:
        """Removes the line from the terminal, so that other text can be written."""
        if self.drawn:
            self._write(_ERASE_LINE)
            self.drawn, LiveLine.visible = False, None

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # If the terminal is closed, the run must continue without the line.
            self.enabled = self.drawn = False
            LiveLine.visible = None


class ProgressLine:
    """Progress line of a loop: completed steps, completed share, images/sec and remaining time.

    On a terminal, each step takes one reading of the clock; otherwise it takes no time.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        style: str = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a progress line that is first drawn after `start`. If `stream` is None, standard
        error is used.

        `style` is "auto" (draws on terminals), "on" or "off"; `clock` returns seconds, monotonic.
        """
        stream = sys.stderr if stream is None else stream
        enabled = style == "on" or (style == "auto" and is_terminal(stream))
        self._live = LiveLine(stream, enabled)
        self._clock = clock
        self.start("", 0)

    @classmethod
    def silent(cls) -> ProgressLine:
        """Creates a progress line that is never drawn."""
        return cls(io.StringIO(), "off")

    def start(self, label: str, total: int, images_per_step: int | None = None) -> None:
        """Starts a new phase of `total` steps. The progress line shows the name `label` for the
        phase.

        `images_per_step` is the global batch size; without it, no images/sec are shown.
        """
        self.finish()
        self._label, self._total, self._images_per_step = label, total, images_per_step
        self._first: tuple[int, float] | None = None
        self._next_draw = 0.0

    def update(self, done: int) -> bool:
        """Sets the number of completed steps, and redraws the progress line at most ten times a
        second.

        Returns whether the line is shown on a terminal.
        """
        if not self._live.enabled:
            return False
        now = self._clock()
        if self._first is None:
            # The first step also compiles and allocates, so it does not count in the shown speed.
            self._first = (done, now)
        if now >= self._next_draw or not self._live.drawn:
            self._next_draw = now + _SECONDS_BETWEEN_DRAWS
            self._live.draw(self._progress_text(done, now, *self._first))
        return True

    def finish(self) -> None:
        """Removes the progress line from the terminal. The next `update` draws it again."""
        self._live.clear()

    def _progress_text(self, done: int, now: float, first_done: int, first_time: float) -> str:
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


class MessageWriter(LineWriter):
    """Writes notices, warnings and errors to standard error."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Creates a writer for `stream`, or for standard error if `stream` is None."""
        super().__init__(sys.stderr if stream is None else stream)

    @classmethod
    def silent(cls) -> MessageWriter:
        """Creates an instance that discards all messages."""
        return cls(io.StringIO())

    def notice(self, text: str) -> None:
        """Writes "cnnbench: " and a notice, on one line."""
        self.write_lines([notice_line(text)])

    def warning(self, text: str, name: str) -> None:
        """Writes a warning that results may be distorted, or that defective data is left out.

        `name` is the name of the warning in --quiet_conditions; see `silence_warnings`.
        """
        if name not in _silenced:
            self.notice(f"warning: {text} (--quiet_conditions={name} silences this)")

    def error(self, text: str, *more: str) -> None:
        """Writes "cnnbench: error: " and the reason why a command fails, followed by lines with
        details.
        """
        self.write_lines([error_line(text), *map(notice_line, more)])

    def write_unprefixed(self, text: str) -> None:
        """Writes a line without a prefix, for output in the format of another program."""
        self.write_lines([to_terminal_line(text)])


class ChildProcessReporter(MessageWriter):
    """Reports the progress of a series of child processes: one notice for each process that has
    ended.

    On terminals, a line also shows the running process and the remaining time.

    Labels and results may contain text of any origin; it is escaped. If the stream is None,
    standard error is used. `clock` returns seconds, monotonic.
    """

    running: ClassVar[ChildProcessReporter | None] = None
    """The instance whose child process is running."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        stream = sys.stderr if stream is None else stream
        self._live = LiveLine(stream, is_terminal(stream))
        self._clock = clock
        self._text, self._left = "", 0.0
        self._started = self._next_draw = 0.0
        super().__init__(stream)

    def show_started(
        self, index: int, total: int, label: str, left: float | None = None, standing: str = ""
    ) -> None:
        """If the stream is a terminal, shows that a child process is running, until `hide`.

        `standing` says how far the series is; if it is empty, `index` and `label` do. The other
        arguments are those of `report_ended`, except that `left` includes this process.
        """
        self._text, self._left = standing or f"[{index}/{total}] {label}", left or 0.0
        self._started = self._next_draw = self._clock()
        ChildProcessReporter.running = self
        self.redraw()

    def redraw(self) -> None:
        """Draws the line about the running process again if a second has passed. The remaining time
        is the estimate at its start, less the time since then.
        """
        now = self._clock()
        if now < self._next_draw:
            return
        self._next_draw = now + 1.0
        passed = now - self._started
        left = self._left - passed
        parts = [f"{self._text} ... {format_duration(passed)}"]
        parts += [f"{format_duration(left)} left"] if left > 0 else []
        self._live.draw(to_terminal_line(", ".join(parts)))

    def hide(self) -> None:
        """Removes the line about the running process from the terminal."""
        ChildProcessReporter.running = None
        self._live.clear()

    def report_ended(
        self, index: int, total: int, label: str, result: str, seconds: float, left: float | None
    ) -> None:
        """Writes the notice for a child process that has ended. `index` starts at 1.

        `left` is the expected time of the remaining processes in seconds: 0 after the last process,
        None if unknown.
        """
        eta = f" ETA {format_duration(left)}" if left else ""
        self.notice(f"[{index}/{total}] {label}: {result} ({format_duration(seconds)}){eta}")


def redraw_running_process() -> None:
    """Redraws the line about the running child process, at most once a second. Call it in a loop
    that waits for child processes.
    """
    if ChildProcessReporter.running is not None:
        ChildProcessReporter.running.redraw()
