"""What a report says, apart from how it looks: sections of text, tables and charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cnnbench.report.charts import Chart

NONE = "–"
"""What a cell shows that has no value."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
      text: what it shows.
      value: what it sorts by; its text if None and the column is no number.
      tone: "good", "bad" or "unsure" to underline what the text says, or "".
      hint: shown when pointed at.
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
      number: whether it holds numbers, which stand to the right.
      code: whether it holds commands and names, in letters of one width.
      prose: whether it holds sentences, which need room.
      steady: whether its text stays on one line, such as times and short names.
    """

    title: str
    number: bool = False
    code: bool = False
    prose: bool = False
    steady: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first column names its rows.

    Attributes:
      columns: from left to right.
      rows: a cell for each column.
      title: above it, or "".
      folded: whether it may be folded away behind its title.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph of our own words; what it quotes is escaped like all else."""

    text: str
    tone: str = ""


@dataclass(frozen=True, kw_only=True)
class Charts:
    """Charts beside each other, as many as fit."""

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
      figures: the first things to know: (name, value).
      sections: in order.
    """

    title: str
    subtitle: str
    figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...] = field(default=())


def number(value: float | None, text: str | None = None, *, tone: str = "", hint: str = "") -> Cell:
    """A cell with a number.

    Args:
      value: None for none.
      text: how it is written; `figure` of it if None.
      tone, hint: see `Cell`.
    """
    if value is None:
        return Cell(NONE)
    return Cell(figure(value) if text is None else text, value, tone, hint)


def words(text: object, *, tone: str = "") -> Cell:
    """A cell with text; an empty one shows that there is none."""
    return Cell(str(text) or NONE, tone=tone)


def table(
    titles: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    title: str = "",
    folded: bool = False,
) -> Table:
    """A table without the columns that say nothing in any row."""
    kept = [
        index
        for index in range(len(titles))
        if index == 0 or any(row[index].text != NONE for row in rows)
    ]
    return Table(
        columns=tuple(titles[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in rows),
        title=title,
        folded=folded,
    )


def figure(value: float) -> str:
    """A number in about four digits, none of them invented."""
    size = abs(value)
    if size and (size >= 1e7 or size < 1e-3):
        return f"{value:.3e}"
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f}" if size else "0"


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent."""
    return f"{100 * share:.{digits}f} %"


def span(low: float, high: float) -> str:
    """An interval."""
    return f"{figure(low)} to {figure(high)}"
