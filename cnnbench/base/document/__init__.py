"""Content of reports and command output, independent of the format: sections of text, tables,
charts.

A command creates sections from its result. `sections_to_text` writes sections as text for a
terminal, and `render_report` writes whole reports as HTML or Markdown.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from cnnbench.base import text as numbers
from cnnbench.base.charts import Chart, draw
from cnnbench.base.notebook import Displayed, short_repr
from cnnbench.base.terminal import ProgressLine, fit_table, wrap_text
from cnnbench.base.text import NONE, escape_markdown, to_plain_line

if TYPE_CHECKING:
    from jinja2 import Template

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell in a table, with its text and its formatting.

    Attributes:
      value: sort key; if None, the text is the sort key.
      tone: "good", "bad", "unsure" or "".
      link: target URL of the text; "" for no link.
      kinds: CSS classes of the whole column: "number" (right-aligned), "code" (monospaced), "prose"
        (sentences, which need space), "steady" (never wrapped, such as times), "command" (whole,
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
    """A table, whose first column contains the names of the rows.

    If the table is folded, only its title is visible at first. A column consists of a title, its
    kinds (see `TableCell`), and a hint that is shown on hover.

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
class ChartGroup:
    """Charts that are shown side by side and use the whole width. If `pairs` is true, each row
    contains two charts.
    """

    kind: ClassVar[str] = "charts"
    charts: tuple[Chart, ...]
    pairs: bool = False

    @property
    def charts_per_row(self) -> int:
        """Number of charts in each row of the page, if there is enough space."""
        return 2 if self.pairs else {1: 1, 2: 2, 4: 2}.get(len(self.charts), 3)


Block: TypeAlias = Table | Paragraph | ChartGroup

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
    def from_contents(
        cls, key: str, title: str, contents: Iterable[Content], folded: bool = False
    ) -> Section:
        """Creates a section from contents. Empty contents are left out, and strings become
        paragraphs.
        """
        blocks: list[Block] = []
        for content in contents:
            if isinstance(content, (Table, Paragraph, ChartGroup)):
                blocks.append(content)
            elif content:
                blocks.append(
                    Paragraph(content) if isinstance(content, str) else ChartGroup(tuple(content))
                )
        return cls(key=key, title=title, blocks=tuple(blocks), folded=folded)

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
    """

    name: str
    text: str
    tone: str = ""
    details: tuple[str, ...] = ()


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
        """The charts in all sections of the report."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [
            chart for block in blocks if isinstance(block, ChartGroup) for chart in block.charts
        ]


def numeric_cell(
    value: float | None,
    text: str | Callable[[float], str] = numbers.number,
    *,
    scale: float = 1.0,
    tone: str = "",
) -> TableCell:
    """Makes a table cell that shows a number multiplied by `scale`. The sort key is the same
    product.

    If `value` is None, the cell shows that there is no value.
    """
    if value is None:
        return TableCell(numbers.NONE, kinds="number")
    value *= scale
    return TableCell(text if isinstance(text, str) else text(value), value, tone, kinds="number")


def interval_cell(
    ends: tuple[float | None, float | None] | None, text: Callable[[float], str] = numbers.number
) -> TableCell:
    """Makes a table cell that shows an interval. The sort key is the width of the interval.

    If an end is None, the cell shows that there is no value.
    """
    low, high = ends or (None, None)
    if low is None or high is None:
        return numeric_cell(None)
    return numeric_cell(high - low, numbers.format_interval(low, high, text))


_NO_HINTS: Mapping[str, str] = {}


