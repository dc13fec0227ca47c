"""Content of reports and command output, independent of the format: sections of text, tables,
charts.

A command creates sections from its result. Each format has a module that writes sections or whole
reports: `console`, `markdown` and `html`. `formats` lists the formats of reports.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from cnnbench.base import text as numbers
from cnnbench.base.charts import Chart
from cnnbench.base.notebook import Displayed, short_repr

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell in a table, with its text and its formatting.

    Attributes:
      value: sort key; if None, the text is the sort key.
      tone: "good", "bad", "unsure", "changed" (neither good nor bad) or "".
      mark: a sign before the text, such as "-" for worse, which means the same as the tone.
        Markdown shows a coloured circle instead.
      link: target URL of the text; "" for no link.
      kinds: CSS classes of the whole column: "number" (right-aligned), "code" (monospaced), "prose"
        (sentences, which need space; terminals show them below the row), "steady" (never wrapped,
        such as times), "command" (whole, for copying).
      why: why there is no value, which pages show on hover.
    """

    text: str
    value: float | None = None
    tone: str = ""
    link: str = ""
    kinds: str = ""
    mark: str = ""
    why: str = ""

    @property
    def marked_text(self) -> str:
        """The text after its mark: "- slower"."""
        return f"{self.mark} {self.text}" if self.mark else self.text


Row: TypeAlias = Mapping[str, TableCell | str]
"""Cells of a row, by the title of the column (with unit).

A plain text means a cell with this text. "" means that there is no value.
"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table, whose first column contains the names of the rows.

    If the table is folded, only its title is visible at first. A column consists of a title, its
    kinds (see `TableCell`), and a hint that is shown on hover.

    Attributes:
      notes: one text for each row ("" for no text), or empty. A terminal shows each text below its
        row; the other formats show `remarks`.
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

    @property
    def remarks(self) -> Items | None:
        """The notes of all rows, each with the name of its row, as a folded list; None if there are
        no notes.
        """
        noted = zip(self.rows, self.notes, strict=True) if self.notes else ()
        texts = tuple(f"{row[0].text}: {note}" for row, note in noted if note)
        return Items(texts=texts, title="Why", folded=True, about="reasons") if texts else None


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text in a report or in the output of a command.

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
class CommandLine:
    """A command line, for copying. `name` says what it is for."""

    kind: ClassVar[str] = "command"
    text: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Items:
    """A list of texts, such as notes.

    If the list is folded, only its title is visible at first. A long list that is not folded shows
    its first items; `about` says what the others are.
    """

    kind: ClassVar[str] = "list"
    texts: tuple[str, ...]
    title: str = ""
    folded: bool = False
    about: str = "items"

    @property
    def first(self) -> tuple[str, ...]:
        """The items that are visible at first, unless the list is folded."""
        return self.texts[:_MOST_REMARKS]

    @property
    def others(self) -> Items | None:
        """The items after `first`, as a folded list; None if there are none."""
        texts = self.texts[_MOST_REMARKS:]
        title = f"{len(texts)} more {self.about}"
        return replace(self, texts=texts, title=title, folded=True) if texts else None


_MOST_REMARKS = 3
"""If there are more remarks of one kind, a section shows the first ones or only one, and how many
there are.
"""


@dataclass(frozen=True)
class ChartGroup:
    """Charts that are shown side by side and use the whole width. If `pairs` is true, each row
    contains two charts. The note says what the charts show, "" for nothing.
    """

    kind: ClassVar[str] = "charts"
    charts: tuple[Chart, ...]
    pairs: bool = False
    note: str = ""

    @property
    def charts_per_row(self) -> int:
        """Number of charts in each row of the page, if there is enough space."""
        return 2 if self.pairs else {1: 1, 2: 2, 4: 2}.get(len(self.charts), 3)


Block: TypeAlias = Table | Paragraph | CommandLine | Items | ChartGroup

Content: TypeAlias = Block | str | Sequence[Chart] | None
"""Types of content in a section."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a report. If the section is folded, only its title and the paragraph
    `visible_when_folded` are visible at first.
    """

    key: str = ""
    title: str = ""
    blocks: tuple[Block, ...]
    folded: bool = False

    @classmethod
    def of(
        cls, contents: Iterable[Content], key: str = "", title: str = "", folded: bool = False
    ) -> Section:
        """Creates a section. Empty contents are left out, and strings become paragraphs."""
        blocks: list[Block] = []
        for content in contents:
            if isinstance(content, Items) and not content.texts:
                continue
            if isinstance(content, (Table, Paragraph, CommandLine, Items, ChartGroup)):
                blocks.append(content)
            elif content:
                blocks.append(
                    Paragraph(content) if isinstance(content, str) else ChartGroup(tuple(content))
                )
        return cls(key=key, title=title, blocks=tuple(blocks), folded=folded)

    def without_commands(self) -> Section:
        """Returns the section without the command lines that readers may copy."""
        blocks = (block for block in self.blocks if not isinstance(block, CommandLine))
        return replace(self, blocks=tuple(blocks))

    @property
    def visible_when_folded(self) -> Paragraph | None:
        """The first paragraph of this section that has a tone (see `TableCell`). It remains visible
        while the section is folded.
        """
        toned = (text for text in self.blocks if isinstance(text, Paragraph) and text.tone)
        return next(toned, None)


def prepend_docstring(
    contents: Callable[[T], Iterable[Content]],
) -> Callable[[T], Iterable[Content]]:
    """Decorator that puts the docstring of a function before the contents that the function
    returns.

    If the function returns no content, nothing is added. If the first items are of type str, they
    continue the paragraph.
    """

    @functools.wraps(contents)
    def contents_with_docstring(subject: T) -> Iterable[Content]:
        paragraphs = [content for content in contents(subject) if content]
        first = [*itertools.takewhile(lambda paragraph: isinstance(paragraph, str), paragraphs)]
        text = " ".join(" ".join((contents.__doc__ or "", *map(str, first))).split())
        return [text, *paragraphs[len(first) :]] if paragraphs else ()

    return contents_with_docstring


@dataclass(frozen=True)
class Answer:
    """An answer at the top of a report: the question (`name`), the answer (`text`), its tone (see
    `TableCell`), and its evidence (`details`).

    An answer with a chart is as wide as the page. Its command is below its details.
    """

    name: str
    text: str
    tone: str = ""
    details: tuple[str, ...] = ()
    chart: Chart | None = None
    command: CommandLine | None = None


@dataclass(frozen=True, kw_only=True)
class Report(Displayed):
    """A whole report. Its highlights, pairs of name and value, are shown below its answers."""

    title: str
    subtitle: str
    answers: tuple[Answer, ...] = ()
    highlights: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()

    def __repr__(self) -> str:
        sections = numbers.count_text(self.sections, "section", "sections")
        return short_repr(self, f"{self.title}, {sections}")

    @property
    def charts(self) -> list[Chart]:
        """The charts of the answers and of all sections of the report."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [
            *(answer.chart for answer in self.answers if answer.chart is not None),
            *(chart for block in blocks if isinstance(block, ChartGroup) for chart in block.charts),
        ]


