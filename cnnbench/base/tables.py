"""Formats tables as plain text and as CSV, and sorts names in a natural order."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from cnnbench.base.escapes import disable_ci_commands, escape_formula
from cnnbench.base.terminal import line_width, wrap_text
from cnnbench.base.text import cut_to_width, text_width

GAP = "  "
_NARROWEST_TEXT, _FEWEST_COLUMNS = 12, 2
_MORE = "  "
# Long names of layers and configurations are broken into two lines after one of these characters.
_PART = re.compile(r"\s*[^\s/_,;=]+[/_,;=]*|\s*[/_,;=]+|\s+")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


def align_table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Formats a table as lines with aligned columns, two spaces apart, without trailing spaces.

    All rows, including the header, have the same number of cells. The columns with the numbers
    `left` (negative numbers start at the end) are left-aligned, all other columns right-aligned.
    """
    if not rows:
        return []
    widths = [max(map(text_width, column)) for column in zip(*rows, strict=True)]
    to_left = {index % len(widths) for index in left}
    return [_join_cells(row, range(len(widths)), widths, to_left) for row in rows]


def fit_table(
    rows: Sequence[Sequence[str]],
    left: Sequence[int] = (0,),
    spare: Sequence[int] = (),
    indent: int = 0,
    *,
    has_head: bool = True,
) -> list[list[str]]:
    """Formats a table to fit into `line_width`, if possible. Returns the lines of each row.

    A table that is too wide is made narrower in these steps: heads are broken into several lines,
    spare columns are omitted, texts are broken between words, and more columns are omitted from the
    right. A last line names them. Words are broken only in a table without heads, or if the first
    two columns alone are too wide.

    Args:
      rows, left: as for `align_table`.
      spare: numbers of columns that are omitted first, in this order.
      indent: number of characters that the caller will put before every line.
    """
    if not rows:
        return []
    room = line_width() - indent
    shown = list(range(len(rows[0])))
    to_left = {index % len(shown) for index in left}
    widths = [max(map(text_width, column)) for column in zip(*rows, strict=True)]

    def excess() -> int:
        return sum(widths[index] + len(GAP) for index in shown) - len(GAP) - room

    if excess() > 0 and has_head:
        for index in shown:
            body = max((text_width(row[index]) for row in rows[1:]), default=0)
            widths[index] = max(body, *map(text_width, rows[0][index].split()), 1)
    for index in spare:
        if excess() > 0:
            shown.remove(index)
    texts = [index for index in shown if index in to_left]
    if has_head:
        least = {index: max(_word_width(rows, index), _NARROWEST_TEXT) for index in texts}
        whole = widths.copy()
        _narrow(widths, least, excess)
        while excess() > 0 and len(shown) > _FEWEST_COLUMNS:
            least.pop(shown.pop(), None)
            widths[:] = whole
            _narrow(widths, least, excess)
        texts = [index for index in shown if index in to_left]
    _narrow(widths, dict.fromkeys(texts, _NARROWEST_TEXT), excess)
    for index in shown:  # Heads get the rest of the width.
        longer = text_width(rows[0][index]) - widths[index]
        if has_head and 0 < longer <= -excess():
            widths[index] += longer
    lines = [
        _lines_of_row(row, shown, widths, to_left, has_head and place == 0)
        for place, row in enumerate(rows)
    ]
    missing = [rows[0][index] for index in range(len(rows[0])) if index not in shown]
    if missing:
        lines.append(wrap_text(f"omitted for lack of width: {', '.join(missing)}"))
    return lines


def _narrow(widths: list[int], least: Mapping[int, int], excess: Callable[[], int]) -> None:
    """Makes the widest columns narrower until the table fits or all columns have their minimum
    width.
    """
    while excess() > 0:
        wider = [index for index in least if widths[index] > least[index]]
        if not wider:
            break
        widths[max(wider, key=lambda index: widths[index])] -= 1


def _word_width(rows: Sequence[Sequence[str]], index: int) -> int:
    """Smallest width of a table column at which no word in its cells must be broken. The head of
    the column is ignored.
    """
    longest = 0
    for row in rows[1:]:
        for place, part in enumerate(_PART.findall(row[index])):
            longest = max(longest, text_width(part.strip()) + (len(_MORE) if place else 0))
    return longest


def _lines_of_row(
    row: Sequence[str], shown: Sequence[int], widths: Sequence[int], to_left: set[int], head: bool
) -> list[str]:
    cells = [_break_cell(row[index], widths[index], head) for index in shown]
    height = max(map(len, cells))
    filled = [
        [*[""] * (height - len(cell)), *cell] if head else [*cell, *[""] * (height - len(cell))]
        for cell in cells
    ]
    return [_join_cells(parts, shown, widths, to_left) for parts in zip(*filled, strict=True)]


def _join_cells(
    cells: Sequence[str], shown: Sequence[int], widths: Sequence[int], to_left: set[int]
) -> str:
    """Joins the cells of a table row to a line. `shown` contains the numbers of the columns that
    are shown.
    """
    texts = []
    for index, cell in zip(shown, cells, strict=True):
        space = " " * (widths[index] - text_width(cell))
        texts.append(cell + space if index in to_left else space + cell)
    return disable_ci_commands(GAP.join(texts).rstrip())


def _break_cell(text: str, width: int, head: bool) -> list[str]:
    """Breaks the text of a table cell into lines of a given width. Below the head of the table, all
    lines of a cell except its first line are indented.
    """
    lines, line = [], ""
    more = "" if head else _MORE
    for part in _PART.findall(text):
        while text_width((line + part).rstrip()) > width:
            if line.strip():
                lines.append(line.rstrip())
                line = more
                part = part.lstrip()
            else:
                beginning = cut_to_width(part, width - len(line)) or part[:1]
                lines.append(line + beginning)
                line, part = more, part[len(beginning) :]
        line += part
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def csv_cell(value: object) -> str:
    """Formats a value for a CSV file, as in JSON, without rounding. None becomes an empty cell, and
    a time ISO 8601.
    """
    if value is None:
        return ""
    if isinstance(value, (bool, float)):
        return json.dumps(value)  # `json.dumps` returns a text such as true, 0.5 or NaN.
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return ";".join(map(csv_cell, value))
    return str(value)


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Formats a CSV file from a header and rows. Texts that look like formulas are escaped."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(escape_formula(csv_cell(value)) for value in row)
    return file.getvalue()


def dataclasses_to_csv(kind: type, rows: Iterable[object]) -> str:
    """Formats dataclass objects as a CSV file: one row for each object, and one column for each
    field of the dataclass `kind`.
    """
    header = [field.name for field in dataclasses.fields(kind)]
    return csv_text(header, ([getattr(row, name) for name in header] for row in rows))


def natural_key(name: str) -> list[Any]:
    """Key for sorting names so that resnet20 comes before resnet110, and numbers come before
    letters.
    """
    # Texts and numbers alternate in the key, so that two keys never compare a text with a number.
    parts: list[Any] = _NUMBER.split(name)
    parts[1::2] = map(float, parts[1::2])
    return parts
