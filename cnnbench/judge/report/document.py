"""The content of a report, independent of its format: sections of text, tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from cnnbench.base.charts import Chart
from cnnbench.base.text import numbers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a table.

    Attributes:
      value: sort key; the text if None.
      tone: "good", "bad", "unsure" or "".
      link: an URL that the text leads to; "" for none.
    """

    text: str
    value: float | None = None
    tone: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[T]):
    """A column of a table whose rows are objects of one type, such as configurations.

    Attributes:
      title: with the unit.
      cell: of an object; a text is a cell with it, "" no value.
      kinds: names of CSS classes: "number" (aligned to the right), "code" (monospaced), "prose"
        (sentences, which need room), "steady" (never wrapped, such as times), "command" (one line
        to be copied).
      hint: shown on hover over the title.
    """

    title: str
    cell: Callable[[T], TableCell | str]
    kinds: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first column names its rows. If folded, only the title is shown at first."""

    kind: ClassVar[str] = "table"
    columns: tuple[TableColumn[Any], ...]
    rows: tuple[tuple[TableCell, ...], ...]
    title: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str
    tone: str = ""


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
"""What sections are made of."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report; if folded, only the heading and `remark` are shown at first."""

    key: str
    title: str
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


def number(
    value: float | None, text: str | Callable[[float], str] = numbers.number, tone: str = ""
) -> TableCell:
    """A cell with a number, which is also its sort key; None for no value."""
    if value is None:
        return TableCell(numbers.NONE)
    return TableCell(text if isinstance(text, str) else text(value), value, tone)


def numeric(
    title: str,
    value: Callable[[T], float | None],
    text: Callable[[float], str] = numbers.number,
    scale: float = 1.0,
    hint: str = "",
) -> TableColumn[T]:
    """A column of numbers, scaled by a factor; None for no value."""

    def cell(thing: T) -> TableCell:
        found = value(thing)
        return number(None if found is None else found * scale, text)

    return TableColumn(title, cell, "number", hint)


def interval(
    title: str,
    ends: Callable[[T], tuple[float, float] | None],
    text: Callable[[float], str] = numbers.number,
) -> TableColumn[T]:
    """A column of intervals, sorted by their width."""

    def cell(thing: T) -> TableCell:
        found = ends(thing)
        if found is None:
            return number(None)
        return TableCell(f"{text(found[0])} to {text(found[1])}", found[1] - found[0])

    return TableColumn(title, cell, "number")


def table(
    columns: Sequence[TableColumn[T]], things: Iterable[T], *, title: str = "", folded: bool = False
) -> Table | None:
    """A table without the columns, after the first, that are empty; None without rows."""
    rows = [[_cell(column.cell(thing)) for column in columns] for thing in things]
    kept = [
        index
        for index in range(len(columns))
        if index == 0 or any(row[index].text != numbers.NONE for row in rows)
    ]
    if not rows:
        return None
    return Table(
        columns=tuple(columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in rows),
        title=title,
        folded=folded,
    )


def _cell(content: TableCell | str) -> TableCell:
    return content if isinstance(content, TableCell) else TableCell(content or numbers.NONE)


def section(
    key: str, title: str, folded: bool = False
) -> Callable[[Callable[[T], Iterable[Content]]], Callable[[T], Section | None]]:
    """A decorator of functions that yield the contents of a section; without any there is none."""

    def decorated(contents: Callable[[T], Iterable[Content]]) -> Callable[[T], Section | None]:
        def made(subject: T) -> Section | None:
            found = Section.of(key, title, contents(subject), folded)
            return found if found.blocks else None

        return made

    return decorated