def numeric_cell(
    value: float | None,
    text: str | Callable[[float], str] | None = None,
    *,
    scale: float = 1.0,
    tone: str = "",
    why: str = "",
) -> TableCell:
    """Makes a table cell that shows a number multiplied by `scale`. The sort key is the same
    product.

    By default, an `int` without a scale is shown as a whole number, and other numbers with four
    significant digits. If `value` is None, the cell shows that there is no value, because of `why`.
    """
    if value is None:
        return TableCell(numbers.NONE, kinds="number", why=why)
    if text is None:
        text = numbers.integer if isinstance(value, int) and scale == 1.0 else numbers.number
    value *= scale
    return TableCell(text if isinstance(text, str) else text(value), value, tone, kinds="number")


def quantity_cell(value: float | None, unit: str) -> TableCell:
    """Makes a table cell that shows a value of a unit, but not the unit, which is in a heading: MiB
    for bytes, and per cent for shares. The sort key is the number that is shown.
    """
    text = numbers.quantity(value, unit, with_unit=False)
    return numeric_cell(value, text, scale=numbers.shown_unit(unit)[1])


def interval_cell(
    ends: tuple[float | None, float | None] | None,
    text: Callable[[float], str] = numbers.number,
    *,
    scale: float = 1.0,
    why: str = "",
) -> TableCell:
    """Makes a table cell that shows an interval, whose ends are multiplied by `scale`. The sort key
    is the width of the interval.

    If an end is None, the cell shows that there is no value, because of `why`.
    """
    low, high = ends or (None, None)
    if low is None or high is None:
        return numeric_cell(None, why=why)
    low, high = low * scale, high * scale
    return numeric_cell(high - low, numbers.format_interval(low, high, text))


_NO_HINTS: Mapping[str, str] = {}


def make_table(
    rows: Iterable[Row],
    *,
    title: str = "",
    folded: bool = False,
    hints: Mapping[str, str] = _NO_HINTS,
    whole: bool = False,
    **layout: Any,
) -> Table | None:
    """Makes a table from rows. Empty columns, except the first column, are omitted. Returns None if
    there are no rows, or if all columns but the first one are empty.

    Args:
      rows: rows of the table. The first one determines the order of the columns.
      hints: hints for columns, by title.
      whole: whether to keep empty columns.
      layout: further attributes of the table.
    """
    cells = [{name: _filled_cell(content) for name, content in row.items()} for row in rows]
    if not cells:
        return None
    first, *others = cells[0]
    kept = [
        first,
        *(name for name in others if whole or any(row[name].text != numbers.NONE for row in cells)),
    ]
    if others and kept == [first]:
        return None
    return Table(
        columns=tuple((name, cells[0][name].kinds, hints.get(name, "")) for name in kept),
        rows=tuple(tuple(row[name] for name in kept) for row in cells),
        title=title,
        folded=folded,
        **layout,
    )


def _filled_cell(content: TableCell | str) -> TableCell:
    cell = content if isinstance(content, TableCell) else TableCell(content)
    return cell if cell.text else replace(cell, text=numbers.NONE)


def counted_remarks(texts: Sequence[str], about: str, tone: str = "") -> Iterator[Content]:
    """Yields sentences of one kind, such as notices, as paragraphs. If there are many, yields one
    paragraph with their number and the first sentence, and a folded table with all of them.

    `about` says what is counted, such as "configurations with slow steps".
    """
    if len(texts) <= _MOST_REMARKS:
        yield from (Paragraph(text, tone) for text in texts)
        return
    counted = f"{len(texts)} {about}"
    yield Paragraph(f"{counted}; for example: {texts[0]}", tone)
    rows = ({about: TableCell(text, kinds="prose")} for text in texts)
    yield make_table(rows, title=f"All {counted}", folded=True)
