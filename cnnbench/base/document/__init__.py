"""Contents of outputs, independent of their format: sections of text, tables and charts.

A command makes sections of its result, which `cnnbench.base.document.writers` writes as text; a
whole report is written by `cnnbench.base.document.writers` and `cnnbench.base.document.writers`.
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
    """A cell of a table.

    Attributes:
      value: sort key; the text if None.
      tone: "good", "bad", "unsure" or "".
      link: an URL that the text leads to; "" for none.
      kinds: CSS classes of the whole column: "number" (aligned to the right), "code" (monospaced),
        "prose" (sentences, which need room), "steady" (never wrapped, such as times), "command"
        (one line to be copied).
    """

    text: str
    value: float | None = None
    tone: str = ""
    link: str = ""
    kinds: str = ""


Row: TypeAlias = Mapping[str, TableCell | str]
"""Cells of a table by the title of their column, with the unit; a text is a cell with it, "" no
value."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first column names its rows. If folded, only the title is shown at first.

    A column consists of its title, its kinds (see `TableCell`) and a hint, shown on hover.

    Attributes:
      notes: a text below each row in a terminal, "" for none; or empty.
      spare: titles of columns that a narrow terminal leaves out, in this order.
      has_head: whether a terminal shows the titles of the columns.
      indent: spaces before every line in a terminal.
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
    """A paragraph.

    Attributes:
      indent, hanging: spaces before its first line and before the others in a terminal.
      whole: whether it is one line that is never broken, such as a command.
    """

    kind: ClassVar[str] = "text"
    text: str
    tone: str = ""
    indent: int = 0
    hanging: int = 0
    whole: bool = False


@dataclass(frozen=True)
class Charts:
    """Charts beside each other, which use the whole width; always two with `pairs`."""

    kind: ClassVar[str] = "charts"
    charts: tuple[Chart, ...]
    pairs: bool = False

    @property
    def columns(self) -> int:
        """Number of charts beside each other where there is room."""
        return 2 if self.pairs else {1: 1, 2: 2, 4: 2}.get(len(self.charts), 3)


Block: TypeAlias = Table | Text | Charts

Content: TypeAlias = Block | str | Sequence[Chart] | None
"""Contents of a section."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of an output; if folded, only the heading and `remark` are shown at first."""

    key: str = ""
    title: str = ""
    blocks: tuple[Block, ...]
    folded: bool = False

    @classmethod
    def of(cls, key: str, title: str, contents: Iterable[Content], folded: bool = False) -> Section:
        """A section without empty contents; a text is a paragraph, charts are beside each other."""
        blocks: list[Block] = []
        for one in contents:
            if isinstance(one, (Table, Text, Charts)):
                blocks.append(one)
            elif one:
                blocks.append(Text(one) if isinstance(one, str) else Charts(tuple(one)))
        return cls(key=key, title=title, blocks=tuple(blocks), folded=folded)

    @property
    def remark(self) -> Text | None:
        """The first paragraph with a tone; shown also while the section is folded."""
        toned = (one for one in self.blocks if isinstance(one, Text) and one.tone)
        return next(toned, None)


def introduced(contents: Callable[[T], Iterable[Content]]) -> Callable[[T], Iterable[Content]]:
    """Decorator that makes the docstring the first paragraph of what a function makes, if anything.

    Texts (str) before all other contents continue the paragraph.
    """

    @functools.wraps(contents)
    def with_docstring(subject: T) -> Iterable[Content]:
        found = [one for one in contents(subject) if one]
        first = [*itertools.takewhile(lambda one: isinstance(one, str), found)]
        text = " ".join(" ".join((contents.__doc__ or "", *map(str, first))).split())
        return [text, *found[len(first) :]] if found else ()

    return with_docstring


@dataclass(frozen=True)
class Answer:
    """A first statement: question, answer, tone (see `TableCell`) and lines of evidence."""

    name: str
    text: str
    tone: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole report; (name, value) pairs of highlights are shown below the answers."""

    title: str
    subtitle: str
    answers: tuple[Answer, ...] = ()
    highlights: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()

    @property
    def charts(self) -> list[Chart]:
        """The charts of all sections."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [chart for block in blocks if isinstance(block, Charts) for chart in block.charts]


def numeric(
    value: float | None,
    text: str | Callable[[float], str] = numbers.number,
    *,
    scale: float = 1.0,
    tone: str = "",
) -> TableCell:
    """A cell with a number, which is also its sort key, scaled by a factor; None for no value."""
    if value is None:
        return TableCell(numbers.NONE, kinds="number")
    value *= scale
    return TableCell(text if isinstance(text, str) else text(value), value, tone, kinds="number")


def interval(
    ends: tuple[float | None, float | None] | None, text: Callable[[float], str] = numbers.number
) -> TableCell:
    """A cell with an interval, sorted by its width; None for no value."""
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
    """A table without the columns, after the first, that are empty; None without rows.

    Args:
      rows: their first gives the order of the columns.
      hints: shown on hover, by title of the column.
      whole: whether empty columns stay.
      missing: stands for empty cells.
      layout: other attributes of the table.
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
