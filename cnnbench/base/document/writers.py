"""Writes documents as HTML, as Markdown and as text for a terminal."""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from cnnbench.base.charts import draw, sheet
from cnnbench.base.document import Block, Charts, Content, Report, Section, Table, TableCell, Text
from cnnbench.base.terminal import Progress, fit_table, wrapped
from cnnbench.base.text import NONE, markdown, plain

if TYPE_CHECKING:
    from jinja2 import Template


# Documents as Markdown, without charts.

_MARKS = {"good": "🟢 ", "bad": "🔴 ", "unsure": "🟡 "}


def markdown_of(report: Report) -> str:
    """A whole report as Markdown."""
    lines = [f"# {markdown(report.title)}", "", f"{markdown(report.subtitle)}.", ""]
    for answer in report.answers:
        lines.append(
            f"- {_MARKS.get(answer.tone, '')}{markdown(answer.name)}: {markdown(answer.text)}"
        )
        lines += [f"  - {markdown(detail)}" for detail in answer.details]
    lines += [f"- {markdown(name)}: {markdown(value)}" for name, value in report.highlights]
    for section in report.sections:
        written = list(_section(section))
        # A section that contains only charts is left out.
        lines += ["", *written] if written[1:] else []
    return "\n".join(lines) + "\n"


def _section(section: Section) -> Iterable[str]:
    yield f"## {markdown(section.title)}"
    for block in section.blocks:
        lines = _block(block)
        if lines:
            yield ""
            yield from lines


def _block(block: Block) -> list[str]:
    if isinstance(block, Table):
        title = [f"### {markdown(block.title)}", ""] if block.title else []
        return [*title, *table_lines(block)]
    if isinstance(block, Charts):
        return []
    return [f"{_MARKS.get(block.tone, '')}{markdown(block.text)}"]


def table_lines(block: Table, names: Callable[[str], str] = markdown) -> list[str]:
    """A table as Markdown lines. `names` escapes the texts in columns without numbers."""
    aligned = ["number" in kinds for _, kinds, _ in block.columns]
    return [
        markdown_row([markdown(title) for title, _, _ in block.columns]),
        markdown_row(["--:" if number else "---" for number in aligned]),
        *(
            markdown_row([_cell(cell, markdown if number else names) for cell, number in pairs])
            for pairs in (zip(cells, aligned, strict=True) for cells in block.rows)
        ),
    ]


def _cell(cell: TableCell, escape: Callable[[str], str]) -> str:
    text = f"{_MARKS.get(cell.tone, '')}{NONE if cell.text == NONE else escape(cell.text)}"
    return f"[{text}]({cell.link})" if cell.link else text


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a Markdown table. The texts must already be escaped."""
    return f"| {' | '.join(cells)} |"


# Sections as text for a terminal. Colours add no information to the words.

_COLOURS = {"good": "32", "bad": "31;1", "unsure": "33"}
_NOTE = " " * 6
_UNIT = re.compile(r", (?=\S+$)")
"""The comma before the unit in a column head. It is removed in terminals to save space."""


def text_of(
    sections: Iterable[Section | Iterable[Content]], colour: bool = False, mark: str = ""
) -> str:
    """Sections, or items of content, as text with empty lines between them.

    Charts are left out. Lines begin with `mark`; rows of tables begin with the same number of
    spaces.
    """
    return "\n".join(lines_of(sections, colour, mark)) + "\n"


def lines_of(
    sections: Iterable[Section | Iterable[Content]], colour: bool = False, mark: str = ""
) -> list[str]:
    """The same as `text_of`, as lines."""
    lines: list[str] = []
    for part in sections:
        section = part if isinstance(part, Section) else Section.of("", "", part)
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
    rows = fit_table(cells, left, spare, indent, has_head=block.has_head)
    if block.title:
        yield mark + plain(block.title)
    for at, (lines, sign, note) in enumerate(zip_longest(rows, signs, notes)):
        before = (mark if block.has_head and at == 0 else "").ljust(indent)
        for line in _coloured(lines, sign) if sign else lines:
            yield before + line
        yield from wrapped(plain(note), _NOTE) if note else ()


def _coloured(lines: list[str], cell: TableCell) -> list[str]:
    """The lines of a row. If the row is one line, its first cell has the colour of its tone."""
    code, text = _COLOURS.get(cell.tone), plain(cell.text)
    return [lines[0].replace(text, f"\x1b[{code}m{text}\x1b[0m", 1), *lines[1:]] if code else lines


# Reports as one HTML page that loads no other files. Its policy only allows its own style and
# script.


def render_report(report: Report, format: str, progress: Progress | None = None) -> str:
    """The report in one of `FORMATS`; KeyError for other formats.

    `progress` shows how many charts have been drawn.
    """
    return _page(report, progress) if format == "html" else FORMATS[format](report)


def _page(report: Report, progress: Progress | None = None) -> str:
    progress = progress or Progress.silent()
    progress.start("drawing", 2 * len(report.charts))  # at most two widths for each chart
    drawn = itertools.count(1)

    def svg(*arguments: Any) -> str:
        progress.update(next(drawn))
        return draw.svg(*arguments)

    style, script = sheet.theme() + _file("style.css"), _file("script.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    widths = {1: draw.WIDE, 2: draw.HALF, 3: draw.NARROW}
    text = _template().render(
        report=report, policy=policy, style=style, script=script, svg=svg, widths=widths
    )
    progress.finish()
    return text


@functools.cache
def _template() -> Template:
    from jinja2 import Environment

    environment = Environment(autoescape=True, finalize=_finalize, keep_trailing_newline=True)
    return environment.from_string(_file("template.html"))


def _finalize(value: Any) -> Any:
    """Removes control characters and direction marks from text that is read from records."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


@functools.cache
def _file(name: str) -> str:
    return resources.files("cnnbench.base.document").joinpath(f"page/{name}").read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


FORMATS: Mapping[str, Callable[[Report], str]] = {"html": _page, "markdown": markdown_of}
"""Functions that write a report, by the name of the format. Markdown contains no charts."""
