"""Output for a terminal: streams, progress and tables.

Scripts parse standard output, so everything else is here. The live line is not drawn by rich, which
takes 0.5 ms or more for a redraw, ten times a second in the timed loop, and 40 ms for its import;
this one takes 5 us.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from cnnbench.base.text import (
    duration,
    error_line,
    inert,
    notice_line,
    one_line,
    spreadsheet,
    warning_line,
)
from cnnbench.errors import UsageError

# Output that survives closed pipes, full disks and limited encodings.


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


# Standard error: notices, warnings, and a live progress line on terminals.

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


# Tables as plain text, CSV and Markdown, and natural sorting of names.

GAP = "  "
_USUAL, _NARROWEST, _NARROWEST_TEXT, _FEWEST_COLUMNS = 100, 40, 12, 2
_MORE = "  "
# Names of layers and configurations are broken behind these marks.
_PART = re.compile(r"\s*[^\s/_,;=]+[/_,;=]*|\s*[/_,;=]+|\s+")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Lines with columns of equal width, two spaces apart, without trailing spaces.

    Rows, the header among them, have equal lengths. The columns `left` (negative numbers count from
    the end) are aligned to the left, all others to the right.
    """
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_left = {index % len(widths) for index in left}
    return [_joined(row, range(len(widths)), widths, to_left) for row in rows]


def columns() -> int:
    """Width of a line: COLUMNS, else that of the terminal, else 100."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return max(int(given), _NARROWEST)
    if is_terminal(sys.stdout):
        with contextlib.suppress(OSError, ValueError):
            return max(os.get_terminal_size(sys.stdout.fileno()).columns, _NARROWEST)
    return _USUAL


def wrapped(text: str, indent: str = "", more: str | None = None) -> list[str]:
    """A sentence in lines of `columns`, without breaking words; `more` indents further lines."""
    lines = textwrap.wrap(
        text,
        columns(),
        initial_indent=indent,
        subsequent_indent=indent if more is None else more,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*map(inert, lines)] or [indent.rstrip()]


def fitted(
    rows: Sequence[Sequence[str]],
    left: Sequence[int] = (0,),
    spare: Sequence[int] = (),
    indent: int = 0,
    *,
    has_head: bool = True,
) -> list[list[str]]:
    """The lines of each row of a table that is no wider than `columns`, as far as possible.

    A table that is too wide has its heads broken into several lines, then loses its spare columns,
    then has its texts broken between words, then loses more columns from the right. A last line
    names the lost ones. Words are broken only in a table without heads, whose columns have no
    names, and where the first two columns alone are too wide.

    Args:
      rows, left: as for `aligned`.
      spare: numbers of columns that are left out first, in this order.
      indent: characters before every line, which the caller adds.
    """
    if not rows:
        return []
    room = columns() - indent
    shown = list(range(len(rows[0])))
    to_left = {index % len(shown) for index in left}
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def excess() -> int:
        return sum(widths[index] + len(GAP) for index in shown) - len(GAP) - room

    if excess() > 0 and has_head:
        for index in shown:
            body = max((len(row[index]) for row in rows[1:]), default=0)
            widths[index] = max(body, *map(len, rows[0][index].split()), 1)
    for index in spare:
        if excess() > 0:
            shown.remove(index)
    texts = [index for index in shown if index in to_left]
    if has_head:
        least = {index: max(_longest_word(rows, index), _NARROWEST_TEXT) for index in texts}
        whole = widths.copy()
        _narrow(widths, least, excess)
        while excess() > 0 and len(shown) > _FEWEST_COLUMNS:
            least.pop(shown.pop(), None)
            widths[:] = whole
            _narrow(widths, least, excess)
        texts = [index for index in shown if index in to_left]
    _narrow(widths, dict.fromkeys(texts, _NARROWEST_TEXT), excess)
    for index in shown:  # heads get the remaining width
        longer = len(rows[0][index]) - widths[index]
        if has_head and 0 < longer <= -excess():
            widths[index] += longer
    lines = [
        _row_lines(row, shown, widths, to_left, has_head and place == 0)
        for place, row in enumerate(rows)
    ]
    missing = [rows[0][index] for index in range(len(rows[0])) if index not in shown]
    if missing:
        lines.append(wrapped(f"omitted for lack of width: {', '.join(missing)}"))
    return lines


def _narrow(widths: list[int], least: Mapping[int, int], excess: Callable[[], int]) -> None:
    """Takes the excess from the widest columns, each down to its least width."""
    while excess() > 0:
        wider = [index for index in least if widths[index] > least[index]]
        if not wider:
            break
        widths[max(wider, key=lambda index: widths[index])] -= 1


def _longest_word(rows: Sequence[Sequence[str]], index: int) -> int:
    """Width that a column needs for its cells, without the head, to be broken between words."""
    longest = 0
    for row in rows[1:]:
        for place, part in enumerate(_PART.findall(row[index])):
            longest = max(longest, len(part.strip()) + (len(_MORE) if place else 0))
    return longest


def parts(rows: Sequence[Sequence[str]], indent: int = 0) -> list[list[list[str]]]:
    """Splits a wide table into tables that fit, each with the first column; row 0 is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    groups: list[list[int]] = [[0]]
    for index in range(1, len(widths)):
        used = sum(widths[one] + len(GAP) for one in groups[-1])
        if len(groups[-1]) > 1 and used + widths[index] > columns() - indent:
            groups.append([0])
        groups[-1].append(index)
    return [[[row[index] for index in group] for row in rows] for group in groups]


