"""Tables as plain text, CSV and Markdown, and natural sorting of names."""

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cnnbench.base.text.escape import inert, spreadsheet
from cnnbench.base.text.terminal import is_terminal
from cnnbench.errors import UsageError

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
