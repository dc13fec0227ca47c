"""The content of a report, independent of its format: sections of text, tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from cnnbench.charts import Chart
from cnnbench.text import numbers


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
      text: shown; `numbers.NONE` for no value.
      value: sort key; the text if None.
      tone: "good", "bad", "unsure" or "".
      hint: shown on hover.
    """

    text: str
    value: float | None = None
    tone: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
      title: of the column, with the unit.
      number: aligned to the right.
      code: in letters of one width.
      prose: holds sentences, which need room.
      steady: never wrapped, such as times and short names.
    """

    title: str
    number: bool = False
    code: bool = False
    prose: bool = False
    steady: bool = False

    @property
    def classes(self) -> str:
        """Names of the kinds that are set."""
        return " ".join(n for n in ("number", "code", "prose", "steady") if getattr(self, n))


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first column names its rows.

    Attributes:
      columns: from left to right.
      rows: a cell for each column.
      title: above it, or "".
      folded: whether only the title is shown at first.
    """

    kind: ClassVar[str] = "table"
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str
    tone: str = ""


@dataclass(frozen=True, kw_only=True)
class Charts:
    """Charts beside each other, as many as fit."""

    kind: ClassVar[str] = "charts"
    charts: tuple[Chart, ...]


Block: TypeAlias = Table | Text | Charts


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report.

    Attributes:
      key: short name in ASCII, for links.
      title: heading.
      blocks: in order.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole report.

    Attributes:
      title: of the page.
      subtitle: one line below it.
      highlights: (name, value), shown first.
      sections: in order.
    """

    title: str
    subtitle: str
    highlights: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...] = ()


def number(
    value: float | None,
    text: str | Callable[[float], str] = numbers.number,
    *,
    scale: float = 1,
    tone: str = "",
    hint: str = "",
) -> Cell:
    """A cell with a number.

    Args:
      value: None for none.
      text: of the value, or the function that formats it.
      scale: factor of the value.
      tone, hint: see `Cell`.
    """
    if value is None:
        return Cell(numbers.NONE)
    scaled = value * scale
    return Cell(text if isinstance(text, str) else text(scaled), scaled, tone, hint)


def interval(
    ends: tuple[float, float] | None, text: Callable[[float], str] = numbers.number
) -> Cell:
    """A cell with an interval, sorted by its width."""
    if ends is None:
        return Cell(numbers.NONE)
    return Cell(f"{text(ends[0])} to {text(ends[1])}", ends[1] - ends[0])


def text_cell(text: object, *, tone: str = "") -> Cell:
    """A cell with text; `numbers.NONE` for an empty one."""
    return Cell(str(text) or numbers.NONE, tone=tone)


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    title: str = "",
    folded: bool = False,
) -> Table:
    """A table without the columns that are empty in all rows.

    Args:
      columns: from left to right; the first one is always kept.
      rows: a cell for each column.
      title, folded: see `Table`.
    """
    kept = [
        index
        for index in range(len(columns))
        if index == 0 or any(row[index].text != numbers.NONE for row in rows)
    ]
    return Table(
        columns=tuple(columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in rows),
        title=title,
        folded=folded,
    )


def section(key: str, title: str, *blocks: Block | None) -> Section:
    """A section of the blocks that there are; charts without any are left out.

    Args:
      key, title: see `Section`.
      *blocks: None for none.
    """
    kept = (b for b in blocks if b is not None and not (isinstance(b, Charts) and not b.charts))
    return Section(key=key, title=title, blocks=tuple(kept))
