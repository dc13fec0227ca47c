"""Sections as text for a terminal, in lines of its width; colours only repeat the words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from cnnbench.base.document import Charts, Content, Section, Table, TableCell, Text
from cnnbench.base.text.escape import plain
from cnnbench.base.text.table import fitted, wrapped

_COLOURS = {"good": "32", "bad": "31;1", "unsure": "33"}
_NOTE = " " * 6
_UNIT = re.compile(r", (?=\S+$)")
"""The comma before the unit in a head, for which a terminal has no room."""


def text_of(
    sections: Iterable[Section | Iterable[Content]], colour: bool = False, mark: str = ""
) -> str:
    """The sections, or contents of such without a title, with an empty line between them.

    Charts are left out. Lines begin with `mark`, rows of tables with as many spaces.
    """
    return "\n".join(lines_of(sections, colour, mark)) + "\n"


def lines_of(
    sections: Iterable[Section | Iterable[Content]], colour: bool = False, mark: str = ""
) -> list[str]:
    """The lines of `text_of`."""
    lines: list[str] = []
    for one in sections:
        section = one if isinstance(one, Section) else Section.of("", "", one)
        if not (section.title or section.blocks):
            continue
        lines += [""] if lines else []
        lines += [mark + plain(section.title)] if section.title else []
        for block in section.blocks:
            if isinstance(block, Table):
                lines += _table(block, colour, mark)
            elif not isinstance(block, Charts):
                lines += _text(block, mark)
    return lines


def _text(block: Text, mark: str) -> list[str]:
    text, indent = plain(block.text), mark + " " * block.indent
    if block.whole:
        return [indent + text]
    return wrapped(text, indent, mark + " " * (block.hanging or block.indent))


def _table(block: Table, colour: bool, mark: str) -> Iterator[str]:
    titles = [title for title, _, _ in block.columns]
    left = [at for at, (_, kinds, _) in enumerate(block.columns) if "number" not in kinds]
    spare = [titles.index(title) for title in block.spare if title in titles]
    cells = [[plain(cell.text) for cell in row] for row in block.rows]
    notes, signs = [*block.notes], [row[0] if colour else None for row in block.rows]
    if block.has_head:
        cells.insert(0, [_UNIT.sub(" ", plain(title)) for title in titles])
        notes, signs = ["", *notes], [None, *signs]
    indent = block.indent + len(mark)
    found = fitted(cells, left, spare, indent, has_head=block.has_head)
    if block.title:
        yield mark + plain(block.title)
    for at, (lines, sign, note) in enumerate(zip_longest(found, signs, notes)):
        before = (mark if block.has_head and at == 0 else "").ljust(indent)
        for line in _coloured(lines, sign) if sign else lines:
            yield before + line
        yield from wrapped(plain(note), _NOTE) if note else ()


def _coloured(lines: list[str], cell: TableCell) -> list[str]:
    """The lines of a row, whose first cell has the colour of its tone if it fits into one line."""
    code, text = _COLOURS.get(cell.tone), plain(cell.text)
    return [lines[0].replace(text, f"\x1b[{code}m{text}\x1b[0m", 1), *lines[1:]] if code else lines
