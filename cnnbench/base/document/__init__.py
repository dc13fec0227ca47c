"""Content of outputs, independent of the format: sections with texts, tables and charts.

A command creates sections from its result. `cnnbench.base.document.writers` writes sections as text
for a terminal, and whole reports as HTML or Markdown.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from cnnbench.base import text as numbers
from cnnbench.base.charts import Chart

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell in a table.

    Attributes:
      value: sort key; if None, the text is the sort key.
      tone: "good", "bad", "unsure" or "".
      link: target URL of the text; "" for no link.
      kinds: CSS classes of the whole column: "number" (right-aligned), "code" (monospaced), "prose"
        (sentences, which need space), "steady" (never wrapped, such as times), "command" (one line
        for copying).
    """

    text: str
    value: float | None = None
    tone: str = ""
    link: str = ""
    kinds: str = ""


Row: TypeAlias = Mapping[str, TableCell | str]
"""Cells of a row, by the title of the column (with unit).

A plain text means a cell with this text. "" means that there is no value.
"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table. The first column names the rows. If folded, only the title is visible at first.

    A column consists of a title, its kinds (see `TableCell`), and a hint that is shown on hover.

    Attributes:
      notes: for terminals, one text for each row, which is shown below it ("" for no text); or
        empty.
      spare: titles of columns that are omitted in narrow terminals, in this order.
      has_head: whether the titles of the columns are shown in a terminal.
      indent: number of spaces before every line in a terminal.
    """

    kind: ClassVar[str] = "table"
    columns: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[TableCell, ...], ...]
    title: str = ""
    folded: bool = False
    notes: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    has_head: bool = True
    indent: int = 0


@dataclass(frozen=True)
class Text:
    """A paragraph of text.

    Attributes:
      indent, hanging: in a terminal, spaces before the first line, and before all other lines.
      whole: whether the text is one line that must not be broken, such as a command.
    """

    kind: ClassVar[str] = "text"
    text: str
    tone: str = ""
    indent: int = 0
    hanging: int = 0
    whole: bool = False


@dataclass(frozen=True)
class Charts:
    """Charts side by side, which use the whole width. With `pairs`, always two per row."""

    kind: ClassVar[str] = "charts"
    charts: tuple[Chart, ...]
    pairs: bool = False

    @property
    def columns(self) -> int:
        """Number of charts per row, if there is enough space."""
        return 2 if self.pairs else {1: 1, 2: 2, 4: 2}.get(len(self.charts), 3)


Block: TypeAlias = Table | Text | Charts

Content: TypeAlias = Block | str | Sequence[Chart] | None
"""Types of content in a section."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of an output. If folded, only the heading and `remark` are visible at first."""

    key: str = ""
    title: str = ""
    blocks: tuple[Block, ...]
    folded: bool = False

    @classmethod
    def of(cls, key: str, title: str, contents: Iterable[Content], folded: bool = False) -> Section:
        """Creates a section. Leaves out empty content. A str becomes a paragraph."""
        blocks: list[Block] = []
        for content in contents:
            if isinstance(content, (Table, Text, Charts)):
                blocks.append(content)
            elif content:
                blocks.append(Text(content) if isinstance(content, str) else Charts(tuple(content)))
        return cls(key=key, title=title, blocks=tuple(blocks), folded=folded)

    @property
    def remark(self) -> Text | None:
        """The first paragraph with a tone. It is visible even if the section is folded."""
        toned = (text for text in self.blocks if isinstance(text, Text) and text.tone)
        return next(toned, None)


def docstring_first(contents: Callable[[T], Iterable[Content]]) -> Callable[[T], Iterable[Content]]:
    """Decorator that adds a function's docstring before the content that the function returns.

    If the function returns no content, nothing is added. If the first items are of type str, they
    continue the paragraph.
    """

    @functools.wraps(contents)
    def with_docstring(subject: T) -> Iterable[Content]:
        paragraphs = [content for content in contents(subject) if content]
        first = [*itertools.takewhile(lambda paragraph: isinstance(paragraph, str), paragraphs)]
        text = " ".join(" ".join((contents.__doc__ or "", *map(str, first))).split())
        return [text, *paragraphs[len(first) :]] if paragraphs else ()

    return with_docstring


@dataclass(frozen=True)
class Answer:
    """An answer at the top of a report: question, answer, tone (see `TableCell`) and evidence."""

    name: str
    text: str
    tone: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole report. The highlights, (name, value) pairs, are shown below the answers."""

    title: str
    subtitle: str
    answers: tuple[Answer, ...] = ()
    highlights: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()

    @property
    def charts(self) -> list[Chart]:
        """The charts in all sections."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [chart for block in blocks if isinstance(block, Charts) for chart in block.charts]


def numeric(
    value: float | None,
    text: str | Callable[[float], str] = numbers.number,
    *,
    scale: float = 1.0,
    tone: str = "",
) -> TableCell:
    """A cell with a number times a factor, which is also the sort key; None without a value."""
    if value is None:
        return TableCell(numbers.NONE, kinds="number")
    value *= scale
    return TableCell(text if isinstance(text, str) else text(value), value, tone, kinds="number")


def interval(
    ends: tuple[float | None, float | None] | None, text: Callable[[float], str] = numbers.number
) -> TableCell:
    """A cell with an interval. The sort key is its width. None if there is no value."""
    low, high = ends or (None, None)
    if low is None or high is None:
        return numeric(None)
    return numeric(high - low, f"{text(low)} to {text(high)}")


_NO_HINTS: Mapping[str, str] = {}


def table(
    rows: Iterable[Row],
    *,
    title: str = "",
    folded: bool = False,
    hints: Mapping[str, str] = _NO_HINTS,
    whole: bool = False,
    missing: str = numbers.NONE,
    **layout: Any,
) -> Table | None:
    """Makes a table and omits empty columns, except the first; None if there are no rows.

    Args:
      rows: rows of the table. The first one determines the order of the columns.
      hints: hints for columns, by title.
      whole: whether to keep empty columns.
      missing: text for empty cells.
      layout: further attributes of the table.
    """
    cells = [{name: _cell(content, missing) for name, content in row.items()} for row in rows]
    if not cells:
        return None
    first, *others = cells[0]
    kept = [
        first,
        *(name for name in others if whole or any(row[name].text != missing for row in cells)),
    ]
    return Table(
        columns=tuple((name, cells[0][name].kinds, hints.get(name, "")) for name in kept),
        rows=tuple(tuple(row[name] for name in kept) for row in cells),
        title=title,
        folded=folded,
        **layout,
    )


def _cell(content: TableCell | str, missing: str) -> TableCell:
    cell = content if isinstance(content, TableCell) else TableCell(content)
    return cell if cell.text else replace(cell, text=missing)