def make_table(
    rows: Iterable[Row],
    *,
    title: str = "",
    folded: bool = False,
    hints: Mapping[str, str] = _NO_HINTS,
    whole: bool = False,
    missing: str = numbers.NONE,
    **layout: Any,
) -> Table | None:
    """Makes a table from rows. Empty columns, except the first column, are omitted. Returns None if
    there are no rows, or if all columns but the first one are empty.

    Args:
      rows: rows of the table. The first one determines the order of the columns.
      hints: hints for columns, by title.
      whole: whether to keep empty columns.
      missing: text for empty cells.
      layout: further attributes of the table.
    """
    cells = [
        {name: _filled_cell(content, missing) for name, content in row.items()} for row in rows
    ]
    if not cells:
        return None
    first, *others = cells[0]
    kept = [
        first,
        *(name for name in others if whole or any(row[name].text != missing for row in cells)),
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


def _filled_cell(content: TableCell | str, missing: str) -> TableCell:
    cell = content if isinstance(content, TableCell) else TableCell(content)
    return cell if cell.text else replace(cell, text=missing)


_MOST_REMARKS = 3
"""If there are more remarks of one kind, a section shows their number and the first one."""


def counted_remarks(texts: Sequence[str], about: str, tone: str = "") -> Iterator[Content]:
    """Yields sentences of one kind as paragraphs. If there are many, yields one paragraph with
    their number and the first sentence, and a folded table with all of them.

    `about` says what is counted, such as "configurations with slow steps".
    """
    if len(texts) <= _MOST_REMARKS:
        yield from (Paragraph(text, tone) for text in texts)
        return
    counted = f"{len(texts)} {about}"
    yield Paragraph(f"{counted}; for example: {texts[0]}", tone)
    rows = ({about: TableCell(text, kinds="prose")} for text in texts)
    yield make_table(rows, title=f"All {counted}", folded=True)


# Functions that write documents as Markdown, without charts.


_MARKS = {"good": "🟢 ", "bad": "🔴 ", "unsure": "🟡 "}


def report_to_markdown(report: Report) -> str:
    """Writes a whole report as Markdown, without charts."""
    lines = [f"# {escape_markdown(report.title)}", "", f"{escape_markdown(report.subtitle)}.", ""]
    for answer in report.answers:
        lines.append(
            f"- {_MARKS.get(answer.tone, '')}{escape_markdown(answer.name)}: "
            f"{escape_markdown(answer.text)}"
        )
        lines += [f"  - {escape_markdown(detail)}" for detail in answer.details]
    lines += [
        f"- {escape_markdown(name)}: {escape_markdown(value)}" for name, value in report.highlights
    ]
    for section in report.sections:
        written = list(_section_lines(section))
        # A section that contains only charts is left out, because Markdown has no charts.
        lines += ["", *written] if written[1:] else []
    return "\n".join(lines) + "\n"


def _section_lines(section: Section) -> Iterable[str]:
    yield f"## {escape_markdown(section.title)}"
    for block in section.blocks:
        lines = _block_lines(block)
        if lines:
            yield ""
            yield from lines


def _block_lines(block: Block) -> list[str]:
    if isinstance(block, Table):
        title = [f"### {escape_markdown(block.title)}", ""] if block.title else []
        return [*title, *table_to_markdown_lines(block)]
    if isinstance(block, ChartGroup):
        return []
    return [f"{_MARKS.get(block.tone, '')}{escape_markdown(block.text)}"]


def table_to_markdown_lines(
    block: Table, names: Callable[[str], str] = escape_markdown
) -> list[str]:
    """Formats a table as lines of Markdown. The function `names` escapes the texts in columns
    without numbers.
    """
    aligned = ["number" in kinds for _, kinds, _ in block.columns]
    return [
        markdown_row([escape_markdown(title) for title, _, _ in block.columns]),
        markdown_row(["--:" if number else "---" for number in aligned]),
        *(
            markdown_row(
                [
                    _markdown_cell(cell, escape_markdown if number else names)
                    for cell, number in pairs
                ]
            )
            for pairs in (zip(cells, aligned, strict=True) for cells in block.rows)
        ),
    ]


def _markdown_cell(cell: TableCell, escape: Callable[[str], str]) -> str:
    text = f"{_MARKS.get(cell.tone, '')}{NONE if cell.text == NONE else escape(cell.text)}"
    return f"[{text}]({cell.link})" if cell.link else text


def markdown_row(cells: Sequence[str]) -> str:
    """Writes a row of a Markdown table. The texts of the cells must already be escaped."""
    return f"| {' | '.join(cells)} |"


# Functions that write text for a terminal. Colours only repeat what the words say.

_COLOURS = {"good": "32", "bad": "31;1", "unsure": "33"}
_NOTE = " " * 6
_UNIT = re.compile(r", (?=\S+$)")
"""The comma before the unit in a column head. It is removed in terminals to save space."""


def sections_to_text(
    sections: Iterable[Section | Iterable[Content]], colour: bool = False, mark: str = ""
) -> str:
    """Formats report sections as text for a terminal, with an empty line between sections. Contents
    without a section, such as paragraphs and tables, are accepted in place of a section.

    Charts are left out. Lines begin with `mark`; rows of tables begin with the same number of
    spaces.
    """
    return "\n".join(sections_to_lines(sections, colour, mark)) + "\n"


def sections_to_lines(
    sections: Iterable[Section | Iterable[Content]], colour: bool = False, mark: str = ""
) -> list[str]:
    """Formats report sections as lines for a terminal; see `sections_to_text`."""
    lines: list[str] = []
    for part in sections:
        section = part if isinstance(part, Section) else Section.from_contents("", "", part)
        if not (section.title or section.blocks):
            continue
        lines += [""] if lines else []
        lines += [mark + to_plain_line(section.title)] if section.title else []
        for block in section.blocks:
            if isinstance(block, Table):
                lines += _terminal_table_lines(block, colour, mark)
            elif not isinstance(block, ChartGroup):
                lines += _paragraph_lines(block, mark)
    return lines


def _paragraph_lines(block: Paragraph, mark: str) -> list[str]:
    text, indent = to_plain_line(block.text), mark + " " * block.indent
    if block.whole:
        return [indent + text]
    return wrap_text(text, indent, mark + " " * (block.hanging or block.indent))


def _terminal_table_lines(block: Table, colour: bool, mark: str) -> Iterator[str]:
    titles = [title for title, _, _ in block.columns]
    left = [at for at, (_, kinds, _) in enumerate(block.columns) if "number" not in kinds]
    spare = [titles.index(title) for title in block.spare if title in titles]
    cells = [[to_plain_line(cell.text) for cell in row] for row in block.rows]
    notes, signs = [*block.notes], [row[0] if colour else None for row in block.rows]
    if block.has_head:
        cells.insert(0, [_UNIT.sub(" ", to_plain_line(title)) for title in titles])
        notes, signs = ["", *notes], [None, *signs]
    indent = block.indent + len(mark)
    rows = fit_table(cells, left, spare, indent, has_head=block.has_head)
    if block.title:
        yield mark + to_plain_line(block.title)
    for at, (lines, sign, note) in enumerate(zip_longest(rows, signs, notes)):
        before = (mark if block.has_head and at == 0 else "").ljust(indent)
        for line in _colour_lines(lines, sign) if sign else lines:
            yield before + line
        yield from wrap_text(to_plain_line(note), _NOTE) if note else ()


def _colour_lines(lines: list[str], cell: TableCell) -> list[str]:
    """Colours the text of `cell` in a table row by the tone of the cell. `lines` are the printed
    lines of the row.
    """
    code, text = _COLOURS.get(cell.tone), to_plain_line(cell.text)
    return [lines[0].replace(text, f"\x1b[{code}m{text}\x1b[0m", 1), *lines[1:]] if code else lines


# Functions that write a report as one HTML page, which loads no other files.
# The content security policy of the page allows only its own style and script.


def render_report(report: Report, format: str, progress: ProgressLine | None = None) -> str:
    """Writes a report in one of the `FORMATS`. Other formats raise KeyError.

    `progress` shows how many charts have been drawn.
    """
    return _html_page(report, progress) if format == "html" else FORMATS[format](report)


def _html_page(report: Report, progress: ProgressLine | None = None) -> str:
    progress = progress or ProgressLine.silent()
    # Each chart is drawn in at most two widths.
    progress.start("drawing", 2 * len(report.charts))
    drawn = itertools.count(1)

    def svg(*arguments: Any) -> str:
        progress.update(next(drawn))
        return draw.chart_to_svg(*arguments)

    style, script = draw.theme_css() + _page_file_text("style.css"), _page_file_text("script.js")
    policy = (
        f"default-src 'none'; style-src '{_content_security_digest(style)}'; script-src "
        f"'{_content_security_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    widths = {1: draw.WIDE, 2: draw.HALF, 3: draw.NARROW}
    text = _page_template().render(
        report=report, policy=policy, style=style, script=script, svg=svg, widths=widths
    )
    progress.finish()
    return text


@functools.cache
def _page_template() -> Template:
    from jinja2 import Environment

    environment = Environment(
        autoescape=True, finalize=_remove_control_characters, keep_trailing_newline=True
    )
    return environment.from_string(_page_file_text("template.html"))


def _remove_control_characters(value: Any) -> Any:
    """Removes control characters and text-direction marks from a text, because texts may come from
    untrusted records.
    """
    return (
        to_plain_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
    )


@functools.cache
def _page_file_text(name: str) -> str:
    return resources.files("cnnbench.base.document").joinpath(f"page/{name}").read_text("utf-8")


def _content_security_digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "html": _html_page,
    "markdown": report_to_markdown,
}
"""Functions that write a report, by the name of the format. Markdown contains no charts."""