def _row_lines(
    row: Sequence[str], shown: Sequence[int], widths: Sequence[int], to_left: set[int], head: bool
) -> list[str]:
    cells = [_broken(row[index], widths[index], head) for index in shown]
    height = max(map(len, cells))
    filled = [
        [*[""] * (height - len(cell)), *cell] if head else [*cell, *[""] * (height - len(cell))]
        for cell in cells
    ]
    return [_joined(parts, shown, widths, to_left) for parts in zip(*filled, strict=True)]


def _joined(
    cells: Sequence[str], shown: Sequence[int], widths: Sequence[int], to_left: set[int]
) -> str:
    """A line with the cells of the columns `shown`."""
    line = GAP.join(
        cell.ljust(widths[index]) if index in to_left else cell.rjust(widths[index])
        for index, cell in zip(shown, cells, strict=True)
    )
    return inert(line.rstrip())


def _broken(text: str, width: int, head: bool) -> list[str]:
    """A cell broken into lines of this width; further lines of body cells are indented."""
    found, line = [], ""
    more = "" if head else _MORE
    for part in _PART.findall(text):
        while len((line + part).rstrip()) > width:
            if line.strip():
                found.append(line.rstrip())
                line = more
                part = part.lstrip()
            else:
                cut = width - len(line)
                found.append(line + part[:cut])
                line, part = more, part[cut:]
        line += part
    return [*found, line.rstrip()] if line.strip() or not found else found


def csv_cell(value: object) -> str:
    """The text of a value in every CSV file: "" for None, others as in JSON, numbers unrounded."""
    if value is None:
        return ""
    if isinstance(value, (bool, float)):
        return json.dumps(value)  # true, NaN, Infinity
    if isinstance(value, (list, tuple)):
        return ";".join(map(csv_cell, value))
    return str(value)


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A CSV file with a line per row of `csv_cell`; texts like formulas are escaped."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(spreadsheet(csv_cell(value)) for value in row)
    return file.getvalue()


def csv_of(kind: type, rows: Iterable[object]) -> str:
    """A CSV file with a line per object of a dataclass, whose fields are the columns."""
    header = [field.name for field in dataclasses.fields(kind)]
    return csv_text(header, ([getattr(row, name) for name in header] for row in rows))


def markdown_table(
    header: Sequence[str], align: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """A table; `align` is "---" or "---:" for each column."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, align, *rows))


def with_table(text: str, name: str, table: str) -> str:
    """Replaces a document's table between "<!-- NAME: begin -->" and "<!-- NAME: end -->"."""
    first, last = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise UsageError(f"the document needs the lines {first} and {last}")
    return f"{head}{first}\n{table}\n{last}{tail}"


def rewrite(files: Sequence[str], name: str, table: str) -> None:
    """Replaces a table in files; see `with_table`."""
    for path in map(Path, files):
        path.write_text(with_table(path.read_text(encoding="utf-8"), name, table), encoding="utf-8")


def natural_key(name: str) -> list[Any]:
    """A sort key for names: resnet20 before resnet110, and numbers before letters."""
    parts: list[Any] = _NUMBER.split(name)  # text and numbers in turn, so that like meets like
    parts[1::2] = map(float, parts[1::2])
    return parts
