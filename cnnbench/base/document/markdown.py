"""Writes reports and tables as Markdown, without charts, and replaces tables in documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cnnbench.base.document import Block, ChartGroup, Report, Section, Table, TableCell
from cnnbench.base.text import NONE, escape_markdown
from cnnbench.errors import UsageError

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


def markdown_table(
    header: Sequence[str], align: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """Formats a Markdown table. `align` is "---" or "---:" for each column."""
    return "\n".join(map(markdown_row, (header, align, *rows)))


def replace_marked_table(document: str, marker: str, table: str) -> str:
    """Replaces the lines of a document between "<!-- MARKER: begin -->" and "<!-- MARKER: end -->"
    by a table.
    """
    first, last = (f"<!-- {marker}: {edge} -->" for edge in ("begin", "end"))
    head, begin, rest = document.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise UsageError(f"the document must contain the lines {first} and {last}")
    return f"{head}{first}\n{table}\n{last}{tail}"
