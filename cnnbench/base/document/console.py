"""Writes sections, paragraphs, lists and tables as text for a terminal. Colours only repeat what
the words say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from cnnbench.base.document import (
    ChartGroup,
    CommandLine,
    Content,
    Items,
    Paragraph,
    Section,
    Table,
    TableCell,
)
from cnnbench.base.escapes import to_plain_line
from cnnbench.base.tables import fit_table
from cnnbench.base.terminal import wrap_text
from cnnbench.base.text import NONE

_COLOURS = {"good": "32", "bad": "31;1", "unsure": "33"}
_HANGING = 6
_MOST_ITEMS = 100
"""Maximum number of items of a list that are written."""
_UNIT = re.compile(r", (?=\S+$)")
"""The comma before the unit in a column head. It is removed in terminals to save space."""


def sections_to_text(sections: Iterable[Section | Iterable[Content]], colour: bool = False) -> str:
    """Formats report sections as text for a terminal, with an empty line between sections. Contents
    without a section, such as paragraphs and tables, are accepted in place of a section.

    Charts are left out.
    """
    return "\n".join(sections_to_lines(sections, colour)) + "\n"


def sections_to_lines(
    sections: Iterable[Section | Iterable[Content]], colour: bool = False
) -> list[str]:
    """Formats report sections as lines for a terminal; see `sections_to_text`."""
    lines: list[str] = []
    for part in sections:
        section = part if isinstance(part, Section) else Section.of(part)
        only_charts = all(isinstance(block, ChartGroup) for block in section.blocks)
        if only_charts and (section.blocks or not section.title):
            continue
        lines += [""] if lines else []
        lines += [to_plain_line(section.title)] if section.title else []
        for place, block in enumerate(section.blocks):
            if isinstance(block, Table):
                lines += [""] if block.title and place else []
                lines += _table_lines(block, colour)
            elif isinstance(block, Items):
                lines += _list_lines(block)
            elif isinstance(block, CommandLine):
                lines.append(to_plain_line(f"{block.name}: {block.text}"))
            elif not isinstance(block, ChartGroup):
                lines += _paragraph_lines(block)
    return lines


def _paragraph_lines(block: Paragraph) -> list[str]:
    text, indent = to_plain_line(block.text), " " * block.indent
    if block.whole:
        return [indent + text]
    return wrap_text(text, indent, " " * (block.hanging or block.indent))


def _list_lines(block: Items) -> Iterator[str]:
    if block.title:
        yield to_plain_line(block.title)
    for text in block.texts[:_MOST_ITEMS]:
        yield from wrap_text(to_plain_line(text), subsequent_indent=" " * _HANGING)
    more = len(block.texts) - _MOST_ITEMS
    if more > 0:
        yield f"and {more} more {block.about}"


def _table_lines(block: Table, colour: bool) -> Iterator[str]:
    prose = [at for at, (_, kinds, _) in enumerate(block.columns) if at and "prose" in kinds]
    shown = [at for at in range(len(block.columns)) if at not in prose]
    titles = [block.columns[at][0] for at in shown]
    left = [place for place, at in enumerate(shown) if "number" not in block.columns[at][1]]
    spare = [titles.index(title) for title in block.spare if title in titles]
    cells = [[to_plain_line(row[at].marked_text) for at in shown] for row in block.rows]
    sentences = ([row[at].text for at in prose if row[at].text != NONE] for row in block.rows)
    notes = [
        "; ".join(filter(None, (*own, note)))
        for own, note in zip_longest(sentences, block.notes, fillvalue="")
    ]
    # For each row, its first cell with a colour, or None.
    toned = [next((c for c in row if colour and c.tone in _COLOURS), None) for row in block.rows]
    if block.has_head:
        cells.insert(0, [_UNIT.sub(" ", to_plain_line(title)) for title in titles])
        notes, toned = ["", *notes], [None, *toned]
    rows = fit_table(cells, left, spare, block.indent, has_head=block.has_head)
    if block.title:
        yield to_plain_line(block.title)
    for lines, cell, note in zip_longest(rows, toned, notes):
        for line in _colour_lines(lines, cell) if cell else lines:
            yield " " * block.indent + line
        yield from wrap_text(to_plain_line(note), " " * _HANGING) if note else ()


def _colour_lines(lines: list[str], cell: TableCell) -> list[str]:
    """Colours the text of `cell` in the printed lines of its row, by the tone of the cell."""
    code, text = _COLOURS[cell.tone], to_plain_line(cell.marked_text)
    return [lines[0].replace(text, f"\x1b[{code}m{text}\x1b[0m", 1), *lines[1:]]
